-- One row: facts of the recorded program. Reads operators, device_activities.
-- `stepped_fraction`: of the device time of operators, the part launched within steps; 1 where there are no steps.
WITH names AS (SELECT name, count(*) AS calls FROM operators GROUP BY name),
    stepped AS (
        SELECT sum(duration_ns) FILTER (WHERE step IS NOT NULL) AS in_steps, sum(duration_ns) AS total
        FROM device_activities WHERE attribution NOT IN ('before_window'))
SELECT
    coalesce((SELECT sum(calls) FROM names
        WHERE name LIKE 'autograd::engine::evaluate_function%' OR regexp_matches(name, '(^|[:_ ])\w*[Bb]ackward')), 0)::BIGINT
        AS backward_operators,
    coalesce((SELECT sum(calls) FROM names
        WHERE starts_with(name, 'Torch-Compiled Region') OR starts_with(name, 'CompiledFunction')
            OR starts_with(name, 'triton_')), 0)::BIGINT AS compiled_operators,
    CASE WHEN (SELECT count(*) FROM steps) = 0 OR total = 0 THEN 1.0 ELSE coalesce(in_steps, 0) / total END
        AS stepped_fraction
FROM stepped
