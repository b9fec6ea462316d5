-- One row per device activity: its name, step (-1: none) and, where it has no operator, why. Reads device_activities.
SELECT activity_id, name_id::BIGINT AS name_id, coalesce(step, -1)::BIGINT AS step,
    CASE WHEN operator_id IS NULL THEN attribution ELSE '' END AS reason
FROM device_activities
