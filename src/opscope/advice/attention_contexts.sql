-- One row per place in one kind of surroundings of a softmax: the operators with device time just before and after it
-- on its thread. `context` numbers the kinds, `place` counts from the softmax (0); calls, device time in ns, sums of the
-- starts and ends on the host in ns relative to the softmax, whether scaled_dot_product_attention itself computed it
-- (its math path), their ids in the order of the softmaxes; beside them, of the trace, the lengths and sizes of heads
-- that are repeated for a group (batch × heads × 1 × length × size is expanded). Reads operators.
WITH repeated AS (
        SELECT list(DISTINCT [sizes[1]::BIGINT, sizes[2]::BIGINT]) AS heads FROM (
            SELECT regexp_extract(input_shapes::VARCHAR, '^\[\[\d+, ?\d+, ?1, ?(\d+), ?(\d+)\]', ['1', '2']) AS named,
                [named['1'], named['2']] AS sizes
            FROM operators WHERE name = 'aten::expand')
        WHERE sizes[1] <> ''),
    -- Numbered without what else is told of them: windows over a whole thread do not spill.
    leaves AS (
        SELECT operator_id, thread_id, row_number() OVER (PARTITION BY thread_id ORDER BY operator_id) AS position
        FROM operators WHERE self_device_ns > 0),
    anchors AS (
        SELECT a.operator_id, a.thread_id, a.start_ns, l.position,
            coalesce(contains(p.name, 'attention_math') OR contains(g.name, 'attention_math'), false) AS is_math
        FROM operators a JOIN leaves l USING (operator_id)
        LEFT JOIN operators p ON p.operator_id = a.parent_id
        LEFT JOIN operators g ON g.operator_id = p.parent_id
        WHERE a.name IN ('aten::_softmax', 'aten::_softmax_backward_data')
            OR (starts_with(a.name, 'triton_') AND contains(a.name, '_softmax') AND NOT contains(a.name, 'backward'))),
    neighbors AS (
        SELECT a.operator_id AS anchor, l.operator_id, a.is_math, (l.position - a.position)::INTEGER AS place,
            o.name, o.input_shapes, o.input_types, o.self_device_ns, o.start_ns - a.start_ns AS begins_ns,
            o.start_ns + o.duration_ns - a.start_ns AS ends_ns
        FROM (SELECT *, unnest(range(position - 12, position + 13)) AS neighbor FROM anchors) a
        JOIN leaves l ON l.thread_id = a.thread_id AND l.position = a.neighbor
        JOIN operators o ON o.operator_id = l.operator_id),
    contexts AS (
        SELECT anchor, hash(is_math, list(hash(place, name, input_shapes, input_types) ORDER BY place)) AS context
        FROM neighbors GROUP BY anchor, is_math)
SELECT dense_rank() OVER (ORDER BY context) AS context, place, any_value(name) AS name,
    any_value(input_shapes) AS shapes, any_value(input_types) AS types, any_value(is_math) AS is_math,
    count(*) AS calls, sum(self_device_ns)::BIGINT AS device_ns, sum(begins_ns)::BIGINT AS begins_ns,
    sum(ends_ns)::BIGINT AS ends_ns, list(operator_id ORDER BY anchor) AS operator_ids,
    (SELECT heads FROM repeated) AS repeated_heads
FROM neighbors JOIN contexts USING (anchor)
GROUP BY contexts.context, place
ORDER BY context, place
