-- One row per operator of the list that is the parameter: its id and the name of the operator that the program called:
-- going outward from it while operators are ATen's, the last of them; the operator itself if it is no ATen operator.
-- Reads operators.
WITH RECURSIVE up AS (
    SELECT operator_id AS leaf, parent_id, name, depth FROM operators WHERE list_contains(?::BIGINT[], operator_id)
    UNION ALL
    SELECT leaf, o.parent_id, o.name, o.depth
    FROM up JOIN operators o ON o.operator_id = up.parent_id
    WHERE up.name LIKE 'aten::%' AND o.name LIKE 'aten::%'
)
SELECT leaf, arg_min(name, depth) FROM up GROUP BY leaf ORDER BY leaf
