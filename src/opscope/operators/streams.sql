-- One row per launch on a stream that has launches from before the recording window, in their order: the stream (from 1),
-- what tells launches apart (name, geometry, size), the distinct call it belongs to (call_id, -1 before the window) and the
-- operator (member; a negative number for launches of none). Reads device_activities, activity_costs.
WITH early AS (
    SELECT DISTINCT trace_id, device, stream FROM device_activities WHERE attribution = 'before_window'
)
SELECT a.activity_id, dense_rank() OVER (ORDER BY a.trace_id, a.device, a.stream) AS stream_number,
    (hash(a.name_id, a.grid_x, a.grid_y, a.grid_z, a.block_x, a.block_y, a.block_z, a.registers_per_thread,
        a.shared_memory_bytes, a.size_bytes) >> 1)::BIGINT AS launch,
    coalesce(c.call_id, -1)::BIGINT AS call_id, a.attribution = 'before_window' AS is_before,
    CASE WHEN a.operator_id IS NULL OR a.attribution = 'graph' THEN -1 - a.activity_id ELSE a.operator_id END::BIGINT AS member
FROM device_activities a
JOIN early e ON e.trace_id = a.trace_id AND e.device IS NOT DISTINCT FROM a.device
    AND e.stream IS NOT DISTINCT FROM a.stream
LEFT JOIN activity_costs c USING (activity_id)
ORDER BY stream_number, a.start_ns, a.activity_id
