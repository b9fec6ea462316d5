-- One row per frame: where and when it was open. Times in ns. Reads frames.
SELECT frame_id, trace_id::BIGINT AS trace_id, thread_id::BIGINT AS thread, start_ns, duration_ns,
    coalesce(python_id, frame_id) AS sequence, coalesce(module_id, -1) AS module_id, hash(coalesce(name, '')) AS name_hash
FROM frames WHERE {condition}
