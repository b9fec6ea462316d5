-- One row per distinct call asked for (parameter: list of call ids): the operator (NULL for launches of none), its
-- arguments as recorded, its calls, their device activities, and what one call must do at least. Times in ns, sizes in
-- bytes. Reads call_costs, activity_costs.
SELECT c.call_id, CASE WHEN c.attribution IS NULL THEN c.name END AS operator, c.overload,
    c.input_shapes::VARCHAR AS shapes, c.input_types::VARCHAR AS types, c.concrete_inputs::VARCHAR AS concrete,
    c.attribution, c.calls, a.activities, c.flop_count, c.flop_source, c.read_bytes, c.written_bytes, c.data_type, c.evidence, c.reason
FROM call_costs c
JOIN (SELECT call_id, count(*) AS activities FROM activity_costs GROUP BY call_id) a USING (call_id)
WHERE c.call_id IN (SELECT unnest(?::INTEGER[]))
