-- Copies of the kernels $1 whose name and size occur at least $2 times: how many, their time and bytes.
-- Reads device_activities, kernel_names.
SELECT coalesce(sum(calls), 0)::BIGINT, coalesce(sum(total_ns), 0)::BIGINT, coalesce(sum(size_bytes), 0)::BIGINT
FROM (SELECT count(*) AS calls, sum(duration_ns) AS total_ns, sum(size_bytes) AS size_bytes
    FROM device_activities JOIN kernel_names USING (name_id)
    WHERE list_contains($1::VARCHAR[], name) GROUP BY name_id, size_bytes HAVING calls >= $2)
