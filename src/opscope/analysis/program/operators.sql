-- One row per operator, in no order: where and when it ran, its parent (-1: none), and whether autograd's engine ran
-- it. Times in ns. Reads operators.
SELECT operator_id, trace_id::BIGINT AS trace_id, thread_id::BIGINT AS thread, start_ns, duration_ns,
    coalesce(parent_id, -1) AS parent_id, depth::BIGINT AS depth,
    coalesce(forward_thread_id > 0, false) OR coalesce(starts_with(name, 'autograd::engine::'), false) AS is_backward
FROM operators
