"""Rules and replay agree exactly wherever both speak, over all recorded traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from opscope.analysis.cost import known_costs
from opscope.analysis.cost.call_cost import CallCost
from opscope.analysis.cost.definitions import DEFINITIONS
from opscope.analysis.cost.distinct_calls import collect_calls
from opscope.model.session import Session

torch = pytest.importorskip("torch")

from opscope.analysis.cost.replay_values import bind, fits  # noqa: E402 - needs torch

pytestmark = pytest.mark.torch

# Trace: comparisons at least.
TRACES = {
    "h200/bert_bs8_seq128_infer": 60,
    "h200/bert_compile_bf16": 20,
    "h200/bert_eager_attn": 80,
    "h200/bert_train_bf16": 250,
    "h200/ddp_straggler_w4/rank1": 150,
    "h200/ddp_w4/rank0": 150,
    "h200/gpt2_compile_cudagraph_bf16": 4,
    "h200/gpt2_generate_fp16": 750,
    "h200/misc_ops_fp32": 200,
    "h200/own_kernels": 4,
    "public/HTA/tests/data/trace_diff/control/control": 1000,
    "public/HTA/tests/data/trace_filter/sampled_rank-0": 300,
    "public/kineto/worker0.1623143089861.pt.trace": 200,
}


def described(session: Session) -> list[Any]:
    """Calls of the Session that arguments must tell."""
    session.replace_rows("activity_costs", [])
    calls = [call for call in collect_calls(session) if known_costs._told_without_arguments(call) is None]
    return [one for one in known_costs._describe(session, calls) if one.call.triton is None]


def facts(first: CallCost, second: CallCost) -> Iterator[tuple[str, Any, Any]]:
    """Name and both values of each fact that both know."""
    for name in ("flop_count", "read_bytes", "written_bytes"):
        values = getattr(first, name), getattr(second, name)
        if None not in values:
            yield name, *values
    if first.min_bytes is not None and second.min_bytes is not None:
        yield "data_type", first.data_type, second.data_type


@pytest.mark.parametrize("trace", TRACES)
def test_they_agree(shared: Path, load: Callable[..., Session], trace: str) -> None:
    calls = described(load(shared / "traces" / f"{trace}.json.gz"))
    by_rules, by_replay = known_costs._by_rules(calls), known_costs._by_replay(calls)
    compared = 0
    for one in calls:
        for name, first, second in facts(by_rules[one.call.call_id], by_replay[one.call.call_id]):
            compared += 1
            assert first == second, (one.call, name)
    assert compared >= TRACES[trace]


def test_formulas_of_torch_are_those_of_torch(shared: Path, load: Callable[..., Session]) -> None:
    """Definitions that claim torch's own formula, against torch.utils.flop_counter."""
    from torch.utils.flop_counter import flop_registry

    compared = set()
    for trace in ("h200/bert_train_bf16", "h200/bert_compile_bf16", "h200/misc_ops_fp32"):
        calls = described(load(shared / "traces" / f"{trace}.json.gz"))
        costs = known_costs._by_rules(calls)
        for one in calls:
            name = one.call.name.partition("::")[2]
            formula = flop_registry.get(getattr(torch.ops.aten, name, None))
            if formula is None or DEFINITIONS[name].source.value != "registry":
                continue
            schema = next(
                schema
                for schema in torch._C._jit_get_schemas_for_operator(one.call.name)
                if fits(one.arguments, schema)
            )
            bound = bind(one.arguments, schema)
            result = getattr(getattr(torch.ops.aten, name), schema.overload_name or "default")(
                *bound.positional, **bound.named
            )
            named = {key: value for key, value in bound.named.items() if key != "out"}
            assert formula(*bound.positional, **named, out_val=result) == costs[one.call.call_id].flop_count
            compared.add(name)
    assert compared >= {"mm", "addmm", "bmm"}
