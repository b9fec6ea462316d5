-- One row per interval in which the recorder may have held the host up: what CUPTI did for it (parameter: the names of
-- such), and its own work between one step and the next. Reads overheads, steps.
SELECT trace_id, name, start_ns, start_ns + duration_ns AS end_ns FROM overheads
WHERE list_contains(?::VARCHAR[], name)
UNION ALL
SELECT trace_id, 'torch.profiler between steps', end_ns, next_start_ns FROM (
    SELECT trace_id, step, start_ns + duration_ns AS end_ns,
        lead(step) OVER by_start AS next_step, lead(start_ns) OVER by_start AS next_start_ns
    FROM steps WINDOW by_start AS (PARTITION BY trace_id, thread_id ORDER BY start_ns)
) WHERE next_step = step + 1 AND next_start_ns > end_ns
ORDER BY trace_id, start_ns
