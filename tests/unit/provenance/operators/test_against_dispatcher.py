"""The dispatcher of the installed PyTorch as the judge; skipped where there is none."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path

import pytest

from opscope.provenance.operators import InputRecord, dispatch, input_record, resolve
from torch_tables.operator_table import build_operator_table

pytestmark = pytest.mark.torch

_ROW = re.compile(r"(\w+): .* \[(.+)\]")
_KEYS = {
    "math kernel": "CompositeImplicitAutograd",
    "nested kernel": "CompositeImplicitAutogradNestedTensor",
}


@pytest.fixture(scope="module")
def torch():
    """PyTorch, imported without its warnings about the machine."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def table(torch):
    """The table of the installed PyTorch."""
    return build_operator_table(
        Path(torch.__file__).parents[1] / "torchgen/packaged", version=torch.__version__
    )


@pytest.mark.parametrize("backend", ["CPU", "SparseCPU", "SparseCsrCPU", "QuantizedCPU", "NestedTensorCPU"])
def test_the_key_that_serves_a_backend(torch, table, backend):
    expected, found = {}, {}
    known = set(torch._C._dispatch_get_all_op_names())
    for entry in table.functions:
        name = entry.qualified_name
        if name in known:
            served = dispatch(table, entry, backend)
            found[name] = served and served.key
            expected[name] = served_key(torch, name, backend)
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
        return non_functional if has_one and backend != "SparseCPU" else "CompositeExplicitAutograd"
    return _KEYS.get(how)


def test_overloads_of_a_recording(torch, table, tmp_path):
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
    assert input_record(table, bare) is InputRecord.ARGUMENTS
    found = [resolve(table, name, None, types) for name, types in bare]
    answered = [
        (name, one.entry.qualified_name) for (name, _), one in zip(calls, found, strict=True) if one.entry
    ]
    assert len(answered) > 0.9 * len(calls) > 50
    assert [name for name, _ in answered] == [name for _, name in answered]
    nodes = {one["name"] for one in events if re.search(r"evaluate_function|Backward\d", one["name"])}
    assert len(nodes) > 10
    assert [node for node in nodes if table.derivative(node) is None] == []
