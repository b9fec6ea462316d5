"""What calls give, compute and move: `calls.jsonl`, a row for each.

Rows are calls of public traces and of an H200, and typed ones; those without results contradict themselves.
With `--update-golden` torch is asked on tensors without data: what it knows of a row (results, its registry's
operations, the addresses of all tensors) is written anew, and nothing else.
"""

import copy
import json
from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from opscope.operators.arguments import CallArguments
from opscope.operators.effects import ContradictionError, FlopSource
from opscope.operators.operator_table import FAMILIES, OPERATORS, cost_by_rules, effects_by_rules

from .notation import call_of, tensor_text

FILE = Path(__file__).with_name("calls.jsonl")
ROWS = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
# Where torch's count is wrong: see operators.attention and operators.convolutions.
MISCOUNTED = (
    "_flash_attention_forward", "_efficient_attention_forward", "_flash_attention_backward",
    "_efficient_attention_backward", "convolution_backward",
)  # fmt: skip
# Tensors without data are treated like those of a CPU, which alone have a buffer here.
OTHER_ON_A_GPU = "log_sigmoid_forward"
# More are not gone through one by one.
MOST_ADDRESSES = 1 << 22


def known(row):
    """What the table says of a row's call."""
    call = call_of(row)
    cost = cost_by_rules(call)
    try:
        effects = effects_by_rules(call)
    except ContradictionError:
        effects = None
    found = {"results": effects and [tensor_text(replace(one, strides=None)) for one in effects.outputs]}
    if cost is not None:
        found |= {"flops": cost.flop_count, "read": cost.read_bytes, "written": cost.written_bytes}
        found |= {"type": cost.data_type and cost.data_type.value}
        if cost.reason is not None:
            found["reason"] = cost.reason
    return found


def test_calls_cost_what_is_known_of_them():
    found = [{**row, "is": known(row)} for row in ROWS]
    assert [one for one, row in zip(found, ROWS, strict=True) if one != row] == []


def test_every_rule_has_a_row_and_products_count_as_in_torch():
    stated = {call_of(row).stem for row in ROWS if row["is"]["results"] is not None}
    assert {name for name, one in OPERATORS.items() if one.results is not None} - stated == set()
    costs = [(row["call"].rstrip("_"), cost_by_rules(call_of(row))) for row in ROWS]
    of_torch = {name for name, cost in costs if cost and cost.flop_source is FlopSource.REGISTRY}
    assert {"mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "convolution"} <= of_torch
    assert not of_torch & {"add", "sum", "linalg_lu_factor_ex"}


@pytest.mark.torch
@pytest.mark.exhaustive(few=False)
def test_torch_says_the_same(recorder, pytestconfig, addressed_bytes):
    """With `--update-golden` what it says is written."""
    stated = copy.deepcopy(ROWS)
    for row in stated:
        row.setdefault("is", known(row))
        is_typed = "untyped" not in json.dumps(row["arguments"])
        of_torch = recorder.replay(call_of(row)) if row["is"]["results"] is not None and is_typed else None
        if of_torch is None or row["call"] == OTHER_ON_A_GPU:
            continue
        count = len(row["is"]["results"])  # states of random numbers and masks for debugging are left out
        if call_of(row).has("output_mask") and count != len(of_torch.results):
            continue  # without data some operators of torch give all gradients
        row["is"]["results"] = of_torch.results[:count]
        if of_torch.flop_count is not None and call_of(row).stem not in MISCOUNTED:
            row["is"]["flops"] = of_torch.flop_count
        operator = OPERATORS[call_of(row).stem or ""]
        is_countable = all(one.numel() <= MOST_ADDRESSES for one in (*of_torch.read, *of_torch.written))
        if operator.traffic is None and "reason" not in row["is"] and is_countable:
            row["is"]["read"] = sum(map(addressed_bytes, of_torch.read))
            row["is"]["written"] = sum(map(addressed_bytes, of_torch.written[:count]))
    if pytestconfig.getoption("--update-golden"):
        FILE.write_text("".join(json.dumps(row) + "\n" for row in stated), encoding="utf-8")
    assert stated == ROWS


# How many operations a Fourier transform takes depends on the algorithm.
UNCOUNTED = {"_fft_r2c", "_fft_c2r", "_fft_c2c"}


def test_an_operator_is_in_one_family_and_what_has_results_has_operations():
    counts = Counter(name for family in FAMILIES for name in family.OPERATORS)
    assert not [name for name, count in counts.items() if count > 1]
    uncounted = {name for name, one in OPERATORS.items() if one.operations is None}
    assert uncounted == UNCOUNTED


@pytest.mark.torch
def test_operators_are_those_that_torch_has(recorder):
    names = (name.partition(".")[0] for name in recorder.torch._C._dispatch_get_all_op_names())
    assert set(OPERATORS) <= {CallArguments(name).stem for name in names}
