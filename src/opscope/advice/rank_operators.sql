-- One row per operator name and trace: its calls within steps, and its own time on the device and on the host, in ns.
-- Parameter: steps to leave out, as trace and number. Reads operators.
SELECT trace_id, name, sum(self_device_ns)::BIGINT AS device_ns, sum(self_cpu_ns)::BIGINT AS host_ns, count(*) AS calls
FROM operators WHERE step IS NOT NULL AND NOT list_contains($1::BIGINT[][], [trace_id, step])
GROUP BY trace_id, name
ORDER BY trace_id, name
