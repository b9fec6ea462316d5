-- One row per launch from before the recording window that is like one of a recorded call: the distinct call (call_id)
-- that launches this kernel in this geometry and lasts as long, within a quarter of its mean; of several the nearest. And
-- the activity, its ns. Calls that launch several kernels only where as many as whole calls launch were found (`calls` in
-- all).
-- Reads device_activities, activity_costs.
WITH early AS (
    SELECT activity_id, duration_ns, name_id, hash(grid_x, grid_y, grid_z, block_x, block_y, block_z, registers_per_thread,
        shared_memory_bytes) AS geometry
    FROM device_activities WHERE attribution = 'before_window' AND kind = 'kernel'
), launched AS (
    SELECT call_id, operator_id, kind, duration_ns, name_id, hash(grid_x, grid_y, grid_z, block_x, block_y, block_z,
        registers_per_thread, shared_memory_bytes) AS geometry
    FROM device_activities LEFT JOIN activity_costs USING (activity_id) WHERE attribution NOT IN ('graph', 'before_window')
), recorded AS (
    SELECT name_id, geometry, call_id, avg(duration_ns) AS mean_ns
    FROM launched SEMI JOIN early USING (name_id, geometry) GROUP BY ALL
), nearest AS (
    SELECT e.activity_id, any_value(e.duration_ns) AS duration_ns,
        first(r.call_id ORDER BY abs(e.duration_ns - r.mean_ns), r.call_id) AS call_id
    FROM early e JOIN recorded r USING (name_id, geometry) WHERE abs(e.duration_ns - r.mean_ns) < r.mean_ns / 4
    GROUP BY e.activity_id HAVING bool_and(r.call_id IS NOT NULL)
), whole AS (
    SELECT call_id, any_value(launches) AS launches_of_call
    FROM (
        SELECT max(call_id) AS call_id, count(*) AS launches, bool_and(kind = 'kernel') AS are_kernels
        FROM launched GROUP BY operator_id)
    WHERE call_id IN (SELECT call_id FROM nearest)
    GROUP BY call_id HAVING bool_and(are_kernels) AND count(DISTINCT launches) = 1
)
SELECT n.call_id, n.activity_id, count(*) OVER (PARTITION BY n.call_id) // w.launches_of_call AS calls, n.duration_ns
FROM nearest n JOIN whole w USING (call_id)
QUALIFY count(*) OVER (PARTITION BY n.call_id) % w.launches_of_call = 0
ORDER BY n.activity_id
