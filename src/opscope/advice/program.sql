-- One row: facts of the recorded program, and the device time of all that it launched while it was recorded. Reads
-- operators, device_activities.
WITH names AS (SELECT name, count(*) AS calls FROM operators GROUP BY name)
SELECT
    coalesce((SELECT sum(calls) FROM names
        WHERE name LIKE 'autograd::engine::evaluate_function%' OR regexp_matches(name, '(^|[:_ ])\w*[Bb]ackward')), 0)::BIGINT
        AS backward_operators,
    coalesce((SELECT sum(calls) FROM names
        WHERE starts_with(name, 'Torch-Compiled Region') OR starts_with(name, 'CompiledFunction')
            OR starts_with(name, 'triton_')), 0)::BIGINT AS compiled_operators,
    coalesce((SELECT sum(duration_ns) FROM device_activities WHERE attribution <> 'before_window'), 0)::BIGINT
        AS launched_ns
