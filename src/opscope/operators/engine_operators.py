"""Costs of operators that serving engines register: vLLM's, SGLang's, aiter's, torch's symmetric memory.

Simple ones are rows of `engine_operators.toml`. What arguments alone do not tell has a rule here; attention
over a cache takes the numbers of queries and keys from the engine's own annotation of the step. Where a trace
does not tell even that, the cost is unknown with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NamedTuple

from opscope.data import packaged_toml
from opscope.hardware.devices import DataType
from opscope.model.session import Session
from opscope.operators.arguments import CallArguments, ElementType, TensorArgument, type_of
from opscope.operators.distinct_calls import DistinctCall
from opscope.operators.effects import (
    CallCost,
    CostEvidence,
    FlopSource,
    UnrecordedError,
    bytes_of,
    known,
    require,
)
from opscope.provenance.kernel_names.decoder import decode
from opscope.provenance.serving import serving_step

_RULED = CostEvidence.SHAPE_RULES


class _Call(NamedTuple):
    """A call of an engine's operator: its arguments have no names."""

    session: Session
    row: Mapping[str, Any]
    recorded: DistinctCall
    arguments: CallArguments

    def has(self, position: int) -> bool:
        given = self.arguments.arguments
        return position < len(given) and isinstance(given[position], TensorArgument)

    def tensor(self, position: int) -> TensorArgument:
        found = self.arguments.arguments[position] if self.has(position) else None
        return known(found if isinstance(found, TensorArgument) else None)

    def element(self, position: int) -> ElementType:
        return known(type_of(self.tensor(position)))

    def bytes(self, *positions: int) -> int:
        return bytes_of(map(self.tensor, positions))


def engine_cost(session: Session, call: DistinctCall, arguments: CallArguments) -> CallCost | None:
    row = packaged_toml(__package__, "engine_operators.toml").get(call.name)
    if row is None or arguments.defect is not None:
        return None
    try:
        return _RULES[row.get("kind", "plain")](_Call(session, row, call, arguments))
    except UnrecordedError as error:
        return CallCost(reason=str(error))


def _plain(call: _Call) -> CallCost:
    changed = call.bytes(*call.row.get("changes", ()))
    read = changed + call.bytes(*call.row.get("reads", ()))
    written = changed + call.bytes(*call.row.get("writes", ()), *call.row.get("makes", ()))
    for count, kind in call.row.get("writes_as", ()):
        written += call.tensor(count).element_count * call.element(kind).size_bytes
    for table, places in call.row.get("gathers", ()):
        of = call.tensor(table)
        require(of.shape)
        gathered = min(call.tensor(places).element_count, of.shape[0])
        read += gathered * prod(of.shape[1:]) * known(type_of(of)).size_bytes
    per_element = call.row.get("flops", 0)
    count = per_element * call.tensor(call.row["of"]).element_count if per_element else 0
    source = FlopSource.DEFINITION if count else FlopSource.NONE
    return CallCost(count, source, read, written, DataType.FP32 if count else None, _RULED)


def _all_reduce(call: _Call) -> CallCost:
    """Each rank reads its tensor and gets the sum; it adds its share of the others'."""
    tensor, size = call.tensor(call.row.get("tensor", 0)), call.bytes(call.row.get("tensor", 0))
    element, counts = type_of(tensor), call.session.query("SELECT DISTINCT world_size FROM traces")
    ranks = int(counts[0][0]) if len(counts) == 1 and counts[0][0] else None
    if ranks is None:
        return CallCost(None, None, size, size, None, _RULED, "the number of ranks was not recorded")
    additions = tensor.element_count * (ranks - 1) // ranks
    data_type = None if element is None or not additions else element.compute_type
    return CallCost(additions, FlopSource.DEFINITION, size, size, data_type, _RULED)


def _scaled_product(call: _Call) -> CallCost:
    """A product of two matrices with scales; results are given first, or made in 16 bits."""
    makes = bool(call.row.get("makes"))
    at = 0 if makes else 1
    first, second = call.tensor(at), call.tensor(at + 1)
    require(len(first.shape) == len(second.shape) == 2 and first.shape[1] == second.shape[0])
    (rows, depth), columns = first.shape, second.shape[1]
    written = rows * columns * 2 if makes else call.bytes(0)
    read = call.bytes(at, at + 1, *filter(call.has, (at + 2, at + 3)))  # with its scales
    element = type_of(first)
    return CallCost(
        2 * rows * columns * depth,
        FlopSource.REGISTRY,
        read,
        written,
        None if element is None else element.operand_type,
        _RULED,
    )


def _experts(call: _Call) -> CallCost:
    """Weights are among the arguments: tokens, both weights, and what each token chose, evenly."""
    require(not call.row.get("is_unnamed"), "the weights of its experts are no arguments")
    hidden, first, second, chosen = (call.tensor(at) for at in range(4))
    require([len(one.shape) for one in (hidden, first, second, chosen)] == [2, 3, 3, 2])
    tokens, each, experts = hidden.shape[0], chosen.shape[1], first.shape[0]
    require(0 < each <= experts)
    weights, element = prod(first.shape[1:]) + prod(second.shape[1:]), known(type_of(first))
    used = max(each, round(experts * (1 - (1 - each / experts) ** tokens)))
    moved = call.bytes(0)
    return CallCost(
        2 * tokens * each * weights,
        FlopSource.REGISTRY,
        moved + used * weights * element.size_bytes,
        moved,
        element.operand_type,
        _RULED,
    )


_KERNELS_SQL = """
SELECT n.name FROM device_activities a JOIN kernel_names n USING (name_id)
WHERE a.operator_id = ? AND a.kind = 'kernel' ORDER BY a.start_ns, a.activity_id"""
_NO_STEP = "how many keys its queries see was not recorded (an engine's annotation of the step says it)"
_WINDOWED = "its kernel attends within a window, which was not recorded"
_MAY_BE_WINDOWED = "its kernel serves whole and windowed attention alike, and the window was not recorded"
_WINDOW = re.compile(r"Sliding|Chunked|_swa_|LocalAttention")
_EITHER = re.compile(r"^kernel_unified_attention_[23]d")


def _attention(call: _Call) -> CallCost:
    """Queries, keys and values of the batch are arguments; what the cache holds the annotation tells."""
    query, key = call.tensor(0), call.tensor(1)
    kernels = [decode(name) for (name,) in call.session.query(_KERNELS_SQL, [call.recorded.example_id])]
    require(not any(_WINDOW.search(kernel.name) for kernel in kernels), _WINDOWED)
    require(not any(_EITHER.match(kernel.name) for kernel in kernels), _MAY_BE_WINDOWED)
    step = None if call.recorded.engine_step is None else serving_step(call.recorded.engine_step)
    if step is None or step.attended_pairs is None or step.keys is None or not step.tokens:
        raise UnrecordedError(_NO_STEP)
    width, key_width = (prod(one.shape[1:]) for one in (query, key))
    main = max(kernels, key=lambda one: "attention" in (one.family or ""), default=None)
    is_fp8 = main is not None and re.search(r"Qkv?E4m3|KvE4m3|e4m3", main.name) is not None
    cache_bytes = 2 * step.keys * key_width * (1 if is_fp8 else known(type_of(key)).size_bytes)
    result_bytes = call.element(3).size_bytes if call.has(3) else 2
    return CallCost(
        4 * step.attended_pairs * width,
        FlopSource.REGISTRY,
        step.tokens * width * known(type_of(query)).size_bytes + cache_bytes,
        step.tokens * width * result_bytes,
        DataType.FP8 if is_fp8 else known(type_of(query)).operand_type,
        CostEvidence.ENGINE_STEP,
    )


_RULES: Mapping[str, Callable[[_Call], CallCost]] = {
    "plain": _plain,
    "all_reduce": _all_reduce,
    "scaled_product": _scaled_product,
    "experts": _experts,
    "attention": _attention,
}
