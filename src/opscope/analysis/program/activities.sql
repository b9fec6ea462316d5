-- One row per device activity: its operator and the thread and time of its launch call (-1: none), its duration in
-- ns, whether it is a kernel. Reads device_activities, runtime_calls.
SELECT a.activity_id, a.trace_id::BIGINT AS trace_id, coalesce(a.operator_id, -1) AS operator_id,
    coalesce(c.thread_id, -1)::BIGINT AS call_thread, coalesce(c.start_ns, -1) AS call_start_ns,
    a.duration_ns, a.kind = 'kernel' AS is_kernel
FROM device_activities a LEFT JOIN runtime_calls c USING (runtime_call_id)
