-- One row per Python frame of the threads that are the parameter: when, and whether no other frame called it.
-- Reads frames.
SELECT frame_id AS id, thread_id, start_ns, start_ns + duration_ns AS end_ns, parent_python_id IS NULL AS is_outermost
FROM frames WHERE list_contains(?::INTEGER[], thread_id)
