-- One row per distinct call, activity name and launch geometry: launches, their device time in ns, the part of it whose
-- call the host issued more slowly than the device did it (`launch_bound_ns`), and those that are the only main one of
-- their call (`sole_count`, `sole_ns`). Parameters: name ids of helpers, which are no main work; ns after the end of
-- its launch call within which an activity that waits for nothing starts; names of calls that hold the host up and launch
-- nothing. Reads activity_costs, device_activities, kernel_names, operators, runtime_calls.
WITH issues AS NOT MATERIALIZED (
    -- Of a CUDA graph, or outside operators, each activity is issued by itself.
    SELECT *, CASE WHEN operator_id IS NULL OR attribution = 'graph' THEN -1 - activity_id ELSE operator_id END AS issue_id,
        list_contains(?::INTEGER[], name_id) AS is_helper
    FROM device_activities
), queued AS (
    SELECT activity_id, issue_id, is_helper, runtime_call_id, start_ns, duration_ns,
        max(start_ns + duration_ns) OVER (PARTITION BY trace_id, device, stream ORDER BY start_ns, activity_id
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS previous_end_ns
    FROM issues
), launched AS (
    -- At once: its stream was empty before its launch call ended, and nothing else held it up.
    SELECT q.*, r.duration_ns / of_call.launches AS launch_ns,
        coalesce(coalesce(q.previous_end_ns, r.start_ns) <= r.start_ns + r.duration_ns
            AND q.start_ns <= r.start_ns + r.duration_ns + ?, FALSE) AS is_at_once
    FROM queued q LEFT JOIN runtime_calls r USING (runtime_call_id)
    LEFT JOIN (SELECT runtime_call_id, count(*) AS launches FROM device_activities GROUP BY ALL) of_call
        USING (runtime_call_id)
), waits AS (
    SELECT operator_id, sum(duration_ns) AS wait_ns FROM runtime_calls
    WHERE operator_id IS NOT NULL AND list_contains(?::VARCHAR[], name)
    GROUP BY operator_id
), issued AS (
    SELECT issue_id, sum(duration_ns) AS device_ns, sum(launch_ns) AS launch_ns,
        arg_min(is_at_once, (start_ns, activity_id)) AS starts_at_once, count(*) FILTER (NOT is_helper) AS main_launches
    FROM launched GROUP BY issue_id
), judged AS (
    SELECT i.issue_id, i.main_launches, i.starts_at_once
        AND coalesce(i.device_ns < coalesce(o.self_cpu_ns - coalesce(w.wait_ns, 0), i.launch_ns), FALSE) AS is_launch_bound
    FROM issued i
    LEFT JOIN operators o ON o.operator_id = i.issue_id
    LEFT JOIN waits w ON w.operator_id = i.issue_id
)
SELECT c.call_id, n.name AS kernel, l.kind,
    -- As far as it matters to filling the device: extents of all dimensions multiplied.
    CASE WHEN l.grid_x * l.grid_y * l.grid_z IS NOT NULL THEN [l.grid_x * l.grid_y * l.grid_z, 1, 1] END AS grid,
    CASE WHEN l.block_x * l.block_y * l.block_z IS NOT NULL THEN [l.block_x * l.block_y * l.block_z, 1, 1] END AS block,
    l.registers_per_thread, l.shared_memory_bytes, any_value(l.is_helper) AS is_helper,
    NULL AS occupancy_estimate, count(*) AS count, count(*) AS calls, sum(l.duration_ns)::BIGINT AS total_ns,
    coalesce(sum(l.duration_ns) FILTER (j.is_launch_bound), 0)::BIGINT AS launch_bound_ns,
    count(*) FILTER (j.main_launches = 1 AND NOT l.is_helper) AS sole_count,
    coalesce(sum(l.duration_ns) FILTER (j.main_launches = 1 AND NOT l.is_helper), 0)::BIGINT AS sole_ns
FROM issues l
JOIN activity_costs c USING (activity_id)
JOIN judged j USING (issue_id)
JOIN kernel_names n USING (name_id)
GROUP BY ALL
ORDER BY c.call_id, total_ns DESC, kernel, grid, block
