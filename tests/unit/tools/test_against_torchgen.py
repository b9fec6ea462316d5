"""The packaged table of the installed release against its torchgen and its dispatcher."""

import json
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


def test_overloads_of_a_recording(torch, built, tmp_path):
    from torch.profiler import ProfilerActivity, profile

    config = pytest.importorskip("torch._C._profiler")._ExperimentalConfig
    try:
        named = config(capture_overload_names=True)
    except TypeError:
        pytest.skip("this PyTorch does not record overload names")
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True, experimental_config=named
    ) as profiler:
        loss = torch.softmax(model(torch.randn(4, 8)), -1).max(1)[0].sum() * 2
        loss.backward()
        optimizer.step()
    trace = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(trace))
    events = [one for one in json.loads(trace.read_text())["traceEvents"] if one.get("cat") == "cpu_op"]
    calls = [
        (one["name"], one["args"].get("Input type")) for one in events if one["name"].startswith("aten::")
    ]
    bare = [(name.partition(".")[0], types) for name, types in calls]
    assert not native_functions.holds_stacks(built, bare)
    found = [native_functions.resolve(built, name, None, types) for name, types in bare]
    answered = [
        (name, f"{one.entry.name}.{one.entry.overload}".rstrip("."))
        for (name, _), one in zip(calls, found, strict=True)
        if one.entry
    ]
    assert len(answered) > 0.9 * len(calls) > 50
    assert [name for name, _ in answered] == [name for _, name in answered]
    nodes = {one["name"] for one in events if re.search(r"evaluate_function|Backward\d", one["name"])}
    assert len(nodes) > 10
    assert [node for node in nodes if built.derivative(node) is None] == []
