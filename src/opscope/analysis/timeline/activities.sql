-- One row per device activity, by trace, device and start: when, its name, launch call and step (-1: none).
-- Reads device_activities.
SELECT trace_id, device, start_ns, start_ns + duration_ns AS end_ns, name_id,
    coalesce(runtime_call_id, -1) AS call_id, attribution = 'before_window' AS is_early, kind = 'kernel' AS is_kernel,
    coalesce(step, -1)::BIGINT AS step
FROM device_activities WHERE device IS NOT NULL
ORDER BY trace_id, device, start_ns, activity_id
