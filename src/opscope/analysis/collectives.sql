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
-- What a device did in intervals of its trace's time, cut to them: by operator, else by kernel. Parameters: lists of the
-- intervals' place, trace, device, start and end, and name ids of communication kernels.
-- Reads device_activities, operators, kernel_names.
WITH intervals AS (SELECT unnest(?::INTEGER[]) AS place, unnest(?::INTEGER[]) AS trace_id, unnest(?::INTEGER[]) AS device,
    unnest(?::BIGINT[]) AS start_ns, unnest(?::BIGINT[]) AS end_ns)
SELECT i.place, coalesce(o.name, n.name) AS name, greatest(a.start_ns, i.start_ns) AS start_ns,
    least(a.start_ns + a.duration_ns, i.end_ns) AS end_ns
FROM intervals i JOIN device_activities a ON a.trace_id = i.trace_id AND a.device = i.device
    AND a.start_ns < i.end_ns AND a.start_ns + a.duration_ns > i.start_ns
JOIN kernel_names n USING (name_id) LEFT JOIN operators o USING (operator_id)
WHERE NOT list_contains(?::INTEGER[], a.name_id)
ORDER BY i.place, a.start_ns, a.activity_id

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
