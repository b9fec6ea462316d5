-- Statements that turn one trace's events into tables. `{…}` are filled in by kineto.py: integers, or names of
-- relations it registers. Raw keys of the exporter (`ts`, `External id`) appear in this file alone.

-- :name stage
-- One row per event. Times are exact: a double holds microseconds with three decimals up to 2**43, but its
-- product with 1000 does not, so whole microseconds and decimals are converted apart (decision 0002).
-- The text of `args` stays only where a later statement needs more of it than the columns here.
CREATE OR REPLACE TEMP TABLE staged AS
SELECT
    CASE cat
        WHEN 'Operator' THEN CASE WHEN name LIKE 'ProfilerStep#%' THEN 'user_annotation' ELSE 'cpu_op' END
        WHEN 'Kernel' THEN 'kernel'
        WHEN 'Memcpy' THEN 'gpu_memcpy'
        WHEN 'Memset' THEN 'gpu_memset'
        WHEN 'Runtime' THEN 'cuda_runtime'
        WHEN 'cpu_instant_event' THEN CASE WHEN name = '[memory]' THEN 'memory' ELSE cat END
        ELSE CASE WHEN cat IS NULL AND ph = 'i' AND name = '[memory]' THEN 'memory' ELSE cat END
    END AS category,
    ph, cat, name, pid, tid, id,
    TRY_CAST(floor(ts) AS BIGINT) * 1000 + TRY_CAST(round((ts - floor(ts)) * 1000) AS BIGINT) AS start_ns,
    TRY_CAST(floor(dur) AS BIGINT) * 1000 + TRY_CAST(round((dur - floor(dur)) * 1000) AS BIGINT) AS duration_ns,
    ts >= {double_limit} AND ts <> floor(ts) AS is_inexact,
    from_json(args, '{{
        "External id": "BIGINT", "correlation": "BIGINT",
        "Sequence number": "BIGINT", "Fwd thread id": "BIGINT",
        "Input Dims": "VARCHAR", "Input type": "VARCHAR", "Input Strides": "VARCHAR", "Concrete Inputs": "VARCHAR",
        "Python id": "BIGINT", "Python parent id": "BIGINT", "Python module id": "BIGINT"}}') AS arg,
    CASE
        WHEN cat IN ('python_function', 'cuda_runtime', 'cuda_driver') THEN NULL
        WHEN cat IN ('cpu_op', 'Operator', 'user_annotation') AND NOT (
            contains(args, '"kernel_backend"') OR contains(args, '"Collective name"') OR contains(args, '"Call stack"')
        ) THEN NULL
        ELSE args
    END AS args
FROM read_json(
    {urls}, format = 'array', records = true, maximum_object_size = {maximum_object_bytes},
    columns = {{
        ph: 'VARCHAR', cat: 'VARCHAR', name: 'VARCHAR', ts: '{time_type}', dur: 'DOUBLE',
        pid: 'VARCHAR', tid: 'VARCHAR', id: 'VARCHAR', args: 'JSON'}})

-- :name census
-- One row per category and phase: how many events, how many without a usable time.
SELECT category, cat, ph, count(*) AS events,
    count(*) FILTER (WHERE start_ns IS NULL OR (ph = 'X' AND (duration_ns IS NULL OR duration_ns < 0))) AS without_time,
    count(*) FILTER (WHERE is_inexact) AS inexact
FROM staged GROUP BY ALL

-- :name threads
INSERT INTO threads
WITH used AS (
    SELECT coalesce(pid, '') AS pid, coalesce(tid, '') AS tid, min(rowid) AS first_row
    FROM staged
    WHERE category IN ('cpu_op', 'cuda_runtime', 'cuda_driver', 'user_annotation', 'python_function', 'memory', 'overhead')
    GROUP BY ALL
), named AS (
    SELECT name AS kind, coalesce(pid, '') AS pid, coalesce(tid, '') AS tid, any_value(args ->> 'name') AS label
    FROM staged WHERE ph = 'M' AND name IN ('process_name', 'thread_name') GROUP BY ALL
)
SELECT {first_id} + row_number() OVER (ORDER BY used.first_row) - 1, {trace_id}, used.pid, used.tid, p.label, t.label
FROM used
LEFT JOIN (SELECT pid, any_value(label) AS label FROM named WHERE kind = 'process_name' GROUP BY pid) p USING (pid)
LEFT JOIN named t ON t.kind = 'thread_name' AND t.pid = used.pid AND t.tid = used.tid

-- :name host_rows
-- One row per host interval of one category set, with its thread; absent ids are -1 for the array code.
SELECT staged.rowid AS row_id, threads.thread_id::BIGINT AS thread, start_ns, duration_ns,
    coalesce(arg."External id", TRY_CAST(args ->> 'external id' AS BIGINT), -1) AS external_id,
    hash({hashed}) AS name_hash,
    coalesce(arg."correlation", -1) AS correlation_id,
    staged.name LIKE '%GraphLaunch%' AS is_graph_launch,
    coalesce(arg."Python module id", -1) AS python_module_id
FROM staged JOIN threads ON threads.trace_id = {trace_id}
    AND threads.process = coalesce(staged.pid, '') AND threads.native_thread = coalesce(staged.tid, '')
WHERE category IN ({categories}) AND start_ns IS NOT NULL AND {condition}

-- :name activity_rows
SELECT rowid AS row_id, start_ns, duration_ns,
    coalesce(arg."External id", TRY_CAST(args ->> 'external id' AS BIGINT), -1) AS external_id,
    coalesce(arg."correlation", -1) AS correlation_id,
    coalesce(TRY_CAST(args ->> 'device' AS BIGINT), TRY_CAST(pid AS BIGINT), -1) AS device,
    coalesce(TRY_CAST(args ->> 'stream' AS BIGINT), TRY_CAST(regexp_extract(tid, '\d+') AS BIGINT), -1) AS stream
FROM staged
WHERE category IN ('kernel', 'gpu_memcpy', 'gpu_memset') AND ph = 'X' AND start_ns IS NOT NULL AND duration_ns >= 0

-- :name operators
INSERT INTO operators
SELECT l.operator_id, {trace_id}, l.thread_id,
    CASE WHEN regexp_matches(name, '^\w+::\w+\.\w+$') THEN regexp_extract(name, '^(\w+::\w+)\.', 1) ELSE name END,
    nullif(regexp_extract(name, '^\w+::\w+\.(\w+)$', 1), ''),
    arg."External id", s.start_ns, s.duration_ns,
    nullif(l.parent_id, -1), l.depth, l.last_descendant_id, l.is_outermost,
    arg."Sequence number", arg."Fwd thread id",
    arg."Input Dims", arg."Input type", arg."Input Strides", arg."Concrete Inputs",
    nullif(args ->> 'Call stack', ''), nullif(args ->> 'Module Hierarchy', ''),
    nullif(l.module_id, -1), nullif(l.step, -1), l.self_cpu_ns, l.self_device_ns, l.total_device_ns
FROM staged s JOIN operator_links l ON s.rowid = l.row_id

-- :name runtime_calls
INSERT INTO runtime_calls
SELECT l.runtime_call_id, {trace_id}, l.thread_id, s.name,
    CASE category WHEN 'cuda_driver' THEN 'driver' ELSE 'runtime' END,
    arg."correlation", coalesce(arg."External id", TRY_CAST(args ->> 'external id' AS BIGINT)),
    s.start_ns, s.duration_ns, nullif(l.operator_id, -1), nullif(l.step, -1)
FROM staged s JOIN call_links l ON s.rowid = l.row_id

-- :name kernel_names
INSERT INTO kernel_names
SELECT {first_id} + row_number() OVER (ORDER BY first_row) - 1, name, kind
FROM (
    SELECT coalesce(name, '') AS name, replace(category, 'gpu_', '') AS kind, min(rowid) AS first_row FROM staged
    WHERE category IN ('kernel', 'gpu_memcpy', 'gpu_memset') AND ph = 'X' GROUP BY ALL
) new ANTI JOIN kernel_names old ON new.name = old.name AND new.kind = old.kind

-- :name device_activities
INSERT INTO device_activities
WITH parsed AS (
    SELECT rowid AS row_id, coalesce(name, '') AS name, replace(category, 'gpu_', '') AS kind, start_ns, duration_ns,
        arg."correlation" AS correlation_id,
        coalesce(arg."External id", TRY_CAST(args ->> 'external id' AS BIGINT)) AS external_id,
        from_json(args, '{{
            "context": "BIGINT", "grid": ["BIGINT"], "block": ["BIGINT"], "registers per thread": "BIGINT",
            "shared memory": "BIGINT", "blocks per SM": "DOUBLE", "warps per SM": "DOUBLE",
            "est. achieved occupancy %": "DOUBLE", "bytes": "BIGINT", "graph id": "BIGINT",
            "graph node id": "BIGINT"}}') AS a
    FROM staged WHERE category IN ('kernel', 'gpu_memcpy', 'gpu_memset') AND ph = 'X'
)
SELECT l.activity_id, {trace_id}, p.kind, n.name_id, p.correlation_id, p.external_id,
    nullif(l.device, -1), nullif(l.stream, -1), a."context", p.start_ns, p.duration_ns,
    a."grid"[1], a."grid"[2], a."grid"[3], a."block"[1], a."block"[2], a."block"[3],
    a."registers per thread", a."shared memory", a."blocks per SM", a."warps per SM",
    nullif(a."est. achieved occupancy %", 0) / 100, a."bytes", nullif(a."graph id", 0), nullif(a."graph node id", 0),
    nullif(l.runtime_call_id, -1), nullif(l.operator_id, -1), l.attribution, nullif(l.step, -1)
FROM parsed p
JOIN activity_links l USING (row_id)
JOIN kernel_names n ON n.name = p.name AND n.kind = p.kind

-- :name annotations
INSERT INTO annotations
SELECT {first_id} + row_number() OVER (ORDER BY s.rowid) - 1, {trace_id},
    CASE category WHEN 'user_annotation' THEN 'host' ELSE 'device' END, s.name, t.thread_id,
    CASE category WHEN 'gpu_user_annotation' THEN TRY_CAST(pid AS INTEGER) END,
    CASE category WHEN 'gpu_user_annotation' THEN TRY_CAST(tid AS BIGINT) END,
    arg."External id", start_ns, duration_ns
FROM staged s LEFT JOIN threads t ON category = 'user_annotation' AND t.trace_id = {trace_id}
    AND t.process = coalesce(s.pid, '') AND t.native_thread = coalesce(s.tid, '')
WHERE category IN ('user_annotation', 'gpu_user_annotation') AND ph = 'X' AND start_ns IS NOT NULL

-- :name step_rows
SELECT step::BIGINT AS step, start_ns, duration_ns, thread_id::BIGINT AS thread FROM (
    SELECT TRY_CAST(regexp_extract(name, '^ProfilerStep#(\d+)', 1) AS INTEGER) AS step, *
    FROM annotations WHERE trace_id = {trace_id} AND side = 'host' AND name LIKE 'ProfilerStep#%')
WHERE step IS NOT NULL ORDER BY start_ns

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

-- :name module_rows
SELECT s.rowid AS row_id, t.thread_id::BIGINT AS thread, s.start_ns, s.duration_ns, m.module_id
FROM staged s
JOIN threads t ON t.trace_id = {trace_id} AND t.process = coalesce(s.pid, '') AND t.native_thread = coalesce(s.tid, '')
JOIN modules m ON m.trace_id = {trace_id} AND s.name = 'nn.Module: ' || m.name
    AND m.python_module_id IS NOT DISTINCT FROM arg."Python module id"
WHERE category = 'python_function' AND s.name LIKE 'nn.Module: %' AND ph = 'X' AND duration_ns >= 0

-- :name modules
INSERT INTO modules
SELECT {first_id} + row_number() OVER (ORDER BY first_row) - 1, {trace_id}, python_module_id, module,
    regexp_replace(module, '_\d+$', ''), calls
FROM (
    SELECT arg."Python module id" AS python_module_id, regexp_replace(name, '^nn\.Module: ', '') AS module,
        min(rowid) AS first_row, count(*) AS calls
    FROM staged WHERE category = 'python_function' AND name LIKE 'nn.Module: %' GROUP BY ALL)

-- :name frames
INSERT INTO frames
SELECT {first_id} + s.rowid, {trace_id}, t.thread_id, s.name, arg."Python id", arg."Python parent id",
    m.module_id, start_ns, duration_ns
FROM staged s
JOIN threads t ON t.trace_id = {trace_id} AND t.process = coalesce(s.pid, '') AND t.native_thread = coalesce(s.tid, '')
LEFT JOIN modules m ON m.trace_id = {trace_id} AND s.name = 'nn.Module: ' || m.name
    AND m.python_module_id IS NOT DISTINCT FROM arg."Python module id"
WHERE category = 'python_function' AND ph = 'X' AND start_ns IS NOT NULL

-- :name memory_events
INSERT INTO memory_events
WITH parsed AS (
    SELECT l.memory_event_id, l.thread_id, l.operator_id, s.start_ns, from_json(s.args, '{{
        "Addr": "UBIGINT", "Bytes": "BIGINT", "Device Type": "INTEGER", "Device Id": "INTEGER",
        "Total Allocated": "BIGINT", "Total Reserved": "BIGINT"}}') AS a
    FROM staged s JOIN memory_links l ON s.rowid = l.row_id)
SELECT memory_event_id, {trace_id}, thread_id, start_ns, a."Addr", a."Bytes", a."Device Type",
    CASE WHEN a."Device Id" >= 0 AND a."Device Type" <> 0 THEN a."Device Id" END,
    a."Total Allocated", a."Total Reserved", nullif(operator_id, -1)
FROM parsed

-- :name collectives
INSERT INTO collectives
WITH parsed AS (
    SELECT s.rowid AS row_id, category, from_json(args, '{{
        "Collective name": "VARCHAR", "dtype": "VARCHAR", "In msg nelems": "BIGINT", "Out msg nelems": "BIGINT",
        "In split size": "VARCHAR", "Out split size": "VARCHAR", "Process Group Name": "VARCHAR",
        "Process Group Description": "VARCHAR", "Group size": "INTEGER", "Process Group Ranks": "VARCHAR",
        "Src Rank": "INTEGER", "Dst Rank": "INTEGER", "Seq": "BIGINT"}}') AS a
    FROM staged s WHERE category IN ('cpu_op', 'kernel') AND contains(args, '"Collective name"'))
SELECT {first_id} + row_number() OVER (ORDER BY p.row_id) - 1, {trace_id},
    CASE category WHEN 'kernel' THEN 'device' ELSE 'host' END,
    coalesce(o.operator_id, nullif(k.operator_id, -1)), k.activity_id,
    a."Collective name", a."dtype", a."In msg nelems", a."Out msg nelems", a."In split size", a."Out split size",
    a."Process Group Name", a."Process Group Description", a."Group size", a."Process Group Ranks",
    a."Src Rank", a."Dst Rank", a."Seq"
FROM parsed p LEFT JOIN operator_links o USING (row_id) LEFT JOIN activity_links k USING (row_id)

-- :name triton_launches
INSERT INTO triton_launches
SELECT operator_id, {trace_id}, a."kernel_name", a."kernel_backend", a."kernel_file", a."kernel_hash",
    a."kernel_kwargs", a."grid", a."num_warps", a."num_stages", a."kernel_flop", a."kernel_num_gb"
FROM (
    SELECT l.operator_id, from_json(args, '{{
        "kernel_name": "VARCHAR", "kernel_backend": "VARCHAR", "kernel_file": "VARCHAR", "kernel_hash": "VARCHAR",
        "kernel_kwargs": "VARCHAR", "grid": "VARCHAR", "num_warps": "INTEGER", "num_stages": "INTEGER",
        "kernel_flop": "DOUBLE", "kernel_num_gb": "DOUBLE"}}') AS a
    FROM staged s JOIN operator_links l ON s.rowid = l.row_id
    WHERE category = 'cpu_op' AND contains(args, '"kernel_backend"'))

-- :name syncs
INSERT INTO syncs
SELECT {first_id} + row_number() OVER (ORDER BY rowid) - 1, {trace_id}, coalesce(a."cuda_sync_kind", name),
    a."device", a."stream", arg."correlation", arg."External id", a."wait_on_stream",
    a."wait_on_cuda_event_id", a."wait_on_cuda_event_record_corr_id", start_ns, duration_ns
FROM (
    SELECT rowid, *, from_json(args, '{{
        "cuda_sync_kind": "VARCHAR", "device": "INTEGER", "stream": "BIGINT", "wait_on_stream": "BIGINT",
        "wait_on_cuda_event_id": "BIGINT", "wait_on_cuda_event_record_corr_id": "BIGINT"}}') AS a
    FROM staged WHERE category = 'cuda_sync' AND ph = 'X' AND start_ns IS NOT NULL)

-- :name overheads
INSERT INTO overheads
SELECT {first_id} + row_number() OVER (ORDER BY s.rowid) - 1, {trace_id}, s.name, t.thread_id, start_ns, duration_ns
FROM staged s LEFT JOIN threads t ON t.trace_id = {trace_id}
    AND t.process = coalesce(s.pid, '') AND t.native_thread = coalesce(s.tid, '')
WHERE category = 'overhead' AND ph = 'X' AND start_ns IS NOT NULL

-- :name autograd_links
-- A recorded arrow starts and ends with the operators it ties; of several that start together the one with the
-- sequence number is meant. Without arrows, the last forward operator with the backward one's sequence number.
INSERT INTO autograd_links
WITH ends AS (
    SELECT s.id, s.ph, min(o.operator_id) AS operator_id
    FROM staged s
    JOIN threads t ON t.trace_id = {trace_id} AND t.process = s.pid AND t.native_thread = s.tid
    JOIN operators o ON o.trace_id = {trace_id} AND o.thread_id = t.thread_id AND o.start_ns = s.start_ns
        AND o.sequence_number IS NOT NULL
    WHERE category = 'fwdbwd' AND ph IN ('s', 'f') GROUP BY ALL
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
