-- One row per kind of launch that no operator's arguments describe: those from before the window that match no call,
-- outside operators, of CUDA graphs, and kernels that carry their own record of a collective. Launches, device time in ns,
-- and the activities (member_ids). `read_bytes` and `written_bytes` of copies and sets, per launch. Reads
-- device_activities, kernel_names, operators, collectives, transfers (name_id, reads, writes), activity_costs.
WITH communicated AS (
    SELECT activity_id, struct_pack(name := any_value(name), data_type := any_value(data_type),
        in_element_count := any_value(in_element_count), out_element_count := any_value(out_element_count),
        group_size := any_value(group_size)) AS collective
    FROM collectives WHERE activity_id IS NOT NULL GROUP BY activity_id
), launched AS (
    SELECT a.activity_id, a.duration_ns,
        CASE WHEN c.activity_id IS NOT NULL THEN coalesce(o.name, n.name) ELSE n.name END AS name,
        CASE WHEN a.operator_id IS NULL OR a.attribution = 'graph' THEN a.attribution END AS attribution,
        CASE WHEN t.reads IS NOT NULL THEN CASE WHEN t.reads THEN a.size_bytes ELSE 0 END END AS read_bytes,
        CASE WHEN t.writes IS NOT NULL THEN CASE WHEN t.writes THEN a.size_bytes ELSE 0 END END AS written_bytes,
        c.* EXCLUDE (activity_id)
    FROM device_activities a
    JOIN kernel_names n USING (name_id)
    LEFT JOIN transfers t USING (name_id)
    LEFT JOIN communicated c USING (activity_id)
    LEFT JOIN operators o USING (operator_id)
    WHERE (a.operator_id IS NULL OR a.attribution = 'graph' OR c.activity_id IS NOT NULL)
        AND a.activity_id NOT IN (SELECT activity_id FROM activity_costs)
)
SELECT l.* EXCLUDE (activity_id, duration_ns), count(*) AS calls, sum(l.duration_ns)::BIGINT AS self_device_ns,
    list(l.activity_id) AS member_ids
FROM launched l
GROUP BY ALL
