-- Statements that turn one trace's events into tables. `{…}` are filled in by staging.py and kineto.py: integers,
-- first ids, and fragments of kineto.py. Events are read by class (`operator_events`, …, see staging.py); each row has
-- its `row_id`, ascending in the order of the file. Raw keys of the exporter appear here and in scan.py alone.

-- :name captured_calls
-- Calls that may launch a kernel, copy or set, or start or end capturing, and whether a device executed what they
-- launched; an absent id is -1.
SELECT row_id, thread_key, start_ns, coalesce(external_id, -1) AS external_id,
    coalesce(correlation_id, -1) AS correlation_id, name, launched_kernel AS kernel, grid, block,
    (correlation_id IS NOT NULL AND correlation_id IN
        (SELECT correlation_id FROM activity_events WHERE correlation_id IS NOT NULL))::INTEGER AS was_executed
FROM call_events
WHERE name LIKE '%Launch%' OR name LIKE '%Mem%' OR name LIKE '%StreamBeginCapture%' OR name LIKE '%StreamEndCapture%'
ORDER BY row_id

-- :name replayed
-- One row per graph launch, as `Replay`: the launch call, and lists of what tells its activities, in order of start. A node
-- has its number in the graph in the lower half of its id.
SELECT c.row_id AS call, c.start_ns AS call_start_ns, c.duration_ns AS call_duration_ns, c.correlation_id,
    list(a.row_id ORDER BY a.start_ns, a.row_id) AS activities,
    list(replace(a.category::VARCHAR, 'gpu_', '') ORDER BY a.start_ns, a.row_id) AS kinds,
    list(coalesce(a.name, '') ORDER BY a.start_ns, a.row_id) AS names,
    sum(a.duration_ns)::BIGINT AS device_ns,
    nullif(list(a.graph_id ORDER BY a.start_ns, a.row_id)[1], 0) AS graph_id,
    CASE WHEN bool_and(coalesce(a.graph_node_id, 0) <> 0) AND count(DISTINCT a.graph_node_id) = count(*)
        THEN list(a.graph_node_id & 4294967295 ORDER BY a.start_ns, a.row_id) END AS numbers,
    list(a.grid ORDER BY a.start_ns, a.row_id) AS grids
FROM activity_events a
JOIN (SELECT * FROM call_events WHERE name LIKE '%GraphLaunch%'
    QUALIFY row_number() OVER (PARTITION BY correlation_id ORDER BY start_ns) = 1) c USING (correlation_id)
GROUP BY c.row_id, c.start_ns, c.duration_ns, c.correlation_id
ORDER BY c.start_ns, c.row_id

-- :name annotations
INSERT INTO annotations
SELECT {first_id} + row_number() OVER (ORDER BY s.row_id) - 1, {trace_id},
    CASE category WHEN 'user_annotation' THEN 'host' ELSE 'device' END, s.name,
    CASE category WHEN 'user_annotation' THEN thread_id END,
    CASE category WHEN 'gpu_user_annotation' THEN TRY_CAST(pid AS INTEGER) END,
    CASE category WHEN 'gpu_user_annotation' THEN TRY_CAST(tid AS BIGINT) END,
    external_id, start_ns, duration_ns
FROM annotation_events s LEFT JOIN thread_links USING (thread_key)
WHERE ph = 'X' AND start_ns IS NOT NULL AND duration_ns >= 0

-- :name steps
-- Runs after device_activities: a step's device time is that of the activities launched in it.
INSERT INTO steps
SELECT {trace_id}, step, start_ns, duration_ns, thread_id, coalesce(device_ns, 0), coalesce(kernel_count, 0)
FROM (
    SELECT TRY_CAST(regexp_extract(name, '^ProfilerStep#(\d+)', 1) AS INTEGER) AS step, *
    FROM annotations WHERE trace_id = {trace_id} AND side = 'host' AND name LIKE 'ProfilerStep#%') s
LEFT JOIN (
    SELECT step, sum(duration_ns) AS device_ns, count(*) FILTER (WHERE kind = 'kernel') AS kernel_count
    FROM device_activities WHERE trace_id = {trace_id} GROUP BY step) USING (step)
WHERE step IS NOT NULL
-- The mark of a step that the program did not go on with is none.
QUALIFY NOT (step = max(step) OVER () AND kernel_count IS NULL AND coalesce(max(kernel_count) OVER (), 0) > 0
    AND duration_ns < 0.05 * max(duration_ns) OVER ())

-- :name overheads
INSERT INTO overheads
SELECT {first_id} + row_number() OVER (ORDER BY s.row_id) - 1, {trace_id}, s.name, thread_id, start_ns, duration_ns
FROM overhead_events s LEFT JOIN thread_links USING (thread_key)

-- :name counters
-- Kineto (output_json.cpp, handleCounterEvent) and torch's recorder of its own (monitor_trace.py,
-- _build_chrome_counters) name the device in `pid`; their one value has no name.
INSERT INTO counters
SELECT {trace_id}, name, regexp_extract(pid, '\d+')::INTEGER, start_ns, counter_value
FROM counter_events WHERE start_ns IS NOT NULL AND isfinite(counter_value)

-- :name syncs
INSERT INTO syncs
SELECT {first_id} + row_number() OVER (ORDER BY row_id) - 1, {trace_id}, coalesce(d.cuda_sync_kind, name),
    d.device, d.stream, d.correlation_id, d.external_id, d.wait_on_stream,
    d.wait_on_cuda_event_id, d.wait_on_cuda_event_record_corr_id, start_ns, duration_ns
FROM detail_events d WHERE category = 'cuda_sync' AND start_ns IS NOT NULL AND duration_ns >= 0

-- :name collectives
-- A host record is found again by its external id and start, a kernel by its correlation id and start.
INSERT INTO collectives
SELECT {first_id} + row_number() OVER (ORDER BY d.row_id) - 1, {trace_id},
    CASE d.category WHEN 'kernel' THEN 'device' ELSE 'host' END,
    coalesce(o.operator_id, k.operator_id), k.activity_id,
    d."Collective name", d.dtype, d."In msg nelems", d."Out msg nelems",
    d."In split size", d."Out split size",
    d."Process Group Name", d."Process Group Description", d."Group size", d."Process Group Ranks",
    d."Src Rank", d."Dst Rank", d."Seq"
FROM detail_events d
LEFT JOIN operators o ON o.trace_id = {trace_id} AND d.category <> 'kernel' AND o.external_id = d.external_id
    AND o.start_ns = d.start_ns
LEFT JOIN device_activities k ON k.trace_id = {trace_id} AND d.category = 'kernel' AND k.correlation_id = d.correlation_id
    AND k.start_ns = d.start_ns
WHERE d."Collective name" IS NOT NULL

-- :name triton_launches
-- Recorders like 2.6 write no kernel_name: there the operator is named after the kernel, or not at all.
INSERT INTO triton_launches
SELECT o.operator_id, {trace_id}, coalesce(d.kernel_name, nullif(d.name, 'triton kernel')),
    d.kernel_backend, d.kernel_file,
    d.kernel_hash, d.kernel_kwargs, d.grid, d.stream, d.num_warps, d.num_stages,
    d.kernel_flop, d.kernel_num_gb
FROM detail_events d JOIN operators o ON o.trace_id = {trace_id} AND o.external_id = d.external_id
    AND o.start_ns = d.start_ns
WHERE d.kernel_backend IS NOT NULL

-- :name autograd_links
-- A recorded arrow starts and ends with the operators it ties; of several that start together the one with the
-- sequence number is meant. Without arrows, the last forward operator with the backward one's sequence number.
INSERT INTO autograd_links
WITH ends AS (
    SELECT s.id, s.ph, min(o.operator_id) AS operator_id
    FROM flow_events s JOIN thread_links t USING (thread_key)
    JOIN operators o ON o.trace_id = {trace_id} AND o.thread_id = t.thread_id AND o.start_ns = s.start_ns
        AND o.sequence_number IS NOT NULL
    WHERE ph IN ('s', 'f') GROUP BY ALL
), arrows AS (
    SELECT f.operator_id AS forward, b.operator_id AS backward, 'flow' AS evidence
    FROM ends f JOIN ends b ON f.id = b.id AND f.ph = 's' AND b.ph = 'f'
), numbered AS (
    SELECT max(f.operator_id) AS forward, b.operator_id AS backward, 'sequence_number' AS evidence
    FROM operators b JOIN operators f ON f.trace_id = b.trace_id AND f.sequence_number = b.sequence_number
        AND coalesce(f.forward_thread_id, 0) = 0
    WHERE b.trace_id = {trace_id} AND b.forward_thread_id > 0 AND NOT EXISTS (SELECT 1 FROM arrows)
    GROUP BY b.operator_id
)
SELECT {first_id} + row_number() OVER (ORDER BY backward, forward) - 1, {trace_id}, forward, backward, evidence
FROM (FROM arrows UNION ALL FROM numbered)
