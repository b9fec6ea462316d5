-- One row per stretch of a launching thread in which it waited for data or slept, by what it is called.
-- Parameters: the threads, and the names of frames that load and that sleep. Reads operators, annotations, frames.
SELECT operator_id AS id, thread_id, true AS is_loading, start_ns, start_ns + duration_ns AS end_ns, name
FROM operators WHERE name LIKE 'enumerate(DataLoader)#%' AND list_contains($threads, thread_id)
UNION ALL
SELECT annotation_id, thread_id, true, start_ns, start_ns + duration_ns, name
FROM annotations WHERE side = 'host' AND name LIKE 'enumerate(DataLoader)#%' AND list_contains($threads, thread_id)
UNION ALL
SELECT frame_id, thread_id, list_contains($loading, name), start_ns, start_ns + duration_ns, name
FROM frames
WHERE (list_contains($loading, name) OR list_contains($asleep, name)) AND list_contains($threads, thread_id)
