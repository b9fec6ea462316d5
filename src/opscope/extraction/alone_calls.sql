-- :name launched
-- One row per distinct call that can be run alone, roofline call (`call_id`) and kernel that it launched: the call's name,
-- overload, arguments as recorded, the source file of a Triton kernel of torch.compile (`kernel_file`), the type of 16 bits
-- of an autocast that changed what operators below it were given (`autocast`), what of a collective was recorded; the
-- kernel's name, its blocks in a call, the operators of the calls, device time in ns. Reads operators, triton_launches,
-- device_activities, kernel_names, activity_costs, collectives.
-- An operator that calls itself has only cast its arguments, as autocast does: of softmax and the like it asks for a float32
-- result (type 6) instead. One of another library counts if it launched something itself.
WITH named AS (
        SELECT *, coalesce(lead(operator_id) OVER of_name <= last_descendant_id, false) AS calls_itself,
            input_types::VARCHAR AS types, lead(input_types::VARCHAR) OVER of_name AS own_types,
            calls_itself AND lead(input_shapes) OVER of_name = input_shapes AND contains(concat(types, own_types), 'c10::')
                AND CASE WHEN own_types = types
                    THEN concrete_inputs->>-1 = '' AND (lead(concrete_inputs) OVER of_name)->>-1 = '6'
                    ELSE regexp_replace(types, 'c10::(BFloat16|Half)', 'float', 'g')
                        = regexp_replace(own_types, 'c10::(BFloat16|Half)', 'float', 'g') END AS is_cast
        FROM operators WHERE input_shapes IS NOT NULL AND (starts_with(name, 'aten::') OR name = 'record_param_comms'
            OR (contains(name, '::') AND NOT contains(name, 'autograd::')
                AND operator_id IN (SELECT operator_id FROM device_activities WHERE kind = 'kernel')))
        WINDOW of_name AS (PARTITION BY trace_id, thread_id, name ORDER BY operator_id)),
    ours AS (
        SELECT *, coalesce(max(last_descendant_id) OVER (PARTITION BY trace_id, thread_id ORDER BY operator_id
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1) < operator_id AS is_outermost_of_torch
        FROM named WHERE NOT calls_itself),
    outermost AS (
        SELECT o.* EXCLUDE (calls_itself, types, own_types, is_cast, is_outermost_of_torch), NULL AS kernel_file,
            CASE WHEN c.operator_id <= o.last_descendant_id
                THEN if(contains(concat(c.types, c.own_types), 'Half'), 'float16', 'bfloat16') END AS autocast
        FROM ours o ASOF LEFT JOIN (FROM named WHERE is_cast) c
            ON c.trace_id = o.trace_id AND c.thread_id = o.thread_id AND c.operator_id >= o.operator_id
        WHERE o.is_outermost_of_torch
        UNION ALL
        SELECT DISTINCT o.*, t.kernel_file, NULL FROM operators o JOIN triton_launches t USING (operator_id)
        WHERE o.name = t.kernel_name AND o.input_shapes IS NOT NULL),
    communicated AS (
        SELECT operator_id, name, data_type, in_element_count, out_element_count, group_size
        FROM collectives WHERE side = 'host')
SELECT o.name, o.overload, o.input_shapes::VARCHAR, o.input_types::VARCHAR, o.input_strides::VARCHAR,
    o.concrete_inputs::VARCHAR, o.kernel_file, o.autocast, m.* EXCLUDE (operator_id), call_id, k.name,
    (sum(grid_x * grid_y * grid_z) // count(DISTINCT o.operator_id))::BIGINT,
    list(DISTINCT o.operator_id), sum(a.duration_ns)::BIGINT
FROM outermost o
JOIN device_activities a
    ON a.trace_id = o.trace_id AND a.kind = 'kernel'
        AND a.operator_id BETWEEN o.operator_id AND o.last_descendant_id
JOIN kernel_names k USING (name_id)
JOIN activity_costs c USING (activity_id)
LEFT JOIN communicated m ON m.operator_id = o.operator_id
GROUP BY ALL

-- :name in_order
-- One row per operator of those given (parameter), in the order in which its thread called them. Reads operators.
SELECT trace_id, thread_id, operator_id FROM operators
WHERE operator_id IN (SELECT unnest($1::BIGINT[])) ORDER BY ALL

-- :name below
-- One row per operator that those given (parameter) called, and for each of these: its id, its name, and whose it is. Reads
-- operators.
SELECT o.operator_id, o.name, above.operator_id
FROM operators above JOIN (SELECT unnest($1::BIGINT[]) AS operator_id) USING (operator_id)
JOIN operators o ON o.operator_id BETWEEN above.operator_id AND above.last_descendant_id

-- :name launches
-- One row per launch of a kernel of those named (parameter): its name, the grid, the operator that launched it, its id, its
-- time in ns. Reads device_activities, kernel_names.
SELECT name, grid_x, grid_y, grid_z, operator_id, activity_id, duration_ns
FROM device_activities JOIN kernel_names USING (name_id)
WHERE device_activities.kind = 'kernel' AND list_contains($1::VARCHAR[], name) ORDER BY activity_id
