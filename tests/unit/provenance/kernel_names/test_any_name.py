"""Whatever the name, it is decoded: nothing raises, and what is said holds together."""

from pathlib import Path

import pytest
import tomli
from hypothesis import given
from hypothesis import strategies as st

from opscope.provenance.kernel_names.cxx_name import entities, parse
from opscope.provenance.kernel_names.decoder import decode
from opscope.provenance.kernel_names.vocabulary import CATEGORY_OF_FAMILY

FAMILY_NAMES = CATEGORY_OF_FAMILY.keys()
REAL = [
    case["name"]
    for file in sorted((Path(__file__).parent / "cases").glob("*.toml"))
    for case in tomli.loads(file.read_text(encoding="utf-8"))["case"]
]
# Kineto demangles no name longer than 8192 characters.
LENGTHS = (8192, 1500)
PIECES = [
    *("<", "(", "{", "a<", "(<", "x::", "<a,", "{lambda(", "operator<"),
    *("_ZN", "_ZI", "L", "N1a", "1", "a_", "_"),
]
STARTS = ["", "void f<", "_ZN", "triton_poi_fused_", "sm80_xmma_gemm_", "cudnn_generated_", "nvjet_sm90_tst_"]


def check(name):
    kernel = decode.__wrapped__(name)
    assert kernel.name == name
    assert kernel.family is None or kernel.family in FAMILY_NAMES
    assert kernel.direction in (None, "forward", "backward")
    known = {key for key, value in vars(kernel).items() if value is not None and value != ()}
    assert set(kernel.grades) == known - {"name", "grades"}
    cxx = parse(name)
    assert kernel.function == (cxx.function if kernel.family not in ("memcpy", "memset") else None)
    assert all(isinstance(argument, str) for argument in cxx.template_arguments)
    assert all(isinstance(entity.name, str) for entity in entities(cxx.template_arguments))


@given(st.text())
def test_any_text(name):
    check(name)


@given(st.text(alphabet="abZ_:<>(){}[],.?@&*'`~-+$ 0123456789", max_size=400))
def test_text_of_brackets(name):
    check(name)


@given(st.sampled_from(REAL), st.data())
def test_names_that_are_cut_or_garbled(name, data):
    positions = st.integers(0, len(name))
    start, end = sorted((data.draw(positions), data.draw(positions)))
    inserted = data.draw(st.text(alphabet="<>(){},: &*af0_", max_size=8))
    check(name[:start] + inserted + name[end:])


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("length", LENGTHS)
def test_the_longest_names_a_recorder_writes(piece, length):
    """A grammar that backtracks without end does not come to an end here."""
    repeated = piece * (length // len(piece))
    for start in STARTS:
        check(start + repeated)
        check(start + repeated + ">(int)")
