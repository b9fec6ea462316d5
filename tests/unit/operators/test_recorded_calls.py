"""Rules against torch on every call that real traces recorded with device time of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opscope.operators.arguments import (
    CallArguments,
    ScalarArgument,
    TensorArgument,
    TensorListArgument,
    is_number,
    parse_arguments,
    with_list_type,
)
from opscope.operators.element_types import element_type, element_type_of_code
from opscope.operators.operator_table import cost_by_rules, effects_by_rules

pytestmark = pytest.mark.torch

EAGER = ("bert_bs8_seq128_infer", "bert_eager_attn", "bert_train_bf16", "gpt2_generate_fp16", "misc_ops_fp32")
OF_OPERATORS = ("bert_compile_bf16", "ddp_w4/rank0", "own_kernels")
# Lists of tensors without their members' types or, of more than 30, without their members; collectives, code
# of torch.compile, results that depend on the data.
LISTS = ("aten::_foreach_", "aten::_fused_", "aten::cat")
BEYOND_RULES = (*LISTS, "record_param_comms", "triton_", "aten::_unique2")
DISTINCT_CALLS = """
    SELECT name, overload, input_shapes::VARCHAR, input_types::VARCHAR, input_strides::VARCHAR,
        concrete_inputs::VARCHAR, sum(self_device_ns)::BIGINT
    FROM operators WHERE self_device_ns > 0 GROUP BY ALL
"""


def recorded_calls(session: Any) -> Iterator[tuple[CallArguments, int]]:
    for name, overload, shapes, types, strides, concrete, self_device_ns in session.query(DISTINCT_CALLS):
        call = parse_arguments(
            name, overload=overload, shapes=shapes, types=types, strides=strides, concrete=concrete
        )
        yield call, self_device_ns


@pytest.mark.parametrize("trace", [*EAGER, *OF_OPERATORS])
def test_rules_speak_of_all_operators_but_lists(shared: Path, load: Any, trace: str) -> None:
    session = load(shared / "traces/h200" / f"{trace}.json.gz")
    silent = set()
    for call, _ in recorded_calls(session):
        cost = cost_by_rules(call)
        if not call.name.startswith(BEYOND_RULES) and (cost is None or cost.min_bytes is None):
            silent.add(call.name)
    assert not silent


@pytest.mark.parametrize("trace", EAGER)
def test_rules_alone_know_most_of_the_time(shared: Path, load: Any, trace: str) -> None:
    session = load(shared / "traces/h200" / f"{trace}.json.gz")
    total_ns = known_ns = counted_ns = 0
    for call, self_device_ns in recorded_calls(session):
        if call.name.startswith(LISTS):
            continue
        cost = cost_by_rules(call)
        total_ns += self_device_ns
        known_ns += self_device_ns if cost is not None and cost.min_bytes is not None else 0
        counted_ns += self_device_ns if cost is not None and cost.flop_count is not None else 0
    assert known_ns >= 0.99 * total_ns
    assert counted_ns >= 0.99 * total_ns


@pytest.mark.parametrize("trace", [*EAGER, *OF_OPERATORS])
def test_results_are_those_of_torch(shared: Path, load: Any, recorder: Any, stated: Any, trace: str) -> None:
    session = load(shared / "traces/h200" / f"{trace}.json.gz")
    compared = 0
    for recorded, _ in recorded_calls(session):
        call = with_list_type(recorded, "float32")
        effects = effects_by_rules(call)
        if effects is None or not effects.outputs or "attention" in call.name:
            continue
        replayed = list(_replays(call, recorder))
        if replayed:
            assert stated(effects.outputs) in replayed, call
            compared += 1
    assert compared >= (1 if trace == "own_kernels" else 5)


def _replays(call: CallArguments, recorder: Any) -> Iterator[list[Any]]:
    """Shapes and types of results of every overload that takes the recorded arguments."""
    packet = getattr(recorder.torch.ops.aten, call.name.partition("::")[2])
    for overload in packet.overloads():
        operator = getattr(packet, overload)
        declared = operator._schema.arguments
        if len(declared) != len(call):
            continue
        values = [
            _value(recorder, argument, str(one.type))
            for argument, one in zip(call.arguments, declared, strict=True)
        ]
        named = {
            one.name: value
            for one, value in zip(declared, values, strict=True)
            if one.kwarg_only and value is not None
        }
        try:
            results = operator(
                *(value for one, value in zip(declared, values, strict=True) if not one.kwarg_only), **named
            )
        except (RuntimeError, TypeError, NotImplementedError, ValueError):
            continue
        if results is None:
            results = values[0]
        tensors = results if isinstance(results, tuple | list) else [results]
        if not all(isinstance(one, recorder.torch.Tensor) for one in tensors):
            continue  # an overload for numbers
        yield [(tuple(one.shape), str(one.dtype).removeprefix("torch.")) for one in tensors]


def _value(recorder: Any, argument: Any, declared: str) -> Any:
    if isinstance(argument, TensorArgument):
        if is_number(argument) and declared == "Tensor":
            return {"float64": 0.5, "int64": 2}.get(_name(argument), _tensor(recorder, argument))
        return _tensor(recorder, argument)
    if isinstance(argument, TensorListArgument):
        return [_tensor(recorder, tensor) for tensor in argument.tensors or ()]
    if isinstance(argument, ScalarArgument):
        if "ScalarType" in declared and isinstance(argument.value, int):
            known = element_type_of_code(argument.value)
            return None if known is None else getattr(recorder.torch, known.name)
        return float(argument.text or math.nan) if argument.value is None else argument.value
    return None


def _tensor(recorder: Any, argument: TensorArgument) -> Any:
    return recorder.meta(*argument.shape, dtype=_name(argument), strides=argument.strides)


def _name(argument: TensorArgument) -> str:
    known = element_type(argument.type_name)
    assert known is not None
    return known.name
