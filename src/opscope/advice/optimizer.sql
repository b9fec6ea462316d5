-- One row per operator with device work within Optimizer.step or Optimizer.zero_grad: the phase, the optimizer's
-- range as recorded and where on the host all of them lie, launches, time on the device in ns, ids of the operators.
-- A step may be given a closure that runs forward and backward within it: what is the optimizer's then begins behind the
-- last backward operator, on whichever thread, and behind the norms of gradients that are clipped.
-- The phase `accumulation` is what the first backward pass after a zero_grad that fills adds to the filled gradients;
-- of gradients that are None it would write. Each pass begins by making its gradient of ones.
-- Reads operators, annotations, device_activities.
WITH named AS (
        SELECT trace_id, thread_id, start_ns, start_ns + duration_ns AS end_ns, name FROM annotations
        WHERE side = 'host' AND starts_with(name, 'Optimizer.')
        UNION ALL
        SELECT trace_id, thread_id, start_ns, start_ns + duration_ns, name FROM operators
        WHERE starts_with(name, 'Optimizer.')),
    of_closures AS (
        SELECT trace_id, start_ns, duration_ns, regexp_matches(name, 'evaluate_function|[Bb]ackward') AS is_backward
        FROM operators
        WHERE regexp_matches(name, 'evaluate_function|[Bb]ackward|^aten::(_foreach_norm|linalg_vector_norm|norm)$')),
    closures AS (
        SELECT n.thread_id, n.start_ns, max(o.start_ns + o.duration_ns) AS last_ns
        FROM named n
        JOIN of_closures o ON o.trace_id = n.trace_id AND o.start_ns >= n.start_ns AND o.start_ns < n.end_ns
        WHERE starts_with(n.name, 'Optimizer.step')
        GROUP BY ALL HAVING bool_or(is_backward)),
    ranges AS (
        SELECT thread_id, coalesce(last_ns, start_ns) AS start_ns, end_ns, name
        FROM named LEFT JOIN closures USING (thread_id, start_ns)),
    launched AS (
        SELECT operator_id, count(*) AS launches, sum(duration_ns) AS device_ns
        FROM device_activities WHERE operator_id IS NOT NULL GROUP BY operator_id),
    fills AS (
        SELECT DISTINCT r.start_ns, r.end_ns
        FROM ranges r
        JOIN operators o ON o.thread_id = r.thread_id AND o.start_ns >= r.start_ns AND o.start_ns < r.end_ns
        JOIN launched USING (operator_id)
        WHERE starts_with(r.name, 'Optimizer.zero_grad')),
    passes AS (
        SELECT greatest(1, count(*) // greatest(1, (SELECT count(*) FROM fills))) AS per_fill
        FROM operators WHERE name = 'aten::ones_like' AND parent_id IS NULL),
    additions AS (
        SELECT o.operator_id, o.name, launches, device_ns, 
            row_number() OVER by_fill AS number, count(*) OVER (PARTITION BY f.start_ns) AS of_fill
        FROM operators o
        JOIN operators p ON p.operator_id = o.parent_id AND p.name = 'torch::autograd::AccumulateGrad'
        JOIN launched ON launched.operator_id = o.operator_id
        ASOF JOIN fills f ON o.start_ns >= f.end_ns
        WHERE o.name = 'aten::add_'
        WINDOW by_fill AS (PARTITION BY f.start_ns ORDER BY o.start_ns, o.operator_id))
SELECT CASE WHEN starts_with(r.name, 'Optimizer.zero_grad') THEN 'zero_grad' ELSE 'step' END AS phase,
    r.name AS optimizer, (SELECT list({'thread_id': thread_id, 'start_ns': start_ns, 'end_ns': end_ns})
        FROM ranges WHERE ranges.name = r.name) AS ranges,
    o.name, sum(launches)::BIGINT AS launches, sum(device_ns)::BIGINT AS device_ns, 
    list(o.operator_id) AS operator_ids
FROM ranges r
JOIN operators o ON o.thread_id = r.thread_id AND o.start_ns >= r.start_ns AND o.start_ns < r.end_ns
JOIN launched USING (operator_id)
WHERE o.name IS NOT NULL AND (starts_with(r.name, 'Optimizer.zero_grad') OR starts_with(r.name, 'Optimizer.step'))
GROUP BY ALL
UNION ALL BY NAME
SELECT 'accumulation' AS phase, 'AccumulateGrad' AS optimizer, NULL AS ranges, name, sum(launches)::BIGINT AS launches,
    sum(device_ns)::BIGINT AS device_ns, list(operator_id) AS operator_ids
FROM additions WHERE number <= ceil(of_fill / (SELECT per_fill FROM passes))
GROUP BY name
ORDER BY phase, device_ns DESC, o.name
