-- One row per operator name: calls and times in ns. `total_*` leave out calls nested in one of the same name, so
-- no nanosecond counts twice. Reads operators.
SELECT coalesce(name, '') AS name,
    CASE WHEN min(overload) = max(overload) AND count(overload) = count(*) THEN any_value(overload) END AS overload,
    count(*) AS calls,
    sum(self_device_ns)::BIGINT AS self_device_ns,
    coalesce(sum(total_device_ns) FILTER (WHERE is_outermost), 0)::BIGINT AS total_device_ns,
    sum(self_cpu_ns)::BIGINT AS self_cpu_ns,
    coalesce(sum(duration_ns) FILTER (WHERE is_outermost), 0)::BIGINT AS total_cpu_ns
FROM operators
GROUP BY ALL
