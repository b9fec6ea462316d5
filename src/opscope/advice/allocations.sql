-- One row per function of the driver that allocates or frees memory: its calls within steps, the most steps of one
-- trace that have some, host time in ns, their ids. Parameters: steps to leave out, as trace and number; these functions.
-- Where no steps were recorded: of all calls, if half of what was taken is given back before the last was taken.
-- Reads runtime_calls, steps.
WITH calls AS (
    SELECT *, contains(name, 'Free') AS frees FROM runtime_calls WHERE list_contains($2::VARCHAR[], name)),
again AS (
    SELECT trace_id
    FROM (SELECT *, max(start_ns) FILTER (NOT frees) OVER (PARTITION BY trace_id) AS last_ns FROM calls)
    WHERE NOT EXISTS (FROM steps)
    GROUP BY trace_id
    HAVING 2 * count(*) FILTER (frees AND start_ns < last_ns) >= count(*) FILTER (NOT frees))
SELECT name, sum(calls)::BIGINT AS calls, max(steps) AS steps, sum(duration_ns)::BIGINT AS duration_ns,
    flatten(list(call_ids)) AS call_ids
FROM (
    SELECT trace_id, name, count(*) AS calls, count(DISTINCT step) AS steps, sum(duration_ns) AS duration_ns,
        list(runtime_call_id) AS call_ids
    FROM calls
    WHERE step IS NOT NULL AND NOT list_contains($1::BIGINT[][], [trace_id, step]) OR trace_id IN (FROM again)
    GROUP BY trace_id, name)
GROUP BY name
ORDER BY duration_ns DESC, name
