-- One row per distinct call of a convolution, a norm over channels, a pool or an upsampling, with device time: its call_id, operator,
-- arguments as recorded, and of its device time what only turns tensors between channel orders, in ns, with its kernels, and what
-- kernels for groups take that use no tensor cores.
-- Reads call_costs, activity_costs, device_activities, kernel_provenance, kernel_names.
SELECT c.call_id, c.name, c.overload, c.input_shapes AS shapes, c.input_types AS types, c.input_strides AS strides,
    c.concrete_inputs AS concrete,
    coalesce(sum(a.duration_ns) FILTER (WHERE p.family = 'layout_transform'), 0)::BIGINT AS turning_ns,
    count(*) FILTER (WHERE p.family = 'layout_transform') AS turning_count,
    coalesce(sum(a.duration_ns) FILTER (WHERE contains(n.name, 'grouped_direct')), 0)::BIGINT AS direct_ns
FROM call_costs c
JOIN activity_costs ac USING (call_id)
JOIN device_activities a USING (activity_id)
LEFT JOIN kernel_provenance p USING (name_id)
LEFT JOIN kernel_names n USING (name_id)
WHERE c.attribution IS NULL AND regexp_matches(c.name, 'conv|batch_norm|group_norm|upsample|max_pool2d')
GROUP BY ALL
ORDER BY c.call_id
