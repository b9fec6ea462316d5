"""Launches of whole traces recorded on an H200: every one that a rule predicts is the one recorded."""

from __future__ import annotations

from typing import Any

from case_tables import cases
from opscope.launches.facts import DeviceFacts, LaunchFacts, LaunchGeometry, parse_compile_arguments
from opscope.launches.launch_explanation import explain
from opscope.operators.arguments import parse_arguments
from opscope.provenance.kernel_names.decoder import decode

H200 = DeviceFacts("NVIDIA H200", "9.0", 132)
_LAUNCHES = """
SELECT k.name, o.name AS operator, o.input_shapes, o.input_types, o.input_strides, o.concrete_inputs, grid_x,
    grid_y, grid_z, block_x, block_y, block_z, registers_per_thread, shared_memory_bytes, occupancy_estimate,
    count(*) AS launches, t.kernel_kwargs
FROM device_activities a JOIN kernel_names k USING (name_id) LEFT JOIN operators o USING (operator_id)
    LEFT JOIN triton_launches t ON t.operator_id = o.operator_id
WHERE a.kind = 'kernel' AND grid_x IS NOT NULL
GROUP BY ALL"""


def facts(row: dict[str, Any]) -> LaunchFacts:
    call = row["operator"] and parse_arguments(
        row["operator"],
        shapes=row["input_shapes"],
        types=row["input_types"],
        strides=row["input_strides"],
        concrete=row["concrete_inputs"],
    )
    geometry = LaunchGeometry(
        (row["grid_x"], row["grid_y"], row["grid_z"]),
        (row["block_x"], row["block_y"], row["block_z"]),
        row["registers_per_thread"],
        row["shared_memory_bytes"],
        row["occupancy_estimate"],
        row["launches"],
        0,
    )
    arguments = parse_compile_arguments(row["kernel_kwargs"])
    return LaunchFacts(decode(row["name"]), geometry, call or None, H200, arguments)


@cases("trace", "least_checked", "least_known")
def test_predicted_launches_are_the_recorded_ones(shared, load, trace, least_checked, least_known):
    session = load(shared / "traces" / "h200" / f"{trace}.json.gz")
    rows = session.records(_LAUNCHES)
    checked, known = set(), 0
    for row in rows:
        told = explain(facts(row))
        assert told is not None
        known += row["launches"] if told.family is not None else 0
        if told.is_predicted is not None:
            assert told.is_predicted, (row, told.statements)
            checked.add((row["name"], row["grid_x"], row["grid_y"], row["grid_z"], row["operator"]))
    assert len(checked) >= least_checked
    assert known >= least_known * sum(row["launches"] for row in rows)
