-- Statements that turn the tables of an export, copied to `staging.raw_…`, into the events that kineto.sql reads. Columns
-- in camelCase are nsys' own. `{…}` are filled in by nsys_reading.py: a process, and patterns of names.

-- :name words
-- Kineto's word for each number of an export, by topic; CUPTI's numbers are part of its binary interface.
-- Source: the ENUM tables of nsys 2026.2 exports; cupti_activity.h; libkineto/src/CuptiActivity.cpp for the words.
CREATE OR REPLACE TABLE staging.words AS SELECT topic, number::BIGINT AS number, word FROM (VALUES
    ('api', 0, 'cuda_runtime'), ('api', 1, 'cuda_driver'), ('copy', 1, 'HtoD'), ('copy', 2, 'DtoH'), ('copy', 3, 'HtoA'),
    ('copy', 4, 'AtoH'), ('copy', 5, 'AtoA'), ('copy', 6, 'AtoD'), ('copy', 7, 'DtoA'), ('copy', 8, 'DtoD'),
    ('copy', 9, 'HtoH'), ('copy', 10, 'PtoP'), ('copy', 11, 'Unified HtoD'), ('copy', 12, 'Unified DtoH'),
    ('copy', 13, 'Unified DtoD'), ('memory', 0, 'Pageable'), ('memory', 1, 'Pinned'), ('memory', 2, 'Device'),
    ('memory', 3, 'Array'), ('memory', 4, 'Managed'), ('memory', 5, 'Device Static'), ('memory', 6, 'Managed Static'),
    ('sync', 1, 'Event Sync'), ('sync', 2, 'Stream Wait Event'), ('sync', 3, 'Stream Sync'), ('sync', 4, 'Context Sync'),
    ('overhead', 2, 'Driver Compiler'), ('overhead', 3, 'Buffer Flush'), ('overhead', 4, 'Instrumentation'),
    ('overhead', 5, 'Resource'), ('overhead', 6, 'Runtime Triggered Module Loading'),
    ('overhead', 7, 'Lazy Function Loading'), ('overhead', 8, 'Command Buffer Full'), ('range', 34, 'mark'),
    ('range', 59, 'nested'), ('range', 60, 'loose'), ('range', 70, 'nested'), ('range', 71, 'loose'), ('range', 75, 'domain')
) numbered(topic, number, word)

-- :name kernel_names
-- One row per pair of the ids of a kernel's demangled and mangled name; -1 for none.
SELECT k.demangled_id, k.mangled_id, d.value, m.value, s.value
FROM (SELECT coalesce(demangledName, -1) AS demangled_id, coalesce(mangledName, -1) AS mangled_id,
        min(shortName) AS short_id
    FROM staging.raw_kernels GROUP BY ALL) k
LEFT JOIN staging.raw_strings d ON d.id = k.demangled_id
LEFT JOIN staging.raw_strings m ON m.id = k.mangled_id
LEFT JOIN staging.raw_strings s ON s.id = k.short_id
ORDER BY 1, 2

-- :name kernel_texts
CREATE OR REPLACE TABLE staging.kernel_texts AS
SELECT unnest($1::BIGINT[]) AS demangled_id, unnest($2::BIGINT[]) AS mangled_id, unnest($3::VARCHAR[]) AS name,
    unnest($4::VARCHAR[]) AS recorded_name, unnest($5::VARCHAR[]) AS mangled_name

-- :name processes
-- One row per process that called CUDA or whose work a device did, else that pushed ranges: when it began.
SELECT process, min("start") AS first_ns, bool_or(is_cuda) AS is_cuda FROM (
    SELECT process, "start", true AS is_cuda FROM staging.raw_calls
    UNION ALL SELECT process, "start", true FROM staging.raw_kernels
    UNION ALL SELECT process, "start", true FROM staging.raw_copies
    UNION ALL SELECT process, "start", true FROM staging.raw_sets
    UNION ALL SELECT process, "start", true FROM staging.raw_graphs
    UNION ALL SELECT process, "start", false FROM staging.raw_ranges WHERE "end" IS NOT NULL)
WHERE process IS NOT NULL GROUP BY process ORDER BY process

-- :name ranges
-- One row per NVTX range or mark, with its text. A text that torch.autograd.profiler.emit_nvtx wrote is taken apart:
-- `NAME, seq = N, op_id = N, sizes = [[2, 3], []], input_op_ids = [(1,0)]`, each part but the first optional.
-- Source: torch/csrc/profiler/util.cpp, getNvtxStr.
-- Of such a range, is_operator says whether Kineto would record it as an operator, and not as a user's annotation: a
-- name in a namespace, a node of autograd (they alone have a sequence number), or a few names that torch itself uses.
-- Without any of those parts only names are taken that nobody else gives.
CREATE OR REPLACE TABLE staging.ranges AS
WITH domains AS (
    SELECT process, domainId, any_value(text) AS domain FROM staging.raw_ranges r
    JOIN staging.words k ON k.topic = 'range' AND k.number = r.eventType WHERE k.word = 'domain' GROUP BY process, domainId
), texts AS (
    SELECT r.process, r.thread, r.end_thread, r."start" AS start_ns, r."end" AS end_ns, k.word AS kind,
        coalesce(r.text, s.value) AS text, coalesce(r.domainId, 0) = 0 AS is_default_domain, d.domain
    FROM staging.raw_ranges r
    JOIN staging.words k ON k.topic = 'range' AND k.number = r.eventType
    LEFT JOIN staging.raw_strings s ON s.id = r.textId
    LEFT JOIN domains d ON d.process = r.process AND d.domainId = r.domainId
    WHERE k.word <> 'domain'
), parts AS (
    SELECT *, CASE WHEN is_default_domain AND kind = 'nested' AND contains(text, ' = ') THEN regexp_extract(text,
        '(?s)^(.*?)(?:, seq = (\d+))?(?:, op_id = (\d+))?(?:, sizes = (\[.*?\]))?(?:, input_op_ids = \[.*\])?$',
        ['name', 'seq', 'op_id', 'sizes']) END AS part
    FROM texts
), named AS (
    SELECT * EXCLUDE (text, domain, part),
        coalesce(part.name, concat_ws(':', CASE WHEN NOT is_default_domain THEN domain END, coalesce(text, '(unnamed range)')))
            AS name,
        TRY_CAST(part.seq AS BIGINT) AS sequence_number, TRY_CAST(part.op_id AS BIGINT) AS op_id,
        nullif(part.sizes, '') AS sizes, part.name <> text AS is_emitted
    FROM parts
)
SELECT row_number() OVER () AS range_id, process, thread, end_thread, start_ns,
    CASE kind WHEN 'mark' THEN 0 ELSE end_ns - start_ns END AS duration_ns,
    kind, name, sequence_number, op_id, sizes,
    kind = 'nested' AND is_default_domain AND CASE
        WHEN name LIKE 'FSDP::%' THEN false
        WHEN is_emitted THEN sequence_number IS NOT NULL OR regexp_matches(name, '{emitted_operator}')
        ELSE regexp_matches(name, '{bare_operator}') END AS is_operator
FROM named

-- :name operator_ranges
SELECT range_id, coalesce(thread, -1) AS thread, start_ns, duration_ns
FROM staging.ranges WHERE process = {process} AND is_operator AND duration_ns >= 0

-- :name user_ranges
-- Steps own nothing themselves, as in Kineto traces.
SELECT range_id, coalesce(thread, -1) AS thread, start_ns, duration_ns, hash(name) AS name_hash
FROM staging.ranges
WHERE process = {process} AND kind = 'nested' AND NOT is_operator AND duration_ns >= 0 AND name NOT LIKE 'ProfilerStep#%'

-- :name timed_ranges
SELECT range_id FROM staging.ranges
WHERE process = {process} AND kind <> 'mark' AND NOT is_operator AND duration_ns >= 0 AND name NOT LIKE 'ProfilerStep#%'
ORDER BY range_id

-- :name launches
-- One row per CUDA call that some work of a device belongs to.
SELECT coalesce(c.thread, -1) AS thread, c."start" AS start_ns
FROM staging.raw_calls c SEMI JOIN (
    SELECT correlationId FROM staging.raw_kernels WHERE process = {process}
    UNION ALL SELECT correlationId FROM staging.raw_copies WHERE process = {process}
    UNION ALL SELECT correlationId FROM staging.raw_sets WHERE process = {process}
    UNION ALL SELECT correlationId FROM staging.raw_graphs WHERE process = {process}) a USING (correlationId)
WHERE c.process = {process} AND c."start" IS NOT NULL

-- :name stage_operators
SELECT 'cpu_op' AS cat, 'X' AS ph, name, process::VARCHAR AS pid, thread::VARCHAR AS tid,
    start_ns, duration_ns, op_id AS external_id, sequence_number,
    CASE WHEN regexp_matches(name, '^aten::\w+$') AND NOT regexp_matches(name, '{takes_lists}')
        THEN TRY_CAST(sizes AS JSON)::VARCHAR END AS input_shapes
FROM staging.ranges WHERE process = {process} AND is_operator

-- :name stage_owners
-- Ranges that launched work themselves, outside of every operator, stand among the operators too.
SELECT 'cpu_op' AS cat, 'X' AS ph, name, process::VARCHAR AS pid, thread::VARCHAR AS tid,
    start_ns, duration_ns
FROM staging.ranges SEMI JOIN range_owners USING (range_id)

-- :name stage_annotations
SELECT 'user_annotation' AS cat, 'X' AS ph, name, process::VARCHAR AS pid, thread::VARCHAR AS tid,
    start_ns, duration_ns, op_id AS external_id
FROM staging.ranges WHERE process = {process} AND NOT is_operator

-- :name stage_calls
-- Names carry the version of CUDA that introduced the call, `cudaLaunchKernel_v7000`; Kineto leaves it out.
SELECT coalesce(k.word, CASE WHEN s.value LIKE 'cu%' AND s.value NOT LIKE 'cuda%' THEN 'cuda_driver' ELSE 'cuda_runtime' END)
        AS cat, 'X' AS ph, regexp_replace(s.value, '_v\d{{4,5}}$', '') AS name,
    c.process::VARCHAR AS pid, c.thread::VARCHAR AS tid,
    c."start" AS start_ns, c."end" - c."start" AS duration_ns, nullif(correlationId, 0) AS correlation_id
FROM staging.raw_calls c LEFT JOIN staging.raw_strings s ON s.id = c.nameId 
LEFT JOIN staging.words k ON k.topic = 'api' AND k.number = c.eventClass
WHERE c.process = {process}

-- :name stage_activities
-- A device's record without times has 0 for both. Of a graph recorded as a whole, one activity stands for all its nodes.
WITH activities AS (
    SELECT 'kernel' AS category, t.name, k.* EXCLUDE (demangledName, shortName, mangledName)
    FROM staging.raw_kernels k JOIN staging.kernel_texts t
        ON t.demangled_id = coalesce(k.demangledName, -1) AND t.mangled_id = coalesce(k.mangledName, -1)
    UNION ALL BY NAME
    SELECT 'gpu_memcpy' AS category,
        format('Memcpy {{}} ({{}} -> {{}})', coalesce(d.word, 'Unknown'), coalesce(a.word, 'Unknown'), coalesce(b.word, 'Unknown'))
            AS name,
        c.* EXCLUDE (copyKind, srcKind, dstKind)
    FROM staging.raw_copies c LEFT JOIN staging.words d ON d.topic = 'copy' AND d.number = c.copyKind
    LEFT JOIN staging.words a ON a.topic = 'memory' AND a.number = c.srcKind
    LEFT JOIN staging.words b ON b.topic = 'memory' AND b.number = c.dstKind
    UNION ALL BY NAME
    SELECT 'gpu_memset' AS category, format('Memset ({{}})', coalesce(m.word, 'Unknown')) AS name, s.* EXCLUDE (memKind)
    FROM staging.raw_sets s LEFT JOIN staging.words m ON m.topic = 'memory' AND m.number = s.memKind
    UNION ALL BY NAME
    SELECT 'kernel' AS category, concat('CUDA graph ', graphId, ' (whole)') AS name, g.* FROM staging.raw_graphs g
)
SELECT category AS cat, 'X' AS ph, name, deviceId::VARCHAR AS pid, streamId::VARCHAR AS tid,
    CASE WHEN "end" > 0 THEN "start" END AS start_ns, "end" - "start" AS duration_ns,
    nullif(correlationId, 0) AS correlation_id, TRY_CAST(deviceId AS INTEGER) AS device, streamId AS stream,
    TRY_CAST(contextId AS INTEGER) AS context,
    '[' || gridX || ',' || gridY || ',' || gridZ || ']' AS grid, '[' || blockX || ',' || blockY || ',' || blockZ || ']' AS block,
    TRY_CAST(registersPerThread AS INTEGER) AS registers_per_thread,
    TRY_CAST(staticSharedMemory + dynamicSharedMemory AS INTEGER) AS shared_memory_bytes,
    bytes AS size_bytes, graphId AS graph_id, graphNodeId AS graph_node_id
FROM activities WHERE process = {process}

-- :name stage_overheads
SELECT 'overhead' AS cat, 'X' AS ph, coalesce(k.word, s.value, 'Unknown') AS name,
    o.process::VARCHAR AS pid, o.thread::VARCHAR AS tid,
    o."start" AS start_ns, o."end" - o."start" AS duration_ns
FROM (FROM staging.raw_overheads UNION ALL FROM staging.raw_cuda_overheads) o
LEFT JOIN staging.raw_strings s ON s.id = o.nameId
LEFT JOIN staging.words k ON k.topic = 'overhead' AND k.number = o.overheadType
WHERE o.process = {process}

-- :name stage_syncs
-- 2**32 - 1 stands for no stream and no event.
SELECT 'cuda_sync' AS cat, 'X' AS ph, 'cuda_sync' AS name, deviceId::VARCHAR AS pid, streamId::VARCHAR AS tid,
    CASE WHEN "end" > 0 THEN "start" END AS start_ns, "end" - "start" AS duration_ns,
    coalesce(k.word, 'Unknown') AS cuda_sync_kind, deviceId AS device, nullif(streamId, 4294967295) AS stream,
    nullif(correlationId, 0) AS correlation_id, nullif(eventId, 4294967295) AS wait_on_cuda_event_id
FROM staging.raw_syncs s LEFT JOIN staging.words k ON k.topic = 'sync' AND k.number = s.syncType
WHERE process = {process}

-- :name stage_labels
SELECT 'M' AS ph, 'thread_name' AS name, n.process::VARCHAR AS pid, n.thread::VARCHAR AS tid,
    s.value AS label
FROM staging.raw_thread_names n JOIN staging.raw_strings s ON s.id = n.nameId WHERE n.process = {process}
UNION ALL BY NAME
SELECT 'M' AS ph, 'process_name' AS name, process::VARCHAR AS pid, name AS label
FROM staging.raw_processes WHERE process = {process}

-- :name kernel_symbols
INSERT INTO kernel_symbols
SELECT DISTINCT n.name_id, t.mangled_name, t.recorded_name
FROM staging.kernel_texts t JOIN kernel_names n ON n.name = t.name AND n.kind = 'kernel'
ANTI JOIN kernel_symbols k ON k.name_id = n.name_id AND k.mangled_name IS NOT DISTINCT FROM t.mangled_name
    AND k.recorded_name = t.recorded_name
