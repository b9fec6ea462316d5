-- :name kernels
-- One row per communication kernel with a recorded launch, by trace and order of launch; what is known of its collective,
-- from the kernel itself, else from the operator that launched it. Parameter: name ids of communication kernels.
-- Reads device_activities, runtime_calls, collectives.
WITH host AS (SELECT * FROM collectives WHERE side = 'host' AND operator_id IS NOT NULL),
device AS (SELECT * FROM collectives WHERE side = 'device' AND activity_id IS NOT NULL)
SELECT a.trace_id, a.activity_id, n.name AS kernel, a.step, a.device, a.start_ns, a.duration_ns,
    coalesce(d.name, h.name) AS collective,
    nullif(concat_ws(' ', coalesce(d.group_name, h.group_name), coalesce(d.group_ranks, h.group_ranks)), '') AS members,
    coalesce(d.group_name, h.group_name) AS group_name,
    coalesce(d.group_description, h.group_description) AS group_description,
    coalesce(d.group_size, h.group_size) AS group_size,
    coalesce(d.sequence, h.sequence) AS sequence,
    coalesce(d.in_element_count, h.in_element_count) AS in_element_count,
    greatest(coalesce(d.in_element_count, h.in_element_count), coalesce(d.out_element_count, h.out_element_count))
        AS element_count,
    coalesce(d.data_type, h.data_type) AS data_type
FROM device_activities a
JOIN kernel_names n USING (name_id)
JOIN runtime_calls r USING (runtime_call_id)
LEFT JOIN device d ON d.activity_id = a.activity_id
LEFT JOIN host h ON h.operator_id = a.operator_id
WHERE list_contains(?::INTEGER[], a.name_id)
ORDER BY a.trace_id, r.start_ns, a.start_ns, a.activity_id

-- :name meanwhile
-- What a device did in intervals of its trace's time, in ns: by operator, else by kernel, NULL where it did nothing; the most
-- first. Parameters: lists of the intervals' place, trace, device, start and end, and name ids of communication kernels.
-- Reads device_activities, operators, kernel_names.
WITH intervals AS (SELECT unnest(?::INTEGER[]) AS place, unnest(?::INTEGER[]) AS trace_id, unnest(?::INTEGER[]) AS device,
    unnest(?::BIGINT[]) AS start_ns, unnest(?::BIGINT[]) AS end_ns
), busy AS (
    SELECT i.place, coalesce(o.name, n.name) AS name, greatest(a.start_ns, i.start_ns) AS start_ns,
        least(a.start_ns + a.duration_ns, i.end_ns) AS end_ns,
        row_number() OVER (PARTITION BY i.place ORDER BY a.start_ns, a.activity_id) AS position
    FROM intervals i JOIN device_activities a ON a.trace_id = i.trace_id AND a.device = i.device
        AND a.start_ns < i.end_ns AND a.start_ns + a.duration_ns > i.start_ns
    JOIN kernel_names n USING (name_id) LEFT JOIN operators o USING (operator_id)
    WHERE NOT list_contains(?::INTEGER[], a.name_id)
), fresh AS (
    SELECT place, greatest(0, end_ns - greatest(start_ns, coalesce(max(end_ns) OVER (PARTITION BY place ORDER BY position
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), start_ns))) AS ns
    FROM busy
), done AS (
    SELECT place, name, sum(end_ns - start_ns)::BIGINT AS ns, min(position) AS position FROM busy GROUP BY place, name
    UNION ALL
    SELECT i.place, NULL, i.end_ns - i.start_ns - coalesce(f.ns, 0)::BIGINT, NULL
    FROM intervals i LEFT JOIN (SELECT place, sum(ns) AS ns FROM fresh GROUP BY place) f USING (place)
)
SELECT place, name, ns FROM done WHERE ns > 0 ORDER BY place, ns DESC, position

-- :name beyond_others
-- One row per operator of one rank: its own time in a step on the device and on the host, in ns, and its calls, beyond the
-- median of the other ranks. Parameters: that trace, and of it and the others the ids and how many steps each has; steps
-- to leave out, as trace and number. Reads operators.
WITH ranks AS (SELECT unnest($2::INTEGER[]) AS trace_id, unnest($3::INTEGER[]) AS steps), spent AS (
    SELECT trace_id, name, sum(self_device_ns)::BIGINT AS device_ns, sum(self_cpu_ns)::BIGINT AS host_ns, count(*) AS calls
    FROM operators WHERE step IS NOT NULL AND NOT list_contains($4::BIGINT[][], [trace_id, step])
    GROUP BY trace_id, name
), per_step AS (
    SELECT late.name, r.trace_id = late.trace_id AS is_late, coalesce(s.device_ns, 0) / steps AS device_ns,
        coalesce(s.host_ns, 0) / steps AS host_ns, coalesce(s.calls, 0) / steps AS calls
    FROM spent late CROSS JOIN ranks r
    LEFT JOIN spent s ON s.trace_id = r.trace_id AND s.name IS NOT DISTINCT FROM late.name
    WHERE late.trace_id = $1
)
FROM (SELECT name, any_value(device_ns) FILTER (is_late) - median(device_ns) FILTER (NOT is_late) AS device_ns,
    any_value(host_ns) FILTER (is_late) - median(host_ns) FILTER (NOT is_late) AS host_ns,
    any_value(calls) FILTER (is_late) - median(calls) FILTER (NOT is_late) AS calls
FROM per_step GROUP BY name) ORDER BY -greatest(device_ns, host_ns), name

-- :name purpose
-- What the only process group is for: DistributedDataParallel names its forward so; tensors whose parts are on
-- several ranks sum them in a function of their own. Reads annotations and operators.
SELECT CASE
    WHEN EXISTS (SELECT 1 FROM annotations WHERE name = 'DistributedDataParallel.forward') THEN 'data'
    WHEN EXISTS (
        SELECT 1 FROM operators AS o JOIN operators AS p ON o.parent_id = p.operator_id
        WHERE o.name = '_c10d_functional::all_reduce' AND p.name = 'Redistribute'
    ) THEN 'tensor'
END

-- :name rank_steps
-- One row per step (NULL: none) and trace: rank, collectives, how often it clearly came last (a tenth of the transfer
-- before the first), and ns that its kernels waited and that those of others waited for it. Parameters: of each kernel of
-- a matched collective the collective's place, the trace, its rank, the step and the duration in ns.
WITH kernels AS (
    SELECT unnest($1::INTEGER[]) AS place, unnest($2::INTEGER[]) AS trace_id, unnest($3::INTEGER[]) AS rank,
        unnest($4::INTEGER[]) AS step, unnest($5::BIGINT[]) AS duration_ns
), compared AS (
    SELECT *, min(duration_ns) OVER of AS least_ns, max(duration_ns) OVER of AS most_ns,
        sum(duration_ns) OVER of - count(*) OVER of * min(duration_ns) OVER of AS awaited_ns,
        row_number() OVER (PARTITION BY place ORDER BY duration_ns, trace_id) = 1 AS is_last
    FROM kernels WINDOW of AS (PARTITION BY place)
)
SELECT trace_id, rank, step, count(*), count(*) FILTER (is_last AND most_ns - least_ns > 0.1 * least_ns),
    sum(duration_ns - least_ns)::BIGINT, coalesce(sum(awaited_ns) FILTER (is_last), 0)::BIGINT
FROM compared GROUP BY ALL ORDER BY step NULLS FIRST, trace_id

-- :name totals
-- One row per part of the matched collectives: ranks, calls, bytes of their messages, ns that kernels waited, ns from the
-- arrival of the last rank to the end, ns in which nothing else ran, which rank most often clearly came last and how
-- often, bytes per second of messages and on each link while data moved; NULL where one of them is unknown. Parameters: of
-- each kernel the collective's place and part, trace, rank, duration in ns, exposed ns, bytes of the message, bytes on a
-- link for each of these, and whether all of its ranks were recorded.
WITH kernels AS (
    SELECT unnest($1::INTEGER[]) AS place, unnest($2::INTEGER[]) AS part, unnest($3::INTEGER[]) AS trace_id,
        unnest($4::INTEGER[]) AS rank, unnest($5::BIGINT[]) AS duration_ns, unnest($6::BIGINT[]) AS exposed_ns,
        unnest($7::BIGINT[]) AS size_bytes, unnest($8::DOUBLE[]) AS factor, unnest($9::BOOLEAN[]) AS is_complete
), collectives AS (
    SELECT place, part, size_bytes, factor, sum(exposed_ns) AS exposed_ns,
        CASE WHEN is_complete THEN min(duration_ns) END AS transfer_ns,
        CASE WHEN is_complete THEN sum(duration_ns) - count(*) * min(duration_ns) END AS wait_ns,
        CASE WHEN is_complete AND max(duration_ns) - min(duration_ns) > 0.1 * min(duration_ns)
            THEN arg_min(rank, (duration_ns, trace_id)) END AS last_rank
    FROM kernels GROUP BY place, part, size_bytes, factor, is_complete
), lasts AS (
    SELECT part, arg_max(last_rank, (times, -last_rank)) AS last_rank, max(times) AS last_count
    FROM (SELECT part, last_rank, count(*) AS times FROM collectives WHERE last_rank IS NOT NULL GROUP BY ALL)
    GROUP BY part
), summed AS (
    SELECT part, count(*) AS calls, sum(exposed_ns)::BIGINT AS exposed_ns,
        CASE WHEN count(size_bytes) = count(*) THEN sum(size_bytes)::BIGINT END AS size_bytes,
        CASE WHEN count(transfer_ns) = count(*) THEN sum(transfer_ns)::BIGINT END AS transfer_ns,
        CASE WHEN count(wait_ns) = count(*) THEN sum(wait_ns)::BIGINT END AS wait_ns,
        CASE WHEN count(factor * size_bytes / nullif(transfer_ns, 0)) = count(*) THEN fsum(factor * size_bytes) END AS moved
    FROM collectives GROUP BY part
)
SELECT s.part, (SELECT count(DISTINCT trace_id) FROM kernels k WHERE k.part = s.part) AS ranks, calls, size_bytes,
    last_rank, coalesce(last_count, 0) AS last_count, wait_ns, transfer_ns, exposed_ns,
    size_bytes / nullif(transfer_ns, 0) * 1e9 AS algorithm_bytes_per_s, moved / nullif(transfer_ns, 0) * 1e9 AS bus_bytes_per_s
FROM summed s LEFT JOIN lasts USING (part) ORDER BY part
