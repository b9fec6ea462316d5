-- One row per operator that carries its Python stack as text (the oldest format), innermost frame first, separated by
-- semicolons. Reads operators.
SELECT operator_id, hash(call_stack) AS stack_hash FROM operators WHERE call_stack IS NOT NULL
