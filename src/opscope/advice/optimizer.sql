-- One row per operator with device work within Optimizer.step: the optimizer's range as recorded and where on the host
-- all of them lie, launches, time on the device in ns, ids of the operators.
-- A step may be given a closure that runs forward and backward within it: what is the optimizer's then begins behind the
-- last backward operator, on whichever thread, and behind the norms of gradients that are clipped.
-- Reads operators, annotations, device_activities.
WITH named AS (
        SELECT trace_id, thread_id, start_ns, max(end_ns) OVER (PARTITION BY thread_id, name ORDER BY start_ns) AS end_ns, name
        FROM (
            SELECT trace_id, thread_id, start_ns, start_ns + duration_ns AS end_ns, name FROM annotations
            WHERE side = 'host' AND starts_with(name, 'Optimizer.step')
            UNION ALL
            SELECT trace_id, thread_id, start_ns, start_ns + duration_ns, name FROM operators
            WHERE starts_with(name, 'Optimizer.step'))),
    of_closures AS (
        SELECT trace_id, start_ns, duration_ns,
            contains(name, 'evaluate_function') OR contains(name, 'Backward') OR contains(name, 'backward') AS is_backward
        FROM operators
        WHERE is_backward OR name IN ('aten::_foreach_norm', 'aten::linalg_vector_norm', 'aten::norm')),
    -- Of a thread and name an operator lies in the last range that began before it, which lasts as long as those around it.
    closures AS (
        SELECT n.thread_id, n.start_ns, max(o.start_ns + o.duration_ns) AS last_ns
        FROM of_closures o
        JOIN (SELECT DISTINCT trace_id, thread_id, name FROM named) t USING (trace_id)
        ASOF JOIN named n ON n.thread_id = t.thread_id AND n.name = t.name AND o.start_ns >= n.start_ns
        WHERE o.start_ns < n.end_ns
        GROUP BY ALL HAVING bool_or(is_backward)),
    ranges AS (
        SELECT thread_id, coalesce(last_ns, start_ns) AS start_ns, end_ns, name
        FROM named LEFT JOIN closures USING (thread_id, start_ns)),
    launched AS (
        SELECT operator_id, count(*) AS launches, sum(duration_ns) AS device_ns
        FROM device_activities WHERE operator_id IS NOT NULL GROUP BY operator_id),
    inside AS (
        SELECT o.operator_id, o.name, launches, device_ns, r.name AS optimizer, r.start_ns, r.end_ns
        FROM launched JOIN operators o USING (operator_id)
        JOIN (SELECT DISTINCT thread_id, name FROM ranges) t USING (thread_id)
        ASOF JOIN ranges r ON r.thread_id = t.thread_id AND r.name = t.name AND o.start_ns >= r.start_ns
        WHERE o.start_ns < r.end_ns AND o.name IS NOT NULL)
SELECT optimizer, (SELECT list({'thread_id': thread_id, 'start_ns': start_ns, 'end_ns': end_ns})
    FROM ranges WHERE ranges.name = optimizer) AS ranges, name, launches, device_ns, operator_ids
FROM (
    SELECT optimizer, name, sum(launches)::BIGINT AS launches, sum(device_ns)::BIGINT AS device_ns,
        list(operator_id) AS operator_ids
    FROM inside GROUP BY ALL)
ORDER BY device_ns DESC, name
