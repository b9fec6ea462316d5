"""Launches of whole traces recorded on an H200: every one that a rule predicts is the one recorded."""

from case_tables import cases
from opscope.launches.launch_explanation import explain

H200 = {"name": "NVIDIA H200", "compute_capability": "9.0", "sm_count": 132}
_LAUNCHES = """
SELECT k.name AS kernel, o.name AS operator, o.input_shapes AS shapes, o.input_types AS types,
    o.input_strides AS strides, o.concrete_inputs AS concrete, [grid_x, grid_y, grid_z] AS grid,
    [block_x, block_y, block_z] AS block, registers_per_thread AS registers,
    shared_memory_bytes AS shared_bytes, count(*) AS launches, t.kernel_kwargs
FROM device_activities a JOIN kernel_names k USING (name_id) LEFT JOIN operators o USING (operator_id)
    LEFT JOIN triton_launches t ON t.operator_id = o.operator_id
WHERE a.kind = 'kernel' AND grid_x IS NOT NULL
GROUP BY ALL"""


@cases("trace", "least_checked", "least_known")
def test_predicted_launches_are_the_recorded_ones(  # noqa: PLR0917
    shared, load, facts_from, trace, least_checked, least_known
):
    rows = load(shared / "traces" / "h200" / f"{trace}.json.gz").records(_LAUNCHES)
    checked, known = set(), 0
    for row in rows:
        told = explain(facts_from(row, device=H200))
        known += row["launches"] if told.family is not None else 0
        if told.is_predicted is not None:
            assert told.is_predicted, (row, told.statements)
            checked.add((row["kernel"], *row["grid"], row["operator"]))
    assert len(checked) >= least_checked
    assert known >= least_known * sum(row["launches"] for row in rows)
