-- :name lost
-- One row per finding that events of the trace (parameter) are lost, or not its own: what it says. Reads findings.
SELECT if(code = 'recording.shared_gpu', 'the GPU serves others too', format('events are lost ({})', code)) FROM findings
WHERE trace_id = ? AND code IN ('trace.truncated', 'trace.compression_damaged', 'recording.shared_gpu') ORDER BY code

-- :name overlapping
-- The first step of a trace that ends more than so many ns (parameters) after the next begins, if any. Reads steps.
SELECT step, next_step FROM (
    SELECT step, start_ns + duration_ns AS end_ns, lead(step) OVER by_start AS next_step,
        lead(start_ns) OVER by_start AS next_start_ns
    FROM steps WHERE trace_id = ? WINDOW by_start AS (ORDER BY start_ns, step))
WHERE end_ns - next_start_ns > ? LIMIT 1
