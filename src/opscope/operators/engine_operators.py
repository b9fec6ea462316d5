"""Costs of operators that serving engines register: vLLM's, SGLang's, aiter's, torch's symmetric memory.

Simple ones are rows of `engine_operators.toml`. What arguments alone do not tell has a rule here; attention
over a cache takes the numbers of queries and keys from the engine's own annotation of the step. Where a trace
does not tell even that, the cost is unknown with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from opscope.data import packaged_toml
from opscope.hardware.devices import DataType
from opscope.model.session import Session
from opscope.operators.arguments import CallArguments, TensorArgument, type_of
from opscope.operators.distinct_calls import DistinctCall
from opscope.operators.effects import CallCost, CostEvidence, FlopSource, UnrecordedError, bytes_of, known
from opscope.operators.element_types import ElementType
from opscope.provenance.kernel_names.decoder import decode
from opscope.provenance.serving import serving_step

_RULED = CostEvidence.SHAPE_RULES


def engine_cost(session: Session, call: DistinctCall, arguments: CallArguments) -> CallCost | None:
    row = packaged_toml(__package__, "engine_operators.toml").get(call.name)
    if row is None or arguments.defect is not None:
        return None
    try:
        return _RULES[row.get("kind", "plain")](session, row, call, arguments)
    except UnrecordedError as error:
        return CallCost(reason=str(error))


def _tensor(arguments: CallArguments, position: int) -> TensorArgument:
    found = arguments.arguments[position] if position < len(arguments) else None
    if not isinstance(found, TensorArgument):
        raise UnrecordedError
    return found


def _type(tensor: TensorArgument) -> ElementType:
    return known(type_of(tensor))


def _bytes(arguments: CallArguments, *positions: int) -> int:
    return bytes_of(_tensor(arguments, at) for at in positions)


def _plain(
    session: Session, row: Mapping[str, Any], call: DistinctCall, arguments: CallArguments
) -> CallCost:
    changed = _bytes(arguments, *row.get("changes", ()))
    read = changed + _bytes(arguments, *row.get("reads", ()))
    written = changed + _bytes(arguments, *row.get("writes", ()), *row.get("makes", ()))
    for count, kind in row.get("writes_as", ()):
        written += _tensor(arguments, count).element_count * _type(_tensor(arguments, kind)).size_bytes
    for table, places in row.get("gathers", ()):
        of = _tensor(arguments, table)
        if not of.shape:
            raise UnrecordedError
        gathered = min(_tensor(arguments, places).element_count, of.shape[0])
        read += gathered * prod(of.shape[1:]) * _type(of).size_bytes
    per_element = row.get("flops", 0)
    count = per_element * _tensor(arguments, row["of"]).element_count if per_element else 0
    source = FlopSource.DEFINITION if count else FlopSource.NONE
    return CallCost(count, source, read, written, DataType.FP32 if count else None, _RULED)


def _all_reduce(
    session: Session, row: Mapping[str, Any], call: DistinctCall, arguments: CallArguments
) -> CallCost:
    """Each rank reads its tensor and gets the sum; it adds its share of the others'."""
    tensor, size = _tensor(arguments, row.get("tensor", 0)), _bytes(arguments, row.get("tensor", 0))
    element, counts = type_of(tensor), session.query("SELECT DISTINCT world_size FROM traces")
    ranks = int(counts[0][0]) if len(counts) == 1 and counts[0][0] else None
    if ranks is None:
        reason = "the number of ranks was not recorded"
        return CallCost(None, None, size, size, None, _RULED, reason)
    additions = tensor.element_count * (ranks - 1) // ranks
    data_type = None if element is None or not additions else element.compute_type
    return CallCost(additions, FlopSource.DEFINITION, size, size, data_type, _RULED)


def _scaled_product(
    session: Session, row: Mapping[str, Any], call: DistinctCall, arguments: CallArguments
) -> CallCost:
    """A product of two matrices with scales; results are given first, or made in 16 bits."""
    makes = bool(row.get("makes"))
    at = 0 if makes else 1
    first, second = _tensor(arguments, at), _tensor(arguments, at + 1)
    if len(first.shape) != 2 or len(second.shape) != 2 or first.shape[1] != second.shape[0]:
        raise UnrecordedError("its recorded matrices do not fit")
    (rows, depth), columns = first.shape, second.shape[1]
    written = rows * columns * 2 if makes else _bytes(arguments, 0)
    scales = [one for one in (at + 2, at + 3) if _is_tensor(arguments, one)]
    read = _bytes(arguments, at, at + 1, *scales)
    element = type_of(first)
    return CallCost(
        2 * rows * columns * depth,
        FlopSource.REGISTRY,
        read,
        written,
        None if element is None else element.operand_type,
        _RULED,
    )


def _is_tensor(arguments: CallArguments, position: int) -> bool:
    return position < len(arguments) and isinstance(arguments.arguments[position], TensorArgument)


def _experts(
    session: Session, row: Mapping[str, Any], call: DistinctCall, arguments: CallArguments
) -> CallCost:
    """Weights are among the arguments: tokens, both weights, and what each token chose, evenly."""
    if row.get("is_unnamed"):
        raise UnrecordedError("the weights of its experts are no arguments")
    hidden, first, second, chosen = (_tensor(arguments, at) for at in range(4))
    if len(hidden.shape) != 2 or len(first.shape) != 3 or len(second.shape) != 3 or len(chosen.shape) != 2:
        raise UnrecordedError("its recorded weights are not those of experts")
    tokens, each, experts = hidden.shape[0], chosen.shape[1], first.shape[0]
    if not 0 < each <= experts:
        raise UnrecordedError
    weights, element = prod(first.shape[1:]) + prod(second.shape[1:]), _type(first)
    used = max(each, round(experts * (1 - (1 - each / experts) ** tokens)))
    moved = _bytes(arguments, 0)
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


def _attention(
    session: Session, row: Mapping[str, Any], call: DistinctCall, arguments: CallArguments
) -> CallCost:
    """Queries, keys and values of the batch are arguments; what the cache holds the annotation tells."""
    query, key = _tensor(arguments, 0), _tensor(arguments, 1)
    kernels = [decode(name) for (name,) in session.query(_KERNELS_SQL, [call.example_id])]
    if any(_WINDOW.search(kernel.name) for kernel in kernels):
        raise UnrecordedError(_WINDOWED)
    if any(_EITHER.match(kernel.name) for kernel in kernels):
        raise UnrecordedError(_MAY_BE_WINDOWED)
    step = None if call.engine_step is None else serving_step(call.engine_step)
    if step is None or step.attended_pairs is None or step.keys is None or not step.tokens:
        raise UnrecordedError(_NO_STEP)
    width, key_width = (prod(one.shape[1:]) for one in (query, key))
    main = max(kernels, key=lambda one: "attention" in (one.family or ""), default=None)
    is_fp8 = main is not None and re.search(r"Qkv?E4m3|KvE4m3|e4m3", main.name) is not None
    cache_bytes = 2 * step.keys * key_width * (1 if is_fp8 else _type(key).size_bytes)
    result_bytes = _type(_tensor(arguments, 3)).size_bytes if _is_tensor(arguments, 3) else 2
    return CallCost(
        4 * step.attended_pairs * width,
        FlopSource.REGISTRY,
        step.tokens * width * _type(query).size_bytes + cache_bytes,
        step.tokens * width * result_bytes,
        DataType.FP8 if is_fp8 else _type(query).operand_type,
        CostEvidence.ENGINE_STEP,
    )


_RULES: Mapping[str, Callable[[Session, Mapping[str, Any], DistinctCall, CallArguments], CallCost]] = {
    "plain": _plain,
    "all_reduce": _all_reduce,
    "scaled_product": _scaled_product,
    "experts": _experts,
    "attention": _attention,
}
