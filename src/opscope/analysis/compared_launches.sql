-- One row per operator call kind (name, overload, input shapes; NULL name: unattributed, by reason), kernel, trace and
-- step (NULL: in none): launches and their device time in ns. Reads device_activities, kernel_names, operators.
SELECT CASE WHEN o.operator_id IS NOT NULL THEN coalesce(o.name, '') END AS operator, a.attribution,
    o.overload, o.input_shapes::VARCHAR AS input_shapes, n.name AS kernel, a.kind, a.trace_id, a.step,
    count(*) AS launches, sum(a.duration_ns)::BIGINT AS time_ns
FROM device_activities a
JOIN kernel_names n USING (name_id)
LEFT JOIN operators o USING (operator_id)
GROUP BY ALL
ORDER BY ALL
