-- One row per source (api, kernel, memory, size) and name: how many, and sum, mean, median, extremes and sample
-- standard deviation of its values: durations in ns, for `size` bytes.
-- Parameters: name ids, and the name each is reported under. Reads runtime_calls, device_activities.
WITH labels AS (SELECT unnest(?::INTEGER[]) AS name_id, unnest(?::VARCHAR[]) AS label),
activities AS (
    SELECT a.kind, coalesce(l.label, '') AS label, a.duration_ns, a.size_bytes
    FROM device_activities a LEFT JOIN labels l USING (name_id)
),
samples AS (
    SELECT 'api' AS source, coalesce(name, '') AS label, duration_ns AS value FROM runtime_calls
    UNION ALL
    SELECT CASE kind WHEN 'kernel' THEN 'kernel' ELSE 'memory' END, label, duration_ns FROM activities
    UNION ALL
    SELECT 'size', label, size_bytes FROM activities WHERE kind <> 'kernel' AND size_bytes IS NOT NULL
)
SELECT source, label, count(*) AS instances, sum(value)::DOUBLE AS total, avg(value) AS mean, median(value) AS median,
    min(value) AS least, max(value) AS most, coalesce(stddev_samp(value), 0) AS deviation
FROM samples GROUP BY ALL ORDER BY source, total DESC, label
