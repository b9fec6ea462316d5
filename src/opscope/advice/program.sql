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
    -- Operators with weights: what a module does, and a function of tensors does not.
    coalesce((SELECT sum(calls) FROM names WHERE regexp_matches(name,
        '^aten::(linear|addmm|convolution|_convolution|cudnn_convolution|embedding|(native_)?(layer|group|batch)_norm|lstm|gru)$')),
        0)::BIGINT AS layers,
    coalesce((SELECT sum(duration_ns) FROM device_activities WHERE attribution <> 'before_window'), 0)::BIGINT
        AS launched_ns
