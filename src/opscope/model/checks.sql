-- What must hold in every Session, to the nanosecond, whatever it was made from. Each statement returns rows only where
-- its law, which its first line says, is broken.

-- :name conservation
-- Σ activity time = Σ operator self time + Σ unattributed time, per trace
SELECT trace_id, activity_ns, self_ns, unattributed_ns FROM
    (SELECT trace_id, sum(duration_ns) AS activity_ns,
        coalesce(sum(duration_ns) FILTER (WHERE operator_id IS NULL), 0) AS unattributed_ns
     FROM device_activities GROUP BY trace_id)
    LEFT JOIN (SELECT trace_id, sum(self_device_ns) AS self_ns FROM operators GROUP BY trace_id) USING (trace_id)
WHERE activity_ns <> coalesce(self_ns, 0) + unattributed_ns

-- :name totals
-- Σ total device time of root operators = Σ self device time, per trace
SELECT trace_id, sum(total_device_ns) FILTER (WHERE parent_id IS NULL) AS roots_ns, sum(self_device_ns) AS self_ns
FROM operators GROUP BY trace_id HAVING roots_ns <> self_ns

-- :name self_time
-- An operator's self device time is the time of the activities that name it
SELECT operator_id, self_device_ns, activity_ns FROM operators
FULL JOIN (SELECT operator_id, sum(duration_ns) AS activity_ns FROM device_activities
    WHERE operator_id IS NOT NULL GROUP BY operator_id) USING (operator_id)
WHERE coalesce(self_device_ns, 0) <> coalesce(activity_ns, 0)

-- :name span
-- busy + idle = span on every device, and busy never exceeds the sum of durations
SELECT d.trace_id, d.device, span_ns, busy_ns, idle_ns, activity_ns FROM devices d
JOIN (SELECT trace_id, device, sum(duration_ns) AS activity_ns FROM device_activities GROUP BY ALL) a
    ON a.trace_id = d.trace_id AND a.device = d.device
WHERE busy_ns + idle_ns <> span_ns OR busy_ns > activity_ns OR idle_ns < 0

-- :name closed_reasons
-- An activity has an operator exactly if its attribution is one of the ways to have one
SELECT activity_id, attribution, operator_id FROM device_activities
WHERE (operator_id IS NOT NULL) <> (attribution IN (
    'external_id', 'correlation', 'graph', 'graph_node', 'graph_sequence'))
    OR attribution IS NULL

-- :name tree
-- A parent's id is smaller than its child's, and its subtree holds the child's
SELECT c.operator_id, c.parent_id FROM operators c JOIN operators p ON c.parent_id = p.operator_id
WHERE c.parent_id >= c.operator_id OR c.last_descendant_id > p.last_descendant_id
    OR c.depth <> p.depth + 1 OR c.thread_id <> p.thread_id
