-- One row per distinct call of an operator that launched device work by itself: the operator, its arguments as
-- recorded, number of calls, device time in ns, and the operators (member_ids). Calls also differ by what their
-- arguments do not tell: `read_bytes` and `written_bytes` where a call launched copies and sets alone; `kernel` (one of
-- its kernels) and `block_count` (all blocks of all of them) where lists of tensors are among the arguments, for the
-- recorder leaves out their types, and long ones whole; what torch.compile wrote; the collective. Launches of CUDA graphs
-- are left out, for no operator recorded them; so are kernels that carry their own record of a collective.
-- Attention in a serving engine also differs by its kernel, and by the engine's annotation of the step (`engine_step`), which counts its
-- keys. Reads device_activities, kernel_names, operators, triton_launches, collectives, transfers (name_id, reads,
-- writes), engine_steps (trace_id, thread_id, start_ns, end_ns, name).
WITH launched AS (
    SELECT a.operator_id, sum(a.duration_ns)::BIGINT AS device_ns, bool_or(t.name_id IS NULL) AS has_kernel,
        min(a.name_id) FILTER (WHERE t.name_id IS NULL) AS name_id,
        sum(a.grid_x * a.grid_y * a.grid_z) FILTER (WHERE t.name_id IS NULL)::BIGINT AS block_count,
        bool_and(a.size_bytes IS NOT NULL AND t.reads IS NOT NULL) AS has_sizes,
        coalesce(sum(a.size_bytes) FILTER (WHERE t.reads), 0)::BIGINT AS read_bytes,
        coalesce(sum(a.size_bytes) FILTER (WHERE t.writes), 0)::BIGINT AS written_bytes
    FROM device_activities a LEFT JOIN transfers t USING (name_id)
    WHERE a.operator_id IS NOT NULL AND a.attribution <> 'graph'
        AND a.activity_id NOT IN (SELECT activity_id FROM collectives WHERE activity_id IS NOT NULL)
    GROUP BY a.operator_id
), named AS (
    SELECT l.operator_id, l.device_ns, coalesce(o.name, '') AS name, o.overload,
        o.input_shapes::VARCHAR AS input_shapes, o.input_types::VARCHAR AS input_types,
        o.input_strides::VARCHAR AS input_strides, o.concrete_inputs::VARCHAR AS concrete_inputs,
        CASE WHEN NOT l.has_kernel AND l.has_sizes THEN l.read_bytes END AS read_bytes,
        CASE WHEN NOT l.has_kernel AND l.has_sizes THEN l.written_bytes END AS written_bytes,
        CASE WHEN contains(o.input_types::VARCHAR, '"TensorList"')
            OR (contains(o.name, 'attention') AND NOT starts_with(o.name, 'aten::')) THEN l.name_id END AS name_id,
        CASE WHEN contains(o.input_types::VARCHAR, '"TensorList"') THEN l.block_count END AS block_count,
        e.name AS engine_step
    FROM launched l JOIN operators o USING (operator_id)
    LEFT JOIN engine_steps e ON contains(o.name, 'attention') AND NOT starts_with(o.name, 'aten::')
        AND e.trace_id = o.trace_id AND e.thread_id = o.thread_id AND o.start_ns >= e.start_ns AND o.start_ns < e.end_ns
), compiled AS (
    SELECT operator_id, struct_pack(kernel := any_value(kernel_name), source_hash := any_value(kernel_hash),
        num_gb := any_value(kernel_num_gb), flop := any_value(kernel_flop)) AS triton
    FROM triton_launches GROUP BY operator_id HAVING count(*) = 1
), communicated AS (
    SELECT operator_id, struct_pack(name := any_value(name), data_type := any_value(data_type),
        in_element_count := any_value(in_element_count), out_element_count := any_value(out_element_count),
        group_size := any_value(group_size)) AS collective
    FROM collectives WHERE side = 'host' GROUP BY operator_id HAVING count(*) = 1
)
SELECT n.* EXCLUDE (operator_id, device_ns, name_id), k.name AS kernel,
    t.* EXCLUDE (operator_id), c.* EXCLUDE (operator_id),
    count(*) AS calls, sum(n.device_ns)::BIGINT AS self_device_ns, list(n.operator_id) AS member_ids,
    min(n.operator_id) AS example_id
FROM named n
LEFT JOIN kernel_names k USING (name_id)
LEFT JOIN compiled t USING (operator_id)
LEFT JOIN communicated c USING (operator_id)
GROUP BY ALL
