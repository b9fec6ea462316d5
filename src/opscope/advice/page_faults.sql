-- Pages of managed memory that come to a device while one of its kernels runs: how many copies, their time and bytes.
-- Reads device_activities, kernel_names.
SELECT count(*), coalesce(sum(c.duration_ns), 0)::BIGINT, coalesce(sum(c.size_bytes), 0)::BIGINT
FROM device_activities c JOIN kernel_names n USING (name_id)
ASOF JOIN (FROM device_activities WHERE kind = 'kernel') k
    ON c.trace_id = k.trace_id AND c.device = k.device AND c.start_ns >= k.start_ns
WHERE starts_with(n.name, 'Memcpy Unified HtoD') AND c.start_ns < k.start_ns + k.duration_ns
