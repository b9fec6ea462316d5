-- One row: the place, from 0, of the longest launch of a kernel under an operator among all launches, in the order they
-- ran, of the kernels that a filter of ncu cannot tell from it (parameters: their names, the kernel, the operator or NULL
-- for any, the same again). Reads device_activities, kernel_names, operators.
WITH launches AS (
    SELECT n.name, o.name AS operator, a.duration_ns,
        row_number() OVER (ORDER BY a.start_ns, a.activity_id) - 1 AS launch_index
    FROM device_activities a
    JOIN kernel_names n USING (name_id)
    LEFT JOIN operators o USING (operator_id)
    WHERE a.kind = 'kernel' AND n.name IN (SELECT unnest(?::VARCHAR[]))
)
SELECT launch_index FROM launches
WHERE name = ? AND (?::VARCHAR IS NULL OR operator = ?)
ORDER BY duration_ns DESC, launch_index
LIMIT 1
