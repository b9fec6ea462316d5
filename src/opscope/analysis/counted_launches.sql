-- One row per launch of the kernels asked for (parameter: list of names), in the order they ran: the kernel's name, its
-- geometry, its time in ns, its step, the distinct call it belongs to, and whether its launch was recorded, without which
-- the call is not the operator's. Reads device_activities, kernel_names, activity_costs.
SELECT n.name,
    CASE WHEN a.grid_x + a.grid_y + a.grid_z IS NOT NULL THEN [a.grid_x, a.grid_y, a.grid_z] END AS grid,
    CASE WHEN a.block_x + a.block_y + a.block_z IS NOT NULL THEN [a.block_x, a.block_y, a.block_z] END AS block,
    a.duration_ns, a.step, c.call_id,
    a.attribution NOT IN ('before_window', 'no_launch_record', 'no_correlation') AS is_launch_recorded
FROM device_activities a
JOIN kernel_names n USING (name_id)
JOIN activity_costs c USING (activity_id)
WHERE a.kind = 'kernel' AND n.name IN (SELECT unnest(?::VARCHAR[]))
ORDER BY a.start_ns, a.activity_id
