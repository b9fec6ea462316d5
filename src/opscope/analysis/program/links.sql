-- One row per backward operator: the forward operator it differentiates. The engine's own range around a backward
-- operator counts as it: there it reduces and sums the gradients. Reads autograd_links, operators.
SELECT backward_id, min(forward_operator_id) AS forward_id FROM (
    SELECT backward_operator_id AS backward_id, forward_operator_id FROM autograd_links
    UNION ALL
    SELECT p.operator_id, forward_operator_id
    FROM autograd_links JOIN operators b ON b.operator_id = backward_operator_id
    JOIN operators p ON p.operator_id = b.parent_id
    WHERE starts_with(p.name, 'autograd::engine::evaluate_function: '))
WHERE forward_operator_id <> backward_id
GROUP BY backward_id
