-- One row per operator with device work within Optimizer.step or Optimizer.zero_grad: the phase, the optimizer's
-- range as recorded and the time of all of them on the host in ns, launches, time on the device and of the operator on
-- the host in ns. Reads operators, annotations, device_activities.
WITH ranges AS (
        SELECT thread_id, start_ns, start_ns + duration_ns AS end_ns, name FROM annotations
        WHERE side = 'host' AND starts_with(name, 'Optimizer.')
        UNION ALL
        SELECT thread_id, start_ns, start_ns + duration_ns, name FROM operators WHERE starts_with(name, 'Optimizer.')),
    launched AS (
        SELECT operator_id, count(*) AS launches, sum(duration_ns) AS device_ns
        FROM device_activities WHERE operator_id IS NOT NULL GROUP BY operator_id)
SELECT CASE WHEN starts_with(r.name, 'Optimizer.zero_grad') THEN 'zero_grad' ELSE 'step' END AS phase,
    r.name AS optimizer, (SELECT sum(end_ns - start_ns) FROM ranges WHERE ranges.name = r.name)::BIGINT AS range_ns,
    o.name, sum(launches)::BIGINT AS launches, sum(device_ns)::BIGINT AS device_ns, sum(o.duration_ns)::BIGINT AS host_ns
FROM ranges r
JOIN operators o ON o.thread_id = r.thread_id AND o.start_ns >= r.start_ns AND o.start_ns < r.end_ns
JOIN launched USING (operator_id)
WHERE starts_with(r.name, 'Optimizer.zero_grad') OR starts_with(r.name, 'Optimizer.step')
GROUP BY ALL
ORDER BY phase, device_ns DESC, o.name
