"""The packaged table of the installed release against its torchgen and its dispatcher."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from case_tables import cases
from opscope.provenance import native_functions
from torch_tables.operator_table import Places, build_operator_table, called_operators

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def built(torch):
    """The table of the installed PyTorch, without places."""
    folder = Path(torch.__file__).parents[1] / "torchgen/packaged"
    return build_operator_table(
        folder, Places(None, None, None, {}), version=torch.__version__, git_version=None
    )


def placeless(entry):
    served = {key: replace(one, place=None, stubs={}, launchers=()) for key, one in entry.served.items()}
    return replace(entry, served=served)


def test_the_packaged_table_is_what_torchgen_says(torch, built):
    packaged = native_functions.packaged_table(torch.__version__)
    if packaged is None:
        pytest.skip("no table of the installed release is packaged")
    assert list(map(placeless, packaged.functions)) == list(built.functions)
    assert packaged.derivatives == built.derivatives


_ROW = re.compile(r"(\w+): .* \[(.+)\]")


def test_the_key_that_serves_a_backend(torch, built):
    expected, found = {}, {}
    known = set(torch._C._dispatch_get_all_op_names())
    for entry in built.functions:
        name = f"{entry.name}.{entry.overload}".rstrip(".")
        if name in known:
            served = entry.served.get("CPU")
            found[name] = served and served.key
            expected[name] = served_key(torch, name, "CPU")
    assert len(found) > 3000
    assert found == expected


def served_key(torch, name, backend):
    """The key that serves an operator, of the table the dispatcher computes."""
    rows = map(_ROW.fullmatch, torch._C._dispatch_dump_table(name).splitlines())
    how = next((row[2] for row in rows if row and row[1] == backend), None)
    if how == "kernel":
        return backend
    if how == "default backend kernel":
        non_functional = "CompositeExplicitAutogradNonFunctional"
        has_one = torch._C._dispatch_has_kernel_for_dispatch_key(name, non_functional)
        return non_functional if has_one else "CompositeExplicitAutograd"
    return "CompositeImplicitAutograd" if how == "math kernel" else None


@cases("formula", "operators")
def test_calls_in_formulas(formula, operators):
    assert called_operators(formula, {"mul", "size"}) == operators
