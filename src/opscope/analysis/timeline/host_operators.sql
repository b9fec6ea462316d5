-- One row per operator of the threads that are the parameter, by thread and start: when, whether no operator is around
-- it, whether its shapes were recorded. An NVTX range that owns device work says nothing of what its thread does; it
-- stands among the annotations too. Reads operators, annotations, traces.
WITH ranges AS (
    SELECT o.operator_id FROM operators o
    JOIN (SELECT a.thread_id, a.start_ns, a.duration_ns, a.name FROM annotations a JOIN traces t USING (trace_id)
        WHERE t.format = 'nsys') a
    ON a.thread_id = o.thread_id AND a.start_ns = o.start_ns AND a.duration_ns = o.duration_ns AND a.name = o.name
)
SELECT operator_id AS id, thread_id, start_ns, start_ns + duration_ns AS end_ns,
    depth = 0 OR parent_id IN (FROM ranges) AS is_outermost, input_shapes IS NOT NULL AS has_shapes
FROM operators WHERE list_contains(?::INTEGER[], thread_id) AND operator_id NOT IN (FROM ranges)
