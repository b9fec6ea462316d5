-- One row per operator call asked for (parameter: list of operator ids): its arguments as recorded, and what
-- torch.compile wrote on it. Reads operators, triton_launches.
SELECT o.operator_id, coalesce(o.name, '') AS name, o.input_shapes::VARCHAR AS shapes, o.input_types::VARCHAR AS types,
    o.input_strides::VARCHAR AS strides, o.concrete_inputs::VARCHAR AS concrete, any_value(t.kernel_kwargs) AS kernel_kwargs
FROM operators o LEFT JOIN triton_launches t USING (operator_id)
WHERE o.operator_id IN (SELECT unnest(?::BIGINT[]))
GROUP BY ALL
