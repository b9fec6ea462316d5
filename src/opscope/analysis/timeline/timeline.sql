-- :name activities
-- One row per device activity, by trace, device and start: when, its name, launch call, stream and step (-1: none).
-- Reads device_activities.
SELECT activity_id, trace_id, device, coalesce(stream, -1) AS stream, start_ns, start_ns + duration_ns AS end_ns, name_id,
    coalesce(runtime_call_id, -1) AS call_id, attribution = 'before_window' AS is_early, kind = 'kernel' AS is_kernel,
    coalesce(step, -1)::BIGINT AS step
FROM device_activities WHERE device IS NOT NULL
ORDER BY trace_id, device, start_ns, activity_id

-- :name annotations
-- One row per range that the program, or a library, named on one of the threads that are the parameter; steps are the
-- recorder's. Reads annotations.
SELECT annotation_id AS id, thread_id, start_ns, start_ns + duration_ns AS end_ns, name
FROM annotations WHERE side = 'host' AND name NOT LIKE 'ProfilerStep#%' AND list_contains(?::INTEGER[], thread_id)

-- :name called_operators
-- One row per operator of the list that is the parameter: its id, that of the one that called it (-1: none), and its name.
-- Reads operators.
SELECT operator_id, coalesce(parent_id, -1), coalesce(name, '') FROM operators
WHERE operator_id IN (SELECT unnest(?::BIGINT[]))

-- :name calls
-- One row per runtime call, in the order of their ids: when, on which thread, in which operator (-1: none), and the
-- position of its name in the list of names that is the parameter. Reads runtime_calls.
SELECT runtime_call_id AS call_id, trace_id, thread_id, start_ns, start_ns + duration_ns AS end_ns,
    coalesce(operator_id, -1) AS operator_id, list_position(?::VARCHAR[], coalesce(name, ''))::BIGINT - 1 AS name_index
FROM runtime_calls ORDER BY runtime_call_id

-- :name drawn_calls
-- One row per runtime call of a trace and thread that lasts into an interval, by start: when, and its name. Parameters:
-- trace, thread, end and start of the interval. Reads runtime_calls.
SELECT start_ns, start_ns + duration_ns AS end_ns, coalesce(name, '') AS name
FROM runtime_calls WHERE trace_id = ? AND thread_id = ? AND start_ns < ? AND start_ns + duration_ns > ?
ORDER BY start_ns, runtime_call_id

-- :name drawn_operators
-- The same of operators, with their depth; one parameter more: operators as deep as this or deeper are left out.
-- Reads operators.
SELECT start_ns, start_ns + duration_ns AS end_ns, coalesce(name, '') AS name, depth
FROM operators WHERE trace_id = ? AND thread_id = ? AND start_ns < ? AND start_ns + duration_ns > ? AND depth < ?
ORDER BY start_ns, operator_id

-- :name host_frames
-- One row per Python frame of the threads that are the parameter: when, and whether no other frame called it.
-- Reads frames.
SELECT frame_id AS id, thread_id, start_ns, start_ns + duration_ns AS end_ns, parent_python_id IS NULL AS is_outermost
FROM frames WHERE list_contains(?::INTEGER[], thread_id)

-- :name host_operators
-- One row per operator of the threads that are the parameter, by thread and start: when, whether no operator is around
-- it, whether its shapes were recorded. An NVTX range that owns device work says nothing of what its thread does; it
-- stands among the annotations too. Reads operators, annotations, traces.
WITH ranges AS (
    SELECT o.operator_id FROM operators o
    JOIN (SELECT a.thread_id, a.start_ns, a.duration_ns, a.name FROM annotations a JOIN traces t USING (trace_id)
        WHERE t.format = 'nsys') a
    ON a.thread_id = o.thread_id AND a.start_ns = o.start_ns AND a.duration_ns = o.duration_ns AND a.name = o.name
)
SELECT operator_id AS id, thread_id, start_ns, start_ns + duration_ns AS end_ns,
    depth = 0 OR parent_id IN (FROM ranges) AS is_outermost, input_shapes IS NOT NULL AS has_shapes
FROM operators WHERE list_contains(?::INTEGER[], thread_id) AND operator_id NOT IN (FROM ranges)

-- :name host_ranges
-- One row per stretch of a launching thread in which it waited for data or slept, by what it is called.
-- Parameters: the threads, and the names of frames that load and that sleep. Reads operators, annotations, frames.
SELECT operator_id AS id, thread_id, true AS is_loading, start_ns, start_ns + duration_ns AS end_ns, name
FROM operators WHERE name LIKE 'enumerate(DataLoader)#%' AND list_contains($threads, thread_id)
UNION ALL
SELECT annotation_id, thread_id, true, start_ns, start_ns + duration_ns, name
FROM annotations WHERE side = 'host' AND name LIKE 'enumerate(DataLoader)#%' AND list_contains($threads, thread_id)
UNION ALL
SELECT frame_id, thread_id, list_contains($loading, name), start_ns, start_ns + duration_ns, name
FROM frames
WHERE (list_contains($loading, name) OR list_contains($asleep, name)) AND list_contains($threads, thread_id)

-- :name overheads
-- One row per interval of what CUPTI did for the recorder, by trace and start. Parameter: the names of such.
-- Reads overheads.
SELECT trace_id, name, start_ns, start_ns + duration_ns AS end_ns FROM overheads
WHERE list_contains(?::VARCHAR[], name) ORDER BY trace_id, start_ns

-- :name spans
-- One row per trace: its first start and last end of an event of host or device, the last end of one of the host (its
-- own end where none is recorded), and whether a process was recorded from its start to its end.
-- Reads operators, runtime_calls, frames, annotations, device_activities, traces.
SELECT
    trace_id, min(first_ns) AS start_ns, max(last_ns) AS end_ns,
    coalesce(max(last_ns) FILTER (WHERE is_host), max(last_ns)) AS host_end_ns,
    bool_or(format = 'nsys' OR json_exists(properties, '$.opscopeRecorder')) AS is_whole -- by opscope trace
FROM traces JOIN (
    SELECT trace_id, min(start_ns) AS first_ns, max(start_ns + duration_ns) AS last_ns, true AS is_host
    FROM operators GROUP BY trace_id
    UNION ALL SELECT trace_id, min(start_ns), max(start_ns + duration_ns), true FROM runtime_calls GROUP BY trace_id
    UNION ALL SELECT trace_id, min(start_ns), max(start_ns + duration_ns), true FROM frames GROUP BY trace_id
    UNION ALL SELECT trace_id, min(start_ns), max(start_ns + duration_ns), true
    FROM annotations WHERE side = 'host' GROUP BY trace_id
    UNION ALL SELECT trace_id, min(start_ns), max(start_ns + duration_ns), false
    FROM device_activities GROUP BY trace_id) USING (trace_id)
GROUP BY trace_id ORDER BY trace_id

-- :name first_runs
-- One row per first launch of a kernel of a trace that takes long although the device has nothing else to do: it loads
-- code, and per call that does nothing else; and, with operators, per first call of one that takes several times as long
-- as all later ones: what it takes beyond those. Parameters: the trace, calls that load, whether to ask for operators,
-- and what is long.
-- Reads runtime_calls, device_activities, operators.
SELECT name, start_ns, start_ns + duration_ns AS end_ns FROM (
    SELECT * FROM (
        SELECT 'first launches of kernels' AS name, c.start_ns, c.duration_ns
        FROM runtime_calls c JOIN device_activities a USING (runtime_call_id)
        WHERE a.kind = 'kernel' AND c.trace_id = $trace
        QUALIFY row_number() OVER (PARTITION BY a.name_id ORDER BY c.start_ns, runtime_call_id) = 1)
    UNION ALL SELECT name, start_ns, duration_ns FROM runtime_calls
    WHERE trace_id = $trace AND list_contains($loads, name)
    UNION ALL SELECT 'first calls of operators', start_ns + usual_ns, duration_ns - usual_ns FROM (
        SELECT start_ns, duration_ns, count(*) OVER (PARTITION BY name) AS calls,
            max(duration_ns) OVER (PARTITION BY name ORDER BY start_ns, operator_id
                ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS usual_ns
        FROM operators WHERE $with_operators AND trace_id = $trace AND depth = 0
        QUALIFY row_number() OVER (PARTITION BY name ORDER BY start_ns, operator_id) = 1)
    WHERE calls > 2 AND duration_ns > 3 * usual_ns) f
WHERE duration_ns >= $loading AND NOT EXISTS (
    FROM device_activities b WHERE b.trace_id = $trace AND f.start_ns + f.duration_ns // 2
        BETWEEN b.start_ns AND b.start_ns + b.duration_ns)
ORDER BY start_ns

-- :name busy
-- One row per activity of a trace, the parameter: when. Reads device_activities.
SELECT start_ns, start_ns + duration_ns AS end_ns FROM device_activities WHERE trace_id = ? ORDER BY start_ns

-- :name first_work
-- One row where a trace, the parameter, has device work: start of the first, start of its launch (the same where none is
-- recorded), end of the last, and start of the one with which more than a fiftieth of all device time is done.
-- Reads device_activities, runtime_calls.
WITH work AS (
    SELECT start_ns, duration_ns, runtime_call_id, sum(duration_ns) OVER (ORDER BY start_ns, activity_id) AS done_ns
    FROM device_activities WHERE trace_id = ?)
SELECT w.start_ns, coalesce(r.start_ns, w.start_ns), total.end_ns, total.steady_ns
FROM (SELECT max(start_ns + duration_ns) AS end_ns, min(start_ns) FILTER (
    WHERE done_ns * 50 >= (SELECT max(done_ns) FROM work)) AS steady_ns FROM work) total
CROSS JOIN (FROM work ORDER BY done_ns, start_ns LIMIT 1) w LEFT JOIN runtime_calls r USING (runtime_call_id)

-- :name steps
-- One row per step, by trace and start: number, start, end, and until when its turn lasts: to the start of the next, where
-- that is the next by number as well, since between two such only the recorder works; its kernels, its thread.
-- Reads steps.
SELECT trace_id, step, start_ns, end_ns,
    CASE WHEN next_step = step + 1 THEN greatest(end_ns, next_start_ns) ELSE end_ns END AS until_ns, kernels, thread_id
FROM (
    SELECT trace_id, step, start_ns, start_ns + duration_ns AS end_ns, coalesce(kernel_count, 0) AS kernels, thread_id,
        lead(step) OVER by_start AS next_step, lead(start_ns) OVER by_start AS next_start_ns
    FROM steps WINDOW by_start AS (PARTITION BY trace_id, thread_id ORDER BY start_ns))
ORDER BY trace_id, start_ns, step

-- :name once
-- One row per call or range of a trace that comes once in a program, by names of calls and of launches (the long ones) and
-- the pattern of ranges that are parameters, and, if `recurs`, of what the recorder did for itself.
-- Reads runtime_calls, device_activities, operators, annotations, overheads.
SELECT name, start_ns, start_ns + duration_ns AS end_ns FROM (
    SELECT trace_id, name, start_ns, duration_ns FROM runtime_calls
    WHERE list_contains($calls::VARCHAR[], name) OR (duration_ns >= $long AND list_contains($launches::VARCHAR[], name))
    UNION ALL SELECT trace_id, name, start_ns, duration_ns FROM operators WHERE regexp_full_match(name, $ranges)
    UNION ALL SELECT trace_id, name, start_ns, duration_ns FROM annotations
        WHERE side = 'host' AND regexp_full_match(name, $ranges)
    UNION ALL SELECT trace_id, name, start_ns, duration_ns FROM overheads WHERE $recurs)
WHERE trace_id = $trace AND name IS NOT NULL AND duration_ns > 0
ORDER BY start_ns, name

-- :name first_calls
-- One row per compiled function (by the names of what its calls hold) before whose first call its thread recorded no
-- operator for long: it was compiled then. Reads operators.
WITH calls AS (
    SELECT *, max(start_ns + duration_ns) OVER (PARTITION BY thread_id ORDER BY start_ns, operator_id
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS silent_ns
    FROM operators WHERE trace_id = $trace AND depth = 0
    QUALIFY row_number() OVER (PARTITION BY name ORDER BY start_ns, operator_id) = 1)
SELECT 'first call of ' || c.name AS name, silent_ns AS start_ns, start_ns AS end_ns FROM calls c
WHERE start_ns - silent_ns >= $long AND EXISTS (
    SELECT 1 FROM operators o WHERE o.trace_id = $trace AND list_contains($compiled::VARCHAR[], o.name)
        AND o.operator_id BETWEEN c.operator_id AND c.last_descendant_id)
ORDER BY start_ns
