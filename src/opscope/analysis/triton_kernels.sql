-- One row per kernel of which a launch by Triton or its source was recorded: what all its launches and sources agree on,
-- NULL where they differ or nothing is recorded. A launch belongs to a kernel of its operator and name.
-- `configurations`: JSON list of {kernel_kwargs, num_warps, num_stages, grid, calls, total_ns}, longest first. Times in
-- ns, `kernel_num_gb` in 1e9 bytes, per launch. Reads device_activities, kernel_names, triton_launches, kernel_sources.
WITH launched AS (
    SELECT a.name_id, a.duration_ns, l.* EXCLUDE (operator_id, trace_id)
    FROM device_activities a
    JOIN kernel_names n USING (name_id)
    JOIN triton_launches l ON l.operator_id = a.operator_id AND l.kernel_name = n.name
    WHERE a.kind = 'kernel'
), configured AS (
    SELECT name_id, kernel_kwargs, num_warps, num_stages, grid, count(*) AS calls, sum(duration_ns)::BIGINT AS total_ns
    FROM launched WHERE coalesce(kernel_kwargs, num_warps::VARCHAR, grid) IS NOT NULL GROUP BY ALL
), configurations AS (
    SELECT name_id, to_json(list({'kernel_kwargs': kernel_kwargs, 'num_warps': num_warps, 'num_stages': num_stages,
        'grid': grid, 'calls': calls, 'total_ns': total_ns} ORDER BY total_ns DESC, kernel_kwargs, grid)) AS configurations
    FROM configured GROUP BY name_id
), launches AS (
    SELECT name_id, count(kernel_file) AS named_files,
        CASE WHEN count(DISTINCT kernel_file) = 1 THEN any_value(kernel_file) END AS kernel_file,
        CASE WHEN count(DISTINCT kernel_hash) = 1 THEN any_value(kernel_hash) END AS kernel_hash,
        CASE WHEN count(DISTINCT kernel_flop) = 1 THEN any_value(kernel_flop) END AS kernel_flop,
        CASE WHEN count(DISTINCT kernel_num_gb) = 1 THEN any_value(kernel_num_gb) END AS kernel_num_gb
    FROM launched GROUP BY name_id
), matched AS (
    SELECT * FROM kernel_sources WHERE kind IN ('inductor', 'triton')
    QUALIFY evidence = 'launch' OR count(*) FILTER (WHERE evidence = 'launch') OVER (PARTITION BY name_id) = 0
), sources AS (
    SELECT name_id,
        CASE WHEN count(DISTINCT file) = 1 THEN any_value(file) END AS file,
        CASE WHEN count(DISTINCT file) = 1 AND count(DISTINCT line) = 1 THEN any_value(line) END AS line,
        CASE WHEN count(DISTINCT hash) = 1 THEN any_value(hash) END AS hash
    FROM matched GROUP BY name_id
)
SELECT n.name, c.configurations, l.kernel_flop, l.kernel_num_gb,
    CASE WHEN l.named_files > 0 THEN l.kernel_file ELSE s.file END AS file,
    CASE WHEN coalesce(l.named_files, 0) = 0 OR l.kernel_hash = s.hash THEN s.line END AS line,
    CASE WHEN l.named_files > 0 THEN l.kernel_hash ELSE s.hash END AS hash
FROM kernel_names n
LEFT JOIN launches l USING (name_id)
LEFT JOIN configurations c USING (name_id)
LEFT JOIN sources s USING (name_id)
WHERE n.kind = 'kernel' AND (l.name_id IS NOT NULL OR s.name_id IS NOT NULL)
ORDER BY n.name
