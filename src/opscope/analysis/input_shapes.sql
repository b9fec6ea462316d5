-- One row per operator name and distinct input shapes, most frequent first; at most three per name. Reads operators.
SELECT name, input_shapes, calls FROM (
    SELECT coalesce(name, '') AS name, input_shapes::VARCHAR AS input_shapes, count(*) AS calls
    FROM operators WHERE input_shapes IS NOT NULL GROUP BY ALL)
QUALIFY row_number() OVER (PARTITION BY name ORDER BY calls DESC, input_shapes) <= 3
ORDER BY name, calls DESC, input_shapes
