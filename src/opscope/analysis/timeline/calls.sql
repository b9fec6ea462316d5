-- One row per runtime call, in the order of their ids: when, on which thread, in which operator (-1: none), and the
-- position of its name in the list of names that is the parameter. Reads runtime_calls.
SELECT runtime_call_id AS call_id, trace_id, thread_id, start_ns, start_ns + duration_ns AS end_ns,
    coalesce(operator_id, -1) AS operator_id, list_position(?::VARCHAR[], coalesce(name, ''))::BIGINT - 1 AS name_index
FROM runtime_calls ORDER BY runtime_call_id
