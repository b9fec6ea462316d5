-- One row per thing of a recording (`level` 0: all of it; 1: an operator, or what belongs to none, by reason; 2: calls of an
-- operator with one overload and one set of input shapes; 3: a kernel of an operator) within steps or outside of them
-- (is_inside): calls (of a kernel its launches), kernels launched, the compared time in ns, and that time by sample.
-- Parameters: whether CPU time is compared, and whether all of the recording is inside. Reads device_activities,
-- kernel_names, operators, compared_samples (trace_id, step, sample).
WITH counted AS (
    SELECT coalesce(name, '') AS operator, NULL AS reason, overload, input_shapes::VARCHAR AS input_shapes,
        NULL AS kernel, NULL AS kind, trace_id, step, count(*) AS calls, 0 AS launches,
        CASE WHEN $1 THEN sum(self_cpu_ns) ELSE 0 END AS time_ns
    FROM operators GROUP BY ALL
    UNION ALL
    SELECT CASE WHEN o.operator_id IS NOT NULL THEN coalesce(o.name, '') END AS operator,
        CASE WHEN o.operator_id IS NULL THEN a.attribution END AS reason,
        o.overload, o.input_shapes::VARCHAR AS input_shapes, n.name AS kernel, a.kind, a.trace_id, a.step,
        0 AS calls, count(*) AS launches, CASE WHEN $1 THEN 0 ELSE sum(a.duration_ns) END AS time_ns
    FROM device_activities a
    JOIN kernel_names n USING (name_id)
    LEFT JOIN operators o USING (operator_id)
    GROUP BY ALL
), placed AS (
    SELECT c.*, s.sample, $2 OR s.sample IS NOT NULL AS is_inside,
        row_number() OVER (ORDER BY kernel IS NOT NULL, operator, reason, overload, input_shapes, kernel, kind) AS position
    FROM counted c LEFT JOIN compared_samples s ON s.trace_id = c.trace_id AND s.step = c.step
), summed AS (
    SELECT CASE grouping(operator, input_shapes, kernel) WHEN 7 THEN 0 WHEN 3 THEN 1 WHEN 1 THEN 2 ELSE 3 END AS level,
        is_inside, operator, reason, overload, input_shapes, kernel, kind, sample, min(position) AS position,
        sum(calls) AS calls, sum(launches) AS activities, sum(launches) FILTER (kind = 'kernel') AS launches,
        sum(time_ns) AS time_ns
    FROM placed
    GROUP BY GROUPING SETS (
        (is_inside, sample), (is_inside, operator, reason, sample),
        (is_inside, operator, reason, overload, input_shapes, sample),
        (is_inside, operator, reason, kernel, kind, sample)
    )
)
SELECT level, is_inside, operator, reason, overload, input_shapes, kernel, kind,
    sum(CASE WHEN level = 3 THEN activities ELSE calls END)::BIGINT AS calls,
    coalesce(sum(launches), 0)::BIGINT AS launches, sum(time_ns)::BIGINT AS time_ns,
    map(coalesce(list(sample) FILTER (sample IS NOT NULL), []),
        coalesce(list(time_ns::BIGINT) FILTER (sample IS NOT NULL), [])) AS sample_ns
FROM summed
WHERE CASE level WHEN 0 THEN true WHEN 3 THEN is_inside AND kernel IS NOT NULL ELSE is_inside END
GROUP BY ALL
ORDER BY min(position)
