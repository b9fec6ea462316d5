-- One row per communication kernel with a recorded launch, by trace and order of launch; what is known of its collective.
-- Parameter: name ids of communication kernels. Reads device_activities, runtime_calls, collectives.
SELECT a.trace_id, n.name AS kernel, a.step, a.duration_ns, c.name AS collective,
    nullif(concat_ws(' ', c.group_name, c.group_ranks), '') AS members, c.sequence, c.in_element_count
FROM device_activities a
JOIN kernel_names n USING (name_id)
JOIN runtime_calls r USING (runtime_call_id)
LEFT JOIN collectives c ON c.activity_id = a.activity_id AND c.side = 'device'
WHERE list_contains(?::INTEGER[], a.name_id)
ORDER BY a.trace_id, r.start_ns, a.start_ns, a.activity_id
