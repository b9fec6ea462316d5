-- One row per operator call kind (name, overload, input shapes), trace and step (NULL: in none): calls and their own CPU
-- time in ns. Reads operators.
SELECT coalesce(name, '') AS operator, overload, input_shapes::VARCHAR AS input_shapes, trace_id, step,
    count(*) AS calls, sum(self_cpu_ns)::BIGINT AS time_ns
FROM operators
GROUP BY ALL
ORDER BY ALL
