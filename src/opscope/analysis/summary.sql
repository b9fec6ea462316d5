-- :name totals
-- One row: times of all activities and operators in ns, and how many there are. Reads device_activities, operators,
-- set_aside, traces.
SELECT * FROM (
    SELECT coalesce(sum(duration_ns), 0)::BIGINT AS device_time_ns, count(*) FILTER (kind = 'kernel') AS kernel_launches,
        count(*) AS activity_count
    FROM device_activities
), (
    SELECT coalesce(sum(self_device_ns), 0)::BIGINT AS attributed_ns, coalesce(sum(self_cpu_ns), 0)::BIGINT AS cpu_time_ns,
        count(*) AS operator_calls
    FROM operators
), (SELECT coalesce(sum(duration_ns), 0)::BIGINT AS set_aside_ns FROM set_aside),
    (SELECT max(window_end_ns - window_start_ns) AS window_ns FROM traces)

-- :name devices
-- One row per device in use: what it is, and its times in ns as ingest found them. Reads devices, traces.
SELECT d.trace_id, rank, device, name, CASE WHEN compute_major IS NOT NULL THEN
    compute_major || '.' || compute_minor END AS compute_capability, sm_count, memory_bytes,
    span_ns, busy_ns, idle_ns, activity_count
FROM devices d JOIN traces USING (trace_id) WHERE activity_count > 0 ORDER BY d.trace_id, device

-- :name environments
-- One row per distinct environment that opscope's own recorder noted, as JSON. Reads metadata.
SELECT DISTINCT (value::JSON->'$.environment')::VARCHAR AS environment FROM metadata
WHERE key LIKE 'sidecar:%' AND environment IS NOT NULL ORDER BY 1

-- :name unattributed
-- One row per reason why activities have no operator: their time in ns. Reads device_activities.
SELECT attribution, sum(duration_ns)::BIGINT FROM device_activities
WHERE operator_id IS NULL GROUP BY attribution ORDER BY 2 DESC, 1

-- :name steps
-- One row per step: its duration, device time, kernels, and its operators' own CPU time; in ns. Reads steps, operators.
SELECT trace_id, step, duration_ns, device_ns, kernel_count, coalesce(cpu_ns, 0)
FROM steps LEFT JOIN (
    SELECT trace_id, step, sum(self_cpu_ns)::BIGINT AS cpu_ns FROM operators GROUP BY trace_id, step
) USING (trace_id, step)
ORDER BY trace_id, start_ns

-- :name annotation_kinds
-- One row per name of host annotations with … for numbers and hashes, the most frequent first. Reads annotations.
SELECT regexp_replace(name, '[A-Za-z0-9]*[0-9][A-Za-z0-9]{20,}|[0-9]+', '…', 'g') AS kind
FROM annotations WHERE side = 'host' AND name IS NOT NULL GROUP BY kind ORDER BY count(*) DESC, kind

-- :name counters
-- One row per kernel name and hardware counter: the samples that start within its launches, and their mean. Of each
-- stream the kernel that began last before a sample is looked at. Reads counters, device_activities, kernel_names.
WITH kernels AS (
    SELECT trace_id, device, coalesce(stream, -1) AS stream, start_ns, start_ns + duration_ns AS end_ns, name_id
    FROM device_activities WHERE kind = 'kernel'
), samples AS (
    SELECT * FROM counters JOIN (SELECT DISTINCT trace_id, device, stream FROM kernels) USING (trace_id, device)
)
SELECT n.name AS kernel, s.name AS counter, count(*) AS samples, avg(value) AS mean
FROM samples s ASOF JOIN kernels k ON s.trace_id = k.trace_id AND s.device = k.device AND s.stream = k.stream
    AND s.time_ns >= k.start_ns
JOIN kernel_names n USING (name_id) WHERE s.time_ns < k.end_ns
GROUP BY ALL ORDER BY 1, 2

-- :name graphs
-- One row per CUDA graph whose replays were recorded and are known alike, most device time (in ns) first.
-- Reads graph_replays.
SELECT graph, count(*) AS replays, max(activity_count) AS activities, sum(device_ns)::BIGINT AS device_ns, source, evidence,
    file, reason
FROM graph_replays GROUP BY ALL ORDER BY 4 DESC, 1, 5, 6
