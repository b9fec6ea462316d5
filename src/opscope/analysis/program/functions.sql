-- One row per distinct name of a recorded Python function (no builtin, no module call), and whether it was the
-- outermost of a thread. Reads frames.
SELECT name, bool_or(parent_python_id IS NULL) AS is_outermost
FROM frames WHERE module_id IS NULL AND NOT starts_with(name, '<built-in ')
GROUP BY name ORDER BY name
