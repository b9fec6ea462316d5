-- One row per function of the driver that allocates or frees memory: its calls within steps, the most steps of one
-- trace that have some, host time in ns, their ids. Parameter: steps to leave out, as trace and number.
-- Reads runtime_calls.
SELECT name, sum(calls)::BIGINT AS calls, max(steps) AS steps, sum(duration_ns)::BIGINT AS duration_ns,
    flatten(list(call_ids)) AS call_ids
FROM (
    SELECT trace_id, name, count(*) AS calls, count(DISTINCT step) AS steps, sum(duration_ns) AS duration_ns,
        list(runtime_call_id) AS call_ids
    FROM runtime_calls
    WHERE step IS NOT NULL AND NOT list_contains($1::BIGINT[][], [trace_id, step]) AND (
        regexp_full_match(name, 'cuda(Malloc|Free|HostAlloc|FreeHost|MallocHost|MallocManaged|HostRegister)')
        OR regexp_full_match(name, 'cuMem(Create|Release|Map|Unmap|Alloc|Free|AddressReserve|AddressFree|SetAccess)(_v2)?')
        OR regexp_full_match(name, 'hip(Malloc|Free|HostMalloc|HostFree)'))
    GROUP BY trace_id, name)
GROUP BY name
ORDER BY duration_ns DESC, name
