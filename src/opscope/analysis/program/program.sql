-- :name activities
-- One row per device activity: its operator and the thread and time of its launch call (-1: none), its duration in
-- ns, whether it is a kernel. Reads device_activities, runtime_calls.
SELECT a.activity_id, a.trace_id::BIGINT AS trace, coalesce(a.operator_id, -1) AS operator,
    coalesce(c.thread_id, -1)::BIGINT AS call_thread, coalesce(c.start_ns, -1) AS call_start_ns,
    a.duration_ns, a.kind = 'kernel' AS is_kernel
FROM device_activities a LEFT JOIN runtime_calls c USING (runtime_call_id)

-- :name host_work
-- One row per operator, as `activities` has them: its self time in ns on the CPU, at its start. Reads operators.
SELECT operator_id AS activity_id, trace_id::BIGINT AS trace, operator_id AS operator, thread_id::BIGINT AS call_thread,
    start_ns AS call_start_ns, self_cpu_ns::BIGINT AS duration_ns, false AS is_kernel
FROM operators

-- :name first_calls
-- One row per trace: start in ns of the first Python call that was made while recording. Frames that were already
-- open are noted first, each thread's from the outermost in, so they form a chain (torch/csrc/autograd/profiler_python.cpp
-- notes up to 128 a thread); the first frame whose caller is not the one before it was really called. Reads frames.
SELECT trace_id, min(start_ns) AS start_ns FROM (
    SELECT trace_id, start_ns, parent_python_id,
        lag(python_id) OVER (PARTITION BY thread_id ORDER BY start_ns, python_id) AS previous_python_id
    FROM frames WHERE python_id <= 8192)
WHERE parent_python_id IS DISTINCT FROM previous_python_id
GROUP BY trace_id

-- :name frames
-- One row per frame that work is charged to: functions of the program, calls it made from known lines, calls of
-- modules; and the calls that run a backward pass. What does not apply is -1. Times in ns. `program_functions`
-- (name, function_index) and `program_calls` (trace_id, start_ns, line) are given. Reads frames.
SELECT f.frame_id, f.trace_id AS trace, f.thread_id::BIGINT AS thread, f.start_ns, f.start_ns + f.duration_ns AS end_ns,
    coalesce(f.python_id, f.frame_id) AS sequence, coalesce(f.module_id, -1) AS module_id,
    coalesce(p.function_index, -1) AS function,
    -- A time alone tells which call is meant only where it is the start of one.
    coalesce(CASE WHEN count(c.line) OVER (PARTITION BY c.trace_id, c.start_ns) = 1 THEN c.line END, -1) AS line,
    coalesce(starts_with(f.name, '<built-in method run_backward '), false) AS is_backward_call
FROM frames f
LEFT JOIN program_functions p ON p.name = f.name
LEFT JOIN program_calls c ON c.trace_id = f.trace_id AND c.start_ns = f.start_ns
WHERE f.module_id IS NOT NULL OR p.function_index IS NOT NULL OR c.line IS NOT NULL
    OR starts_with(f.name, '<built-in method run_backward ')

-- :name functions
-- One row per distinct name of a recorded Python function (no builtin, no module call), and whether it was the
-- outermost of a thread. Reads frames.
SELECT name, bool_or(parent_python_id IS NULL) AS is_outermost
FROM frames WHERE module_id IS NULL AND NOT starts_with(name, '<built-in ')
GROUP BY name ORDER BY name

-- :name links
-- One row per backward operator: the forward operator it differentiates. The engine's own range around a backward
-- operator counts as it: there it reduces and sums the gradients. Of several the first that ran: ids follow the order
-- of threads in the file. Reads autograd_links, operators.
SELECT backward_id, arg_min(forward_operator_id, (f.start_ns, forward_operator_id)) AS forward_id FROM (
    SELECT backward_operator_id AS backward_id, forward_operator_id FROM autograd_links
    UNION ALL
    SELECT p.operator_id, forward_operator_id
    FROM autograd_links JOIN operators b ON b.operator_id = backward_operator_id
    JOIN operators p ON p.operator_id = b.parent_id
    WHERE starts_with(p.name, 'autograd::engine::evaluate_function: '))
JOIN operators f ON f.operator_id = forward_operator_id
WHERE forward_operator_id <> backward_id
GROUP BY backward_id

-- :name operators
-- One row per operator, in no order: where and when it ran, its parent (-1: none), and whether autograd's engine ran
-- it. Times in ns. Reads operators.
SELECT operator_id, trace_id AS trace, thread_id AS thread, start_ns, duration_ns, coalesce(parent_id, -1) AS parent_id, depth,
    coalesce(forward_thread_id > 0, false) OR coalesce(starts_with(name, 'autograd::engine::'), false) AS is_backward
FROM operators

-- :name stack_activities
-- One row per device activity: its name and, where it has no operator, why. Reads device_activities.
SELECT activity_id, name_id::BIGINT AS name_id,
    CASE WHEN operator_id IS NULL THEN attribution ELSE '' END AS reason
FROM device_activities

-- :name stack_frames
-- One row per frame: where and when it was open. Times in ns. Reads frames.
SELECT frame_id, trace_id::BIGINT AS trace, thread_id::BIGINT AS thread, start_ns, start_ns + duration_ns AS end_ns,
    coalesce(python_id, frame_id) AS sequence, coalesce(module_id, -1) AS module_id, hash(coalesce(name, '')) AS name_hash
FROM frames WHERE {condition}
