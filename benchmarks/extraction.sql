-- What each of some operators (parameter) launched in order, how long that took and when it began; the same of launches of
-- Triton kernels by the program itself; and the kernels of neither.
SELECT o.operator_id, sum(a.duration_ns),
    list((k.name, [grid_x, grid_y, grid_z], [block_x, block_y, block_z]) ORDER BY a.start_ns), min(a.start_ns)
FROM operators o JOIN device_activities a ON a.trace_id = o.trace_id AND a.kind = 'kernel'
    AND a.operator_id BETWEEN o.operator_id AND o.last_descendant_id
JOIN kernel_names k USING (name_id)
WHERE list_contains($1, o.operator_id) GROUP BY ALL;
SELECT activity_id, duration_ns, [(name, [grid_x, grid_y, grid_z], [block_x, block_y, block_z])], start_ns
FROM device_activities JOIN kernel_names USING (name_id) WHERE list_contains($1, activity_id);
SELECT start_ns, duration_ns FROM device_activities a WHERE kind = 'kernel' AND NOT list_contains($2, activity_id)
    AND NOT EXISTS (FROM operators o WHERE o.trace_id = a.trace_id AND list_contains($1, o.operator_id)
        AND a.operator_id BETWEEN o.operator_id AND o.last_descendant_id)
