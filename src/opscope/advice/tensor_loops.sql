-- One row per loop over tensors in each step: outermost pointwise operators one behind the other, of many shapes and few
-- names, outside of Optimizer.step: averages of weights, norms of gradients, updates written by hand. Names, launches,
-- shapes, time on the device in ns, where on the host it lies, ids of the operators. Parameter: traces and numbers of
-- steps to leave out. Reads operators.
WITH outermost AS (
        SELECT trace_id, thread_id, step, operator_id, name, input_shapes, start_ns, duration_ns, total_device_ns,
            regexp_matches(name, '^aten::(add|addcdiv|addcmul|copy|div|lerp|linalg_vector_norm|mul|neg|norm|pow|sqrt'
                || '|square|sub|sum)_?$') AS is_pointwise
        FROM operators
        WHERE parent_id IS NULL AND starts_with(name, 'aten::') AND step IS NOT NULL
            AND NOT list_contains($1::BIGINT[][], [trace_id, step])),
    numbered AS (
        SELECT *, sum((NOT is_pointwise)::INTEGER)
            OVER (PARTITION BY trace_id, thread_id, step ORDER BY operator_id) AS loop
        FROM outermost)
SELECT list(DISTINCT name ORDER BY name) AS names, count(*) AS launches, count(DISTINCT input_shapes) AS shapes,
    sum(total_device_ns)::BIGINT AS device_ns, thread_id, min(start_ns) AS start_ns,
    max(start_ns + duration_ns) AS end_ns, list(operator_id) AS operator_ids
FROM numbered
WHERE is_pointwise AND total_device_ns > 0
GROUP BY trace_id, thread_id, step, loop
