-- One row per launch from before the recording window that is like one of a recorded call: the distinct call (call_id)
-- that launches this kernel in this geometry and lasts as long, within a quarter of its mean; of several the nearest. And
-- the activity, its ns. Calls that launch several kernels only where as many as whole calls launch were found (`calls` in
-- all).
-- Reads device_activities, activity_costs.
WITH launched AS (
    SELECT a.activity_id, c.call_id, a.attribution = 'before_window' AS is_early, a.duration_ns,
        hash(a.name_id, a.grid_x, a.grid_y, a.grid_z, a.block_x, a.block_y, a.block_z, a.registers_per_thread,
            a.shared_memory_bytes) AS launch,
        a.kind = 'kernel' AS is_kernel, count(*) OVER (PARTITION BY a.operator_id) AS launches_of_call
    FROM device_activities a LEFT JOIN activity_costs c USING (activity_id) WHERE a.attribution <> 'graph'
), whole AS (
    SELECT call_id, any_value(launches_of_call) AS launches_of_call FROM launched WHERE NOT is_early
    GROUP BY call_id HAVING bool_and(is_kernel) AND count(DISTINCT launches_of_call) = 1
), recorded AS (
    SELECT launch, call_id, avg(duration_ns) AS mean_ns FROM launched WHERE NOT is_early GROUP BY launch, call_id
), nearest AS (
    SELECT l.activity_id, any_value(l.duration_ns) AS duration_ns, first(r.call_id ORDER BY abs(l.duration_ns - r.mean_ns), r.call_id) AS call_id
    FROM launched l JOIN recorded r USING (launch)
    WHERE l.is_early AND l.is_kernel AND abs(l.duration_ns - r.mean_ns) < r.mean_ns / 4
    GROUP BY l.activity_id HAVING bool_and(r.call_id IS NOT NULL)
)
SELECT n.call_id, n.activity_id, count(*) OVER (PARTITION BY n.call_id) // w.launches_of_call AS calls, n.duration_ns
FROM nearest n JOIN whole w USING (call_id)
QUALIFY count(*) OVER (PARTITION BY n.call_id) % w.launches_of_call = 0
ORDER BY n.activity_id
