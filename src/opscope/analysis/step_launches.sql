-- One row per kernel launch of the first recorded step of the first trace that launches kernels, or of the whole
-- recording if there are no steps, in the order they ran: name, geometry, time in ns. At most 20,000.
-- Reads device_activities, kernel_names.
WITH kernels AS (
    SELECT * FROM device_activities WHERE kind = 'kernel'
), first AS (
    SELECT trace_id, step FROM kernels WHERE step IS NOT NULL ORDER BY trace_id, step LIMIT 1
)
SELECT n.name,
    CASE WHEN a.grid_x + a.grid_y + a.grid_z IS NOT NULL THEN [a.grid_x, a.grid_y, a.grid_z] END AS grid,
    CASE WHEN a.block_x + a.block_y + a.block_z IS NOT NULL THEN [a.block_x, a.block_y, a.block_z] END AS block,
    a.duration_ns
FROM kernels a JOIN kernel_names n USING (name_id)
WHERE NOT EXISTS (FROM first) OR (a.trace_id, a.step) IN (SELECT (trace_id, step) FROM first)
ORDER BY a.start_ns, a.activity_id
LIMIT 20000
