"""What holds of any kernel name, geometry, call and device."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opscope.hardware.architectures import architecture
from opscope.hardware.occupancy import active_blocks
from opscope.launches.facts import DeviceFacts, LaunchFacts, LaunchGeometry
from opscope.launches.launch_explanation import Heading, explain
from opscope.launches.matrix_product import find_tiling
from opscope.operators.arguments import parse_arguments
from opscope.operators.products import MatrixProduct
from opscope.provenance.kernel_names.decoder import decode

from .conftest import each_record

SIZES = st.sampled_from([0, 1, 2, 3, 7, 31, 32, 33, 64, 128, 257, 1000, 4096, 70000])
SHAPES = st.lists(SIZES, max_size=5)
ARGUMENTS = st.lists(st.one_of(SHAPES, st.lists(SHAPES, max_size=3)), max_size=8)
SCALARS = st.lists(
    st.sampled_from(
        ["", "0", "-1", "1", "2", "True", "0.5", "[0]", "[1, 1]", "[-1]", "[]", "[2, 3]", "none"]
    ),
    max_size=11,
)
TYPES = st.lists(
    st.sampled_from(
        ["", "float", "c10::Half", "bool", "long int", "Scalar", "ScalarList", "TensorList", "?"]
    ),
    max_size=8,
)
EXTENTS = st.none() | st.tuples(*[st.sampled_from([0, 1, 2, 12, 32, 64, 128, 132, 528, 1024, 4096])] * 3)
DEVICES = st.sampled_from(
    [
        None,
        DeviceFacts(),
        DeviceFacts("a", "9.0", 132),
        DeviceFacts("a", "9.0", None),
        DeviceFacts("b", "3.5", 15),
        DeviceFacts("c", "7.5", 1),
        DeviceFacts("d", "8.0", 108, max_threads_per_sm=64),
    ]
)
# "None" begins a sentence of its own: "None: rows are independent."
HOLES = re.compile(r"(?<!^)(?<!\. )\bNone\b|\bnan\b|\binf\b|[{}]|(?<![\w.])-\d")


@settings(max_examples=settings.default.max_examples * 8)
@given(
    which=st.integers(0, 9_999),
    drawn=st.fixed_dictionaries(
        {
            "shapes": st.none() | ARGUMENTS,
            "types": st.none() | TYPES,
            "strides": st.none() | ARGUMENTS,
            "concrete": st.none() | SCALARS,
        }
    ),
    kept=st.sets(st.sampled_from(["shapes", "types", "strides", "concrete"])),
    registers=st.sampled_from([None, 0, 16, 255]),
    shared_bytes=st.sampled_from([None, 0, 48, 300_000]),
    extents=st.tuples(EXTENTS, EXTENTS),
    device=DEVICES,
)
@pytest.mark.exhaustive(few=False)
def test_no_arguments_or_geometry_make_an_explanation_fail(  # noqa: PLR0917 - hypothesis hands them by name
    records, which, drawn, kept, registers, shared_bytes, extents, device
):
    record = records[which % len(records)]
    # Some arguments as recorded, so that rules come further.
    arguments = {key: record.get(key) if key in kept else value for key, value in drawn.items()}
    texts = {key: None if value is None else json.dumps(value) for key, value in arguments.items()}
    call = parse_arguments(record.get("operator") or "aten::add", **texts)
    geometry = LaunchGeometry(*extents, registers, shared_bytes, None, 1, 1)
    told = explain(LaunchFacts(decode(record["kernel"]), geometry, call, device))
    if told is not None:
        assert told.statements
        assert (told.is_predicted is None) == (not told.under(Heading.LAUNCH))


@given(name=st.text(max_size=40), grid=EXTENTS, block=EXTENTS, device=DEVICES)
def test_any_name_is_explained_or_not(name, grid, block, device):
    geometry = LaunchGeometry(grid, block, None, None, None, 1, 1)
    explain(LaunchFacts(decode(name), geometry, None, device))


@each_record
def test_no_statement_holds_a_figure_that_is_missing(record, facts_from):
    for missing in ("nothing", "grid", "block", "device", "shapes", "types", "concrete", "registers"):
        told = explain(facts_from(record, **{missing: None}))
        for statement in told.statements if told is not None else ():
            assert not HOLES.search(statement.text)


@given(
    threads=st.integers(1, 1024),
    registers=st.integers(1, 255),
    shared_bytes=st.integers(0, 100_000),
    capability=st.sampled_from(["7.0", "7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0"]),
)
def test_resident_blocks_stay_within_every_limit(threads, registers, shared_bytes, capability):
    limits = architecture(capability)
    found = active_blocks(limits, threads=threads, registers_per_thread=registers, shared_bytes=shared_bytes)
    if found is None:
        return
    assert 1 <= found.blocks_per_sm <= limits.max_blocks_per_sm
    assert found.blocks_per_sm * threads <= limits.max_threads_per_sm
    assert found.blocks_per_sm * threads * registers <= limits.registers_per_sm
    assert found.blocks_per_sm * shared_bytes <= limits.shared_bytes_per_sm
    assert 0 < found.occupancy <= 1
    assert found.limiters


@given(
    m=st.integers(1, 5000),
    n=st.integers(1, 5000),
    batch=st.sampled_from([1, 2, 12]),
    tile=st.sampled_from([(128, 64), (64, 48), (256, 128)]),
)
def test_one_block_per_tile_is_always_found(m, n, batch, tile):
    across, along = -(-m // tile[0]), -(-n // tile[1])
    found = find_tiling(MatrixProduct(batch, m, n, 64), tile, (across, along, batch))
    assert found.across * found.along * found.batch * found.splits == found.tiles
    assert found.tiles >= -(-m * n * batch // (tile[0] * tile[1]))
