-- One row per range that the program, or a library, named on one of the threads that are the parameter; steps are the
-- recorder's. Reads annotations.
SELECT annotation_id AS id, thread_id, start_ns, start_ns + duration_ns AS end_ns, name
FROM annotations WHERE side = 'host' AND name NOT LIKE 'ProfilerStep#%' AND list_contains(?::INTEGER[], thread_id)
