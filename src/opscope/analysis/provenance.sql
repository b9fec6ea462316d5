-- :name generated
-- One row per kernel and compiled graph that noted its source: what the code stands for. Reads kernel_sources,
-- kernel_names.
SELECT n.name, s.stacks, s.copy, s.kind, s.graph, s.original_aten, s.source_nodes, s.modules,
    s.post_grad_nodes
FROM kernel_sources s JOIN kernel_names n USING (name_id) ORDER BY n.name, s.graph, s.hash

-- :name kernels
-- One row per kernel: what is known of it, as `KernelFacts`. Reads kernel_provenance, kernel_names.
SELECT n.name, p.* REPLACE (coalesce(units, []) AS units), p.registered_by AS binary,
    CASE WHEN file IS NOT NULL THEN struct_pack(file := file, file_grade := file_grade, line := line,
        end_line := end_line, line_grade := line_grade, url := url) END AS location,
    CASE WHEN template_file IS NOT NULL THEN struct_pack(file := template_file, file_grade := template_file_grade,
        line := template_line, end_line := template_end_line, line_grade := template_line_grade,
        url := template_url) END AS template
FROM kernel_provenance p JOIN kernel_names n USING (name_id)

-- :name functions
-- One row per operator name and native function its calls reached, as `NativeFunctionUse`: calls, their own device time in
-- ns. Reads native_functions, operator_functions.
SELECT c.name AS operator, f.* REPLACE (coalesce(tags, []) AS tags), c.calls, c.self_device_ns,
    CASE WHEN file IS NOT NULL THEN struct_pack(file := file, file_grade := file_grade, line := line,
        end_line := end_line, line_grade := line_grade, url := url) END AS location,
    CASE WHEN stub_file IS NOT NULL THEN struct_pack(file := stub_file, file_grade := stub_file_grade,
        line := stub_line, end_line := stub_end_line, line_grade := stub_line_grade,
        url := stub_url) END AS stub_location
FROM native_functions f JOIN (
    SELECT name, native_function_id, sum(calls)::BIGINT AS calls,
        sum(self_device_ns)::BIGINT AS self_device_ns
    FROM operator_functions GROUP BY ALL) c USING (native_function_id)
ORDER BY c.self_device_ns DESC, c.calls DESC, f.native_function_id

-- :name kernel_times
-- One row per kind of knowledge of kernels: device time in ns. Torch's own were written in PyTorch, or compiled into it from
-- the templates of these libraries; attention kernels name no library, but their namespaces are those that PyTorch gives its
-- copies. Reads device_activities, kernel_provenance, kernel_names.
SELECT coalesce(p.library IN ('aten', 'cub', 'thrust'), false) OR contains(n.name, 'pytorch_flash::')
        OR contains(n.name, 'PyTorchMemEffAttention::') AS is_own, len(p.units) > 0 AS has_unit,
    len(p.units) = 1 AS has_single_unit, p.family IS NOT NULL AS has_family,
    p.grades->>'family' AS family_grade, p.unit_grade, p.line_grade, sum(a.duration_ns)::BIGINT AS ns
FROM (SELECT name_id, sum(duration_ns) AS duration_ns FROM device_activities GROUP BY name_id) a
JOIN kernel_provenance p USING (name_id) JOIN kernel_names n USING (name_id)
GROUP BY ALL

-- :name operator_times
-- One row per kind of knowledge of operators' functions: their own device time in ns. Reads operator_functions,
-- native_functions.
SELECT f.name LIKE 'aten::%' AS is_aten,
    f.yaml_line IS NOT NULL OR (f.details->'candidates') IS NOT NULL AS has_entry, f.overload_grade,
    coalesce(f.stub_file_grade, f.file_grade) AS file_grade,
    coalesce(f.stub_line_grade, f.line_grade) AS line_grade, sum(c.self_device_ns)::BIGINT AS ns
FROM operator_functions c JOIN native_functions f USING (native_function_id)
WHERE c.self_device_ns > 0 GROUP BY ALL
