-- One row per operator name with device time below it and name of an operator it called directly: calls, total device
-- time in ns. Reads operators.
SELECT coalesce(parent.name, '') AS name, coalesce(child.name, '') AS child, count(*) AS calls,
    sum(child.total_device_ns)::BIGINT AS total_device_ns
FROM operators child JOIN operators parent ON child.parent_id = parent.operator_id
WHERE child.total_device_ns > 0
GROUP BY ALL
ORDER BY 1, total_device_ns DESC, 2
