-- One row per operator name (NULL: unattributed), activity name and launch geometry: calls, times in ns, bytes.
-- `example_operator_id` is the operator call of the longest launch. Reads device_activities, kernel_names, operators.
SELECT CASE WHEN o.operator_id IS NOT NULL THEN coalesce(o.name, '') END AS operator, n.name, a.kind,
    CASE WHEN a.grid_x + a.grid_y + a.grid_z IS NOT NULL THEN [a.grid_x, a.grid_y, a.grid_z] END AS grid,
    CASE WHEN a.block_x + a.block_y + a.block_z IS NOT NULL THEN [a.block_x, a.block_y, a.block_z] END AS block,
    a.registers_per_thread, a.shared_memory_bytes, a.occupancy_estimate,
    count(*) AS calls, sum(a.duration_ns)::BIGINT AS total_ns,
    min(a.duration_ns) AS min_ns, max(a.duration_ns) AS max_ns, sum(a.size_bytes)::BIGINT AS size_bytes,
    arg_max(a.operator_id, (a.duration_ns, -a.activity_id)) AS example_operator_id
FROM device_activities a
JOIN kernel_names n USING (name_id)
LEFT JOIN operators o USING (operator_id)
GROUP BY ALL
ORDER BY total_ns DESC, n.name, calls DESC, grid
