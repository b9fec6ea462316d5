-- One row per frame that work is charged to: functions of the program, calls it made from known lines, calls of
-- modules; and the calls that run a backward pass. What does not apply is -1. Times in ns. `program_functions`
-- (name, function_index) and `program_calls` (trace_id, start_ns, line) are given. Reads frames.
SELECT f.frame_id, f.trace_id, f.thread_id::BIGINT AS thread, f.start_ns, f.duration_ns,
    coalesce(f.python_id, f.frame_id) AS sequence, coalesce(f.module_id, -1) AS module_id,
    coalesce(p.function_index, -1) AS function_index,
    -- A time alone tells which call is meant only where it is the start of one.
    coalesce(CASE WHEN count(c.line) OVER (PARTITION BY c.trace_id, c.start_ns) = 1 THEN c.line END, -1) AS line,
    coalesce(starts_with(f.name, '<built-in method run_backward '), false) AS is_backward_call
FROM frames f
LEFT JOIN program_functions p ON p.name = f.name
LEFT JOIN program_calls c ON c.trace_id = f.trace_id AND c.start_ns = f.start_ns
WHERE f.module_id IS NOT NULL OR p.function_index IS NOT NULL OR c.line IS NOT NULL
    OR starts_with(f.name, '<built-in method run_backward ')
