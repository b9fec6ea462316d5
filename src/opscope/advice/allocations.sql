-- One row per function of the driver that allocates or frees memory: its calls within steps, the most steps of one
-- trace that have some, host time in ns, their ids. Parameters: steps to leave out, as trace and number; these functions.
-- Reads runtime_calls.
SELECT name, sum(calls)::BIGINT AS calls, max(steps) AS steps, sum(duration_ns)::BIGINT AS duration_ns,
    flatten(list(call_ids)) AS call_ids
FROM (
    SELECT trace_id, name, count(*) AS calls, count(DISTINCT step) AS steps, sum(duration_ns) AS duration_ns,
        list(runtime_call_id) AS call_ids
    FROM runtime_calls
    WHERE step IS NOT NULL AND NOT list_contains($1::BIGINT[][], [trace_id, step]) AND list_contains($2::VARCHAR[], name)
    GROUP BY trace_id, name)
GROUP BY name
ORDER BY duration_ns DESC, name
