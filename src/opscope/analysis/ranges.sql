-- One row per annotation among `wanted_ranges` (annotation_id, group_id): its group, host time in ns, and of the
-- activities launched inside it on its thread: how many kernels, device time in ns, and calls of attention operators or
-- launches of attention kernels (?: their name_ids), by which layers are counted. An activity launched inside
-- several is counted to the innermost. Reads annotations, runtime_calls, device_activities, wanted_ranges.
WITH launched AS (
    SELECT a.activity_id, a.duration_ns, a.kind, a.name_id,
        arg_max(w.annotation_id, (n.start_ns, -n.duration_ns, w.annotation_id)) AS annotation_id
    FROM wanted_ranges w
    JOIN annotations n USING (annotation_id)
    JOIN runtime_calls r ON r.trace_id = n.trace_id AND r.thread_id = n.thread_id
        AND r.start_ns >= n.start_ns AND r.start_ns < n.start_ns + n.duration_ns
    JOIN device_activities a USING (runtime_call_id)
    GROUP BY ALL
)
SELECT w.annotation_id, w.group_id, n.duration_ns::BIGINT AS host_ns,
    count(l.activity_id) FILTER (WHERE l.kind = 'kernel') AS kernels,
    coalesce(sum(l.duration_ns), 0)::BIGINT AS device_ns,
    count(l.activity_id) FILTER (WHERE l.name_id IN (SELECT unnest(?::INTEGER[]))) AS attention_launches
FROM wanted_ranges w
JOIN annotations n USING (annotation_id)
LEFT JOIN launched l ON l.annotation_id = w.annotation_id
GROUP BY ALL ORDER BY w.annotation_id
