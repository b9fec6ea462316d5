-- One row per place in one kind of run: pointwise operators that follow each other on a thread, optimizer steps left
-- out. `run` numbers the kinds; calls and device time in ns of the operator at that place, and the sum of its starts on
-- the host in ns, from the start of the run; ids of the operators in the order of the runs.
-- Reads operators, device_activities, kernel_provenance, annotations.
WITH pointwise_names AS (
        SELECT name_id FROM kernel_provenance
        WHERE family IN ('elementwise', 'activation', 'gated_activation', 'compare', 'masked_fill', 'dropout')
            OR (family = 'copy' AND coalesce((fields ->> 'variant'), '') <> 'strided')),
    launched AS (
        SELECT operator_id, count(*) AS launches, count(p.name_id) AS pointwise
        FROM device_activities a LEFT JOIN pointwise_names p USING (name_id)
        WHERE operator_id IS NOT NULL GROUP BY operator_id),
    optimizer_ranges AS (
        SELECT thread_id, start_ns, max(end_ns) OVER (PARTITION BY thread_id ORDER BY start_ns) AS end_ns FROM (
            SELECT thread_id, start_ns, start_ns + duration_ns AS end_ns FROM annotations
            WHERE side = 'host' AND starts_with(name, 'Optimizer.')
            UNION ALL
            SELECT thread_id, start_ns, start_ns + duration_ns FROM operators WHERE starts_with(name, 'Optimizer.'))),
    leaves AS (
        SELECT o.operator_id, o.thread_id, o.start_ns,
            launches = 1 AND pointwise = 1 AND o.start_ns >= coalesce(r.end_ns, o.start_ns) AS is_pointwise
        FROM operators o JOIN launched USING (operator_id)
        ASOF LEFT JOIN optimizer_ranges r ON r.thread_id = o.thread_id AND o.start_ns >= r.start_ns),
    islands AS (
        SELECT *, row_number() OVER (PARTITION BY thread_id ORDER BY operator_id)
                - row_number() OVER (PARTITION BY thread_id, is_pointwise ORDER BY operator_id) AS island
        FROM leaves),
    members AS (
        SELECT *, row_number() OVER (PARTITION BY thread_id, island ORDER BY operator_id) AS place,
            count(*) OVER (PARTITION BY thread_id, island) AS length,
            start_ns - min(start_ns) OVER (PARTITION BY thread_id, island) AS begins_ns
        FROM islands WHERE is_pointwise),
    described AS (
        SELECT m.thread_id, island, place, begins_ns, o.operator_id, o.name, o.input_shapes, o.input_types, o.self_device_ns
        FROM members m JOIN operators o USING (operator_id) WHERE length > 1),
    runs AS (
        SELECT thread_id, island, hash(list(hash(name, input_shapes) ORDER BY place)) AS run
        FROM described GROUP BY thread_id, island)
SELECT dense_rank() OVER (ORDER BY run) AS run, place, any_value(name) AS name, any_value(input_shapes) AS shapes,
    any_value(input_types) AS types, count(*) AS calls, sum(self_device_ns)::BIGINT AS device_ns,
    sum(begins_ns)::BIGINT AS begins_ns, list(operator_id ORDER BY thread_id, island) AS operator_ids
FROM described JOIN runs USING (thread_id, island)
GROUP BY runs.run, place
ORDER BY run, place
