-- One row per (operator, kernel) asked for: the place, from 0, of the kernel's longest launch under the operator among
-- all launches, in the order they began, of the kernels that a filter of ncu cannot tell from it.
-- Parameters: operators, kernels and the alike names, pair by pair. Reads device_activities, kernel_names, operators.
WITH pairs AS (
    SELECT unnest(?::VARCHAR[]) AS operator, unnest(?::VARCHAR[]) AS kernel, unnest(?::VARCHAR[]) AS alike
),
longest AS (
    SELECT p.operator, p.kernel, arg_max(a.start_ns, (a.duration_ns, -a.activity_id)) AS start_ns,
        arg_max(a.activity_id, (a.duration_ns, -a.activity_id)) AS activity_id
    FROM (SELECT DISTINCT operator, kernel FROM pairs) p
    JOIN kernel_names n ON n.name = p.kernel AND n.kind = 'kernel'
    JOIN device_activities a USING (name_id)
    JOIN operators o ON o.operator_id = a.operator_id AND o.name = p.operator
    GROUP BY ALL
)
SELECT l.operator, l.kernel, count(*) FILTER (WHERE (a.start_ns, a.activity_id) < (l.start_ns, l.activity_id)) AS launch_index
FROM longest l
JOIN pairs p USING (operator, kernel)
JOIN kernel_names n ON n.name = p.alike AND n.kind = 'kernel'
JOIN device_activities a USING (name_id)
GROUP BY l.operator, l.kernel
