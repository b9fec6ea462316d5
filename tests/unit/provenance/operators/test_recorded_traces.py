"""Real traces of the H200 (PyTorch 2.11.0), where the folder of material is at hand."""

import json

import pytest

from opscope.provenance.native_functions import holds_stacks, packaged_table, resolve

TRACES = (
    "bert_bs8_seq128_infer", "bert_compile_bf16", "bert_eager_attn", "bert_train_bf16", "gpt2_generate_fp16",
    "misc_ops_fp32", "own_kernels", "ddp_w4/rank0", "ddp_straggler_w4/rank1",
)  # fmt: skip
CALLS = """SELECT name, overload, input_types, coalesce(sum(self_device_ns), 0) FROM operators
    WHERE name LIKE 'aten::%' GROUP BY ALL"""


@pytest.fixture(scope="module")
def release():
    """The packaged table of PyTorch 2.11.0."""
    return packaged_table("2.11.0")


@pytest.mark.parametrize("trace", TRACES)
def test_every_operator_reaches_a_function(shared, load, release, trace):
    session = load(shared / f"traces/h200/{trace}.json.gz")
    calls = [(*row[:2], row[2] and json.loads(row[2]), row[3]) for row in session.query(CALLS)]
    nodes = {
        row[0] for row in session.query("SELECT DISTINCT name FROM operators WHERE name LIKE 'autograd::%'")
    }
    assert not holds_stacks(release, ((name, types) for name, _, types, _ in calls))
    misses = []
    for name, overload, types, _ in calls:
        found = resolve(release, name, overload, types)
        if found.entry is None or "CUDA" not in found.entry.served:
            misses.append((name, types))
    assert misses == []
    assert [node for node in nodes if release.derivative(node) is None] == []


def test_scripts_are_recognized(shared, load, release):
    path = shared / "traces/public/HTA/tests/data/trace_filter/sampled_rank-0.json.gz"
    rows = load(path).query("SELECT DISTINCT name, input_types FROM operators WHERE name LIKE 'aten::%'")
    assert holds_stacks(release, [(name, types and json.loads(types)) for name, types in rows])
