-- One row per kind of copy kernel within a device: the operator that copied, its ancestors, what it copied.
-- Ids of the copies, and of the outermost operators that only pass them on;
-- calls, device time, and time on the host of the operators that only pass the
-- copy on, in ns. Reads operators, device_activities,
-- kernel_provenance.
WITH called AS NOT MATERIALIZED (
        SELECT operator_id, parent_id, name, input_shapes, input_types, duration_ns,
            name IN ('aten::clone', 'aten::contiguous', 'aten::_to_copy', 'aten::to', 'aten::copy_') AS is_passing
        FROM operators),
    copy_names AS (
        SELECT name_id FROM kernel_provenance WHERE family IN ('copy', 'transpose')),
    launched AS (
        SELECT a.operator_id, sum(duration_ns) AS device_ns
        FROM device_activities a JOIN copy_names USING (name_id)
        WHERE operator_id IS NOT NULL GROUP BY a.operator_id)
SELECT o.name, p.name AS parent, g.name AS grandparent, h.name AS ancestor, o.input_shapes AS shapes,
    o.input_types AS types, list(o.operator_id) AS operator_ids,
    list(CASE WHEN NOT coalesce(p.is_passing, false) THEN o.operator_id
        WHEN NOT coalesce(g.is_passing, false) THEN p.operator_id
        ELSE g.operator_id END) AS outer_ids, count(*) AS calls, sum(device_ns)::BIGINT AS device_ns,
    sum(CASE WHEN NOT coalesce(p.is_passing, false) THEN o.duration_ns
        WHEN NOT coalesce(g.is_passing, false) THEN p.duration_ns
        ELSE g.duration_ns END)::BIGINT AS host_ns
FROM launched JOIN called o USING (operator_id)
LEFT JOIN called p ON p.operator_id = o.parent_id
LEFT JOIN called g ON g.operator_id = p.parent_id
LEFT JOIN called h ON h.operator_id = g.parent_id
WHERE o.is_passing
GROUP BY ALL
ORDER BY device_ns DESC, o.name, shapes
