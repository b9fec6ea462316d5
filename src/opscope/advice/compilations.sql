-- One row: compilations by torch.compile within steps: how many, in how many steps, host time in ns, their operators, their ids.
-- Parameter: steps to leave out, as trace and number. Reads operators, annotations, steps.
WITH compiles AS (
        SELECT operator_id, name, step, duration_ns FROM operators
        WHERE step IS NOT NULL AND NOT list_contains($1::BIGINT[][], [trace_id, step]) AND is_outermost AND regexp_full_match(name,
            '(entire_frame_compile|entire_backward_compile|_compile\.(<locals>\.)?compile_inner)( \(dynamo_timed\))?')),
    by_name AS (
        SELECT name, count(*) AS calls, count(DISTINCT step) AS steps, sum(duration_ns)::BIGINT AS duration_ns,
            list(operator_id) AS operator_ids
        FROM compiles GROUP BY name ORDER BY duration_ns DESC, name LIMIT 1)
SELECT calls, steps, duration_ns, operator_ids, (
        SELECT list(DISTINCT regexp_extract(a.name, 'compile_id=([0-9!/]+)', 1) ORDER BY 1)
        FROM annotations a JOIN steps s ON s.trace_id = a.trace_id
            AND a.start_ns >= s.start_ns AND a.start_ns < s.start_ns + s.duration_ns
        WHERE a.side = 'host' AND starts_with(a.name, 'entire_frame_compile_data')) AS compile_ids
FROM by_name
