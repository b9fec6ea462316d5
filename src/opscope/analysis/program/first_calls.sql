-- One row per trace: start in ns of the first Python call that was made while recording. Frames that were already
-- open are noted first, each thread's from the outermost in, so they form a chain (torch/csrc/autograd/profiler_python.cpp
-- notes up to 128 a thread); the first frame whose caller is not the one before it was really called. Reads frames.
SELECT trace_id, min(start_ns) AS start_ns FROM (
    SELECT trace_id, start_ns, parent_python_id,
        lag(python_id) OVER (PARTITION BY thread_id ORDER BY start_ns, python_id) AS previous_python_id
    FROM frames WHERE python_id <= 8192)
WHERE parent_python_id IS DISTINCT FROM previous_python_id
GROUP BY trace_id
