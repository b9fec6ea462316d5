"""What is said of every launch of `launches.jsonl`; `--update-golden` writes `explanations.txt`."""

import re
from pathlib import Path

import pytest

from case_tables import cases
from opscope.launches.launch_explanation import Heading, explain, read_explanations

from .conftest import each_record

EXPECTED = Path(__file__).with_name("explanations.txt")
OF_ANY_KERNEL = re.compile(r"registers per thread|B of shared memory per block|^No shared memory")
# Told from the grid and the device alone.
WITHOUT_A_CALL = {"device algorithm"}


def tripled(shapes):
    """The shapes with every size three times as large."""
    return 3 * shapes if isinstance(shapes, int) else [tripled(one) for one in shapes]


def lines_of(title, told, is_recorded):
    """Waves, registers and shared memory, which are told of any kernel, only of those that are typed in."""
    yield f"== {title}"
    if told is None:
        yield "nothing is said"
        return
    if not is_recorded:  # else the title says it
        yield f"family: {told.family}"
    for one in told.statements:
        is_of_any = one.heading is Heading.WAVES or OF_ANY_KERNEL.search(one.text)
        if not (is_recorded and is_of_any):
            yield f"{one.heading}: {one.text} ({one.grade})"


def patterns_of(entry):
    """Regular expressions for its sentences with any values, parts in brackets left out or not."""
    for heading in Heading:
        for item in entry.get(heading.value, ()):
            text = item if isinstance(item, str) else item["text"]
            text = read_explanations()["shared"][text[1:]] if text.startswith("@") else text
            parts = (re.sub(r"\\{.*?\\}", ".+", re.escape(part)) for part in re.split(r"[\[\]]", text))
            text = "".join(f"(?:{part})?" if position % 2 else part for position, part in enumerate(parts))
            yield rf"{heading}: {text} \("


def test_explanations_are_those_expected(launches, pytestconfig):
    found = [
        line
        for title, launch, is_recorded in launches
        for line in lines_of(title, explain(launch), is_recorded)
    ]
    if pytestconfig.getoption("--update-golden"):
        EXPECTED.write_text("\n".join(found) + "\n", encoding="utf-8")
    assert found == EXPECTED.read_text(encoding="utf-8").splitlines()


def test_every_family_was_recorded(records):
    assert {record["family"] for record in records} == {
        entry["family"] for entry in read_explanations()["kernels"]
    }


@each_record
def test_the_recorded_launch_is_explained(record, facts_from):
    told = explain(facts_from(record))
    assert told.family == record["family"]
    assert told.is_predicted == record.get("is_predicted")
    assert [one.heading for one in told.statements] == sorted(
        (one.heading for one in told.statements), key=list(Heading).index
    )


@each_record
def test_other_shapes_do_not_explain_it(record, facts_from):
    if not record["depends_on_shapes"]:
        return
    assert not explain(facts_from(record, shapes=tripled(record["shapes"]))).is_predicted


@each_record
def test_without_the_call_no_launch_is_explained(record, facts_from):
    told = explain(facts_from(record, operator=None))
    if told is None or record["family"] in WITHOUT_A_CALL:
        return
    assert told.is_predicted is None
    assert not told.under(Heading.LAUNCH)


@each_record
def test_without_geometry_and_device_neither_launch_nor_waves(record, facts_from):
    told = explain(facts_from(record, grid=None, block=None, registers=None, shared_bytes=None, device=None))
    if told is None:
        return
    assert told.is_predicted is None
    assert told.waves is None
    assert not told.under(Heading.LAUNCH)
    assert not told.under(Heading.WAVES)


@pytest.mark.parametrize("forgotten", ["strides", "concrete"])
@each_record
def test_less_recorded_says_less_and_nothing_else(record, facts_from, forgotten):
    whole, part = explain(facts_from(record)), explain(facts_from(record, **{forgotten: None}))
    if part is None:
        return
    assert set(part.under(Heading.PARALLEL_OVER)) <= set(whole.under(Heading.PARALLEL_OVER))
    assert part.is_predicted is not False
    assert part.waves == whole.waves


def test_every_sentence_is_said_of_some_launch():
    said = {}
    for block in EXPECTED.read_text(encoding="utf-8").split("== ")[1:]:
        title, *lines = block.splitlines()
        family = lines[0].removeprefix("family: ") if lines[0].startswith("family: ") else title.split(",")[0]
        said.setdefault(family, []).extend(lines)
    for entry in read_explanations()["kernels"]:
        for pattern in patterns_of(entry):
            assert any(re.match(pattern, line) for line in said[entry["family"]]), pattern


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
