-- :name inside
-- One row per runtime call of the list that is the first parameter, if it lies within what a graph would hold of its
-- step: id; of a copy that its operator then waits for, the first. Copies of inputs before the first kernels and numbers
-- asked for behind the last are outside of it.
-- Parameters: calls, steps to leave out, the share of a step's launches that each edge may have.
-- Reads runtime_calls, device_activities.
WITH launches AS (
        SELECT r.trace_id, r.step, r.start_ns
        FROM device_activities a JOIN runtime_calls r USING (runtime_call_id)
        WHERE a.kind = 'kernel' AND NOT coalesce(list_contains($2::BIGINT[][], [r.trace_id, r.step]), false)),
    parts AS (
        SELECT trace_id, step, quantile_disc(start_ns, $3) AS first_ns, quantile_disc(start_ns, 1 - $3) AS last_ns
        FROM launches WHERE step IS NOT NULL OR NOT EXISTS (FROM launches WHERE step IS NOT NULL) GROUP BY ALL)
SELECT min(r.runtime_call_id)
FROM runtime_calls r JOIN parts p ON p.trace_id = r.trace_id AND p.step IS NOT DISTINCT FROM r.step
WHERE list_contains($1::BIGINT[], r.runtime_call_id) AND r.start_ns > p.first_ns AND r.start_ns < p.last_ns
GROUP BY coalesce(r.operator_id, -r.runtime_call_id), regexp_matches(r.name, '(Malloc|MemAlloc|Free)')

-- :name differing
-- One row per operator that launches other kernels, or other inputs' kernels, in one step than in another of its trace:
-- its launches per step, most first. Parameter: steps to leave out, as trace and number.
-- Reads device_activities, runtime_calls, operators.
WITH launches AS (
        SELECT r.trace_id, r.step, o.name, o.input_shapes::VARCHAR AS shapes, a.name_id, count(*) AS launches
        FROM device_activities a JOIN runtime_calls r USING (runtime_call_id)
        LEFT JOIN operators o ON o.operator_id = a.operator_id
        WHERE a.kind = 'kernel' AND r.step IS NOT NULL
            AND NOT list_contains($1::BIGINT[][], [r.trace_id, r.step])
        GROUP BY ALL),
    traces AS (SELECT trace_id, count(DISTINCT step) AS steps FROM launches GROUP BY trace_id),
    kinds AS (
        SELECT trace_id, name, sum(launches) AS launches,
            count(*) < any_value(steps) OR min(launches) < max(launches) AS differs
        FROM launches JOIN traces USING (trace_id) GROUP BY trace_id, name, shapes, name_id)
SELECT name AS operator, (sum(launches) / (SELECT sum(steps) FROM traces))::DOUBLE AS per_step
FROM kinds WHERE differs GROUP BY name ORDER BY per_step DESC, name

-- :name steady
-- Of all launches of kernels, the share that torch.compile's regions launch alike in each step, outside of graphs.
-- Parameter: steps to leave out. Reads device_activities, runtime_calls, operators.
WITH regions AS (
        SELECT operator_id, last_descendant_id FROM operators
        WHERE starts_with(name, 'Torch-Compiled Region') OR name = 'CompiledFunctionBackward'),
    launches AS (
        SELECT r.step, a.name_id, coalesce(a.operator_id <= e.last_descendant_id, false) AS is_compiled,
            count(*) AS launches
        FROM device_activities a JOIN runtime_calls r USING (runtime_call_id)
        ASOF LEFT JOIN regions e ON a.operator_id >= e.operator_id
        WHERE a.kind = 'kernel' AND r.step IS NOT NULL AND coalesce(a.graph_id, 0) = 0
            AND NOT list_contains($1::BIGINT[][], [r.trace_id, r.step])
        GROUP BY ALL),
    kinds AS (
        SELECT is_compiled, sum(launches) AS launches,
            count(*) = (SELECT count(DISTINCT step) FROM launches) AND min(launches) = max(launches) AS is_same
        FROM launches GROUP BY name_id, is_compiled)
SELECT sum(launches) FILTER (is_compiled AND is_same) / sum(launches) FROM kinds

-- :name growing
-- Calls of aten::cat per step that append one row, position or token to a cache, if caches of four lengths or more are
-- seen: a loop that generates. The list of inputs begins their recorded shapes.
-- Reads operators, steps.
WITH appended AS (
        SELECT TRY_CAST((input_shapes->'$[0][0]') AS BIGINT[]) AS held,
            TRY_CAST((input_shapes->'$[0][1]') AS BIGINT[]) AS added, count(*) AS calls
        FROM operators WHERE name = 'aten::cat' GROUP BY ALL),
    differing AS (
        SELECT *, list_filter(range(1, len(held) + 1), lambda place: held[place] <> added[place]) AS places
        FROM appended WHERE len(held) = len(added))
SELECT 'aten::cat' AS operator, sum(calls) / greatest(1, (SELECT count(*) FROM steps)) AS per_step FROM differing
WHERE len(places) = 1 AND added[places[1]] = 1 HAVING count(DISTINCT held[places[1]]) >= 4
