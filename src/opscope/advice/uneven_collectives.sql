-- One row per kernel of collectives of one size: its name, median and longest time, and what is over the median of all in
-- ns. As many bytes take as long, so that is waiting. Most of it first.
-- Reads device_activities, kernel_names, operators, collectives.
WITH timed AS (
    SELECT k.name, a.duration_ns, o.input_shapes, c.data_type, c.in_element_count, c.out_element_count, c.group_size
    FROM device_activities a JOIN kernel_names k USING (name_id)
        LEFT JOIN operators o ON o.operator_id = a.operator_id LEFT JOIN collectives c ON c.activity_id = a.activity_id
    WHERE contains(k.name, 'ccl')
        AND (c.in_element_count IS NOT NULL OR regexp_matches(o.input_shapes::VARCHAR, '^\[\[.*\d')))
SELECT name, quantile_disc(duration_ns, 0.5) AS median_ns, max(duration_ns),
    list_sum(list_transform(list(duration_ns), lambda ns: greatest(0, ns - median_ns)))::BIGINT AS excess_ns
FROM timed GROUP BY ALL ORDER BY excess_ns DESC
