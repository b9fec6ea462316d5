"""Advice on matrix products and convolutions: TF32, 16 bits, odd sizes, sizes too small for the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from opscope.advice.kernel_times import ITEM_BYTES, padded, product_ns
from opscope.advice.profiled_run import (
    Advice,
    ProfiledRun,
    calls_taking,
    finds,
    listed,
    operators_of,
    product_of,
    time_of,
)
from opscope.advice.rules import Rule
from opscope.analysis.efficiency import Bound, CallEfficiency, TensorCoreUse
from opscope.analysis.step_model import GraphChange
from opscope.analysis.tensor_cores import has_tensor_cores_for
from opscope.hardware.devices import DataType
from opscope.operators.products import MatrixProduct
from opscope.provenance.categories import category_of
from opscope.units import format_fraction

_FULL = (DataType.FP32, DataType.TF32)
_HALF = (DataType.BF16, DataType.FP16)
_NAMES = {DataType.BF16: "bfloat16", DataType.FP16: "float16", DataType.TF32: "TF32"}
_KINDS = {"matrix": "Matrix products", "convolution": "Convolutions"}
_ON_TENSOR_CORES = (TensorCoreUse.USED, TensorCoreUse.ELIGIBLE)
_LOAD_BYTES = 16  # of one tensor core operand row. Source: cuBLAS documentation, Tensor Core usage.


@finds
def tf32_off(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    """float32 products on CUDA cores."""
    calls = [call for call in _products(run, _FULL) if call.roofline.tensor_cores is TensorCoreUse.ELIGIBLE]
    total_ns = time_of(calls)
    if not _takes(run, DataType.TF32) or run.is_minor(total_ns, rule):
        return
    after_ns = _times_ns(run, calls, DataType.TF32)
    kinds = {category_of(call.operator) for call in calls}
    # One line of the change for each kind; those found are given.
    lines = zip((rule.change or "").splitlines(), _KINDS, strict=True)
    yield Advice(
        f"{_subject(calls)} of float32 operands without tensor cores take {run.device_time(total_ns)}: TF32 "
        "is off.",
        run.call_evidence(calls),
        None if after_ns is None else calls_taking(calls, after_ns),
        _basis(run, DataType.TF32, calls, after_ns),
        change="\n".join(line for line, kind in lines if kind in kinds),
    )


@finds
def reduced_precision(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    """float32 products where 16 bits would serve."""
    calls = _products(run, _FULL)
    half = next((one for one in _HALF if _takes(run, one)), None)
    total_ns = time_of(calls)
    if half is None or run.is_minor(total_ns, rule):
        return
    after_ns = _times_ns(run, calls, half)
    if after_ns is None and run.step is not None and run.step.is_host_bound:
        return
    effect, basis = None, _basis(run, half, calls, after_ns)
    if after_ns is not None and run.has_backward:
        effect, words = _with_casts(run, calls, after_ns)
        basis += words
    elif after_ns is not None:
        others_ns = {call.call_id: _halved_ns(run, call) for call in run.calls}
        effect = calls_taking(run.calls, after_ns | {call_id: ns for call_id, ns in others_ns.items() if ns})
        saved_ns = sum(call.roofline.device_ns - ns for call in run.calls if (ns := others_ns[call.call_id]))
        basis += f"; kernels bound by memory, with half the bytes, save {run.time(saved_ns)}"
    yield Advice(
        f"{_subject(calls)} of float32 operands take {run.device_time(total_ns)}; in {_NAMES[half]} tensor "
        "cores do them several times as fast.",
        run.call_evidence(calls),
        effect,
        basis,
        change=(rule.change or "").replace("bfloat16", _NAMES[half]),
    )


@finds
def unaligned_products(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    """Products whose sizes keep them from tensor cores' best kernels."""
    found = [
        (call, product)
        for call in _products(run, _HALF)
        if (product := product_of(call)) is not None and _is_unaligned(run, call, product, rule)
    ]
    calls = [call for call, _ in found]
    total_ns = time_of(calls)
    if run.is_minor(total_ns, rule):
        return
    after_ns = {}
    for call, product in found:
        data_type = call.cost.data_type or DataType.BF16
        better_ns = product_ns(padded(product, _multiple(data_type)), data_type, run.rates)
        if better_ns is not None:
            after_ns[call.call_id] = min(float(call.roofline.device_ns), call.calls * better_ns)
    sizes = listed([str(product) for _, product in found], 2)
    yield Advice(
        f"{_subject(calls)} with sizes that are no multiple of {_LOAD_BYTES} bytes ({sizes}) take "
        f"{run.device_time(total_ns)}, in kernels for unaligned operands.",
        run.call_evidence(calls),
        calls_taking(calls, after_ns),
    )


@finds
def small_products(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    """Products of too few tiles for the device."""
    most = rule.threshold("roofline_fraction")
    found = [
        (call, product)
        for call in run.calls
        if call.roofline.bound in (Bound.LATENCY, Bound.LAUNCH)
        and call.roofline.fraction is not None
        and call.roofline.fraction < most
        and (product := product_of(call)) is not None
    ]
    calls = [call for call, _ in found]
    total_ns = time_of(calls)
    if run.is_minor(total_ns, rule):
        return
    _, longest = max(found, key=lambda one: (one[0].roofline.device_ns, -one[0].call_id))
    sizes = f"{longest.batch} of {longest}" if longest.batch > 1 else str(longest)
    attainable_ns = sum(call.roofline.attainable_ns or 0.0 for call in calls)
    yield Advice(
        f"Matrix products ({listed(operators_of(calls), 3)}; the longest {sizes}) are too small "
        f"to fill the device: {run.device_share(total_ns)} at {format_fraction(attainable_ns / total_ns)} of "
        "what it could do.",
        run.call_evidence(calls),
    )


def _products(run: ProfiledRun, types: tuple[DataType, ...]) -> list[CallEfficiency]:
    """Matrix products and convolutions with operands of these types that tensor cores have work for."""
    return [
        call
        for call in run.calls
        if call.cost.data_type in types
        and category_of(call.operator) in _KINDS
        and call.roofline.tensor_cores in _ON_TENSOR_CORES
    ]


def _takes(run: ProfiledRun, data_type: DataType) -> bool:
    if run.capability is None:
        return False
    return bool(has_tensor_cores_for(data_type, "{}.{}".format(*run.capability)))


def _subject(calls: Sequence[CallEfficiency]) -> str:
    categories = {category_of(call.operator) for call in calls}
    kinds = [words for name, words in _KINDS.items() if name in categories]
    return f"{' and '.join(kinds)} ({listed(operators_of(calls), 3)})"


def _times_ns(
    run: ProfiledRun, calls: Sequence[CallEfficiency], data_type: DataType
) -> dict[int, float] | None:
    """Device time of the calls in a type, where shorter, by call id; None where the rate is unknown."""
    if run.rates.flop_per_s(data_type) is None:
        return None
    return {
        call.call_id: call.calls * one_ns
        for call in calls
        if (one_ns := _call_ns(run, call, data_type)) is not None
        and call.calls * one_ns < call.roofline.device_ns
    }


def _call_ns(run: ProfiledRun, call: CallEfficiency, data_type: DataType) -> float | None:
    """Time of one call in a type: by its tiles, else at the share of the rate that it reaches today."""
    product = product_of(call)
    if product is not None:
        return product_ns(product, data_type, run.rates)
    rate, flop_count = run.rates.flop_per_s(data_type), call.cost.flop_count
    today = call.roofline.fraction
    if rate is None or not flop_count or today is None or call.roofline.bound is not Bound.COMPUTE:
        return None
    compute_ns = flop_count / (rate * min(1.0, today)) * 1e9
    memory_ns = run.rates.memory_ns((call.cost.min_bytes or 0) * ITEM_BYTES[data_type] / 4)
    return max(compute_ns + run.book.number("product_fill_ns"), memory_ns or 0.0)


def _basis(
    run: ProfiledRun,
    data_type: DataType,
    calls: Sequence[CallEfficiency],
    after_ns: Mapping[int, float] | None,
) -> str:
    name = _NAMES[data_type]
    if after_ns is None:
        return f"not estimated: the device's {name} rate is unknown"
    then_ns = sum(after_ns.get(call.call_id, call.roofline.device_ns) for call in calls)
    return (
        f"these calls take {run.time(time_of(calls))} and would take {run.time(then_ns)} in {name}, by "
        "whole rounds of tiles and by bytes"
    )


def _with_casts(
    run: ProfiledRun, calls: Sequence[CallEfficiency], after_ns: Mapping[int, float]
) -> tuple[Callable[[GraphChange], object], str]:
    """Autocast casts the operands of each product; what works on the results alone has half the bytes."""
    launches = sum(2 * call.calls for call in calls)
    cast_ns = {
        call.call_id: call.calls * (run.rates.memory_ns((call.cost.read_bytes or 0) * 1.5) or 0.0)
        for call in calls
    }
    limits = run.summary.efficiency.limits
    measured_ns = None if limits is None else limits.operator_call_ns
    host_ns = launches * (measured_ns or run.book.number("operator_host_ns"))
    then_ns = {
        call.call_id: after_ns.get(call.call_id, float(call.roofline.device_ns)) + cast_ns[call.call_id]
        for call in calls
    }
    followers = [call for call in run.calls if _follows_operands(call.operator)]
    others_ns = {call.call_id: ns for call in followers if (ns := _halved_ns(run, call))}
    saved_ns = sum(
        call.roofline.device_ns - others_ns.get(call.call_id, call.roofline.device_ns) for call in followers
    )
    scale = calls_taking(run.calls, others_ns | then_ns)

    def effect(change: GraphChange) -> object:
        scale(change)
        return change.add_host(run.per_step(host_ns))

    return (
        effect,
        f"; casting the operands costs {run.time(sum(cast_ns.values()))} on the device and "
        f"{run.time(host_ns)} on the host; what works on their results, with half the bytes, saves "
        f"{run.time(saved_ns)}",
    )


def _follows_operands(operator: str) -> bool:
    """Whether autocast leaves an operator in the type of its operands.

    Source: aten/src/ATen/autocast_mode.h, PyTorch 2.11, AT_FORALL_FP32 and the lists beside it.
    """
    category = category_of(operator)
    if category in ("activation", "normalization"):
        return "softmax" not in operator and "layer_norm" not in operator and "group_norm" not in operator
    # Sums, products and copies often meet a float32 operand (a residual after a layer norm), which decides.
    return category in ("random", "pooling")


def _halved_ns(run: ProfiledRun, call: CallEfficiency) -> float:
    """What a float32 call that memory bounds takes with half the bytes; 0 of others."""
    is_product = call.roofline.tensor_cores in _ON_TENSOR_CORES
    if is_product or call.roofline.bound is not Bound.MEMORY or call.cost.data_type is not DataType.FP32:
        return 0.0
    floor_ns = call.calls * run.book.number("kernel_floor_ns")
    return min(float(call.roofline.device_ns), max(call.roofline.device_ns / 2, floor_ns))


def _multiple(data_type: DataType) -> int:
    return _LOAD_BYTES // ITEM_BYTES.get(data_type, 2)


def _is_unaligned(run: ProfiledRun, call: CallEfficiency, product: MatrixProduct, rule: Rule) -> bool:
    """Odd sizes, and a kernel that shows it: unaligned operands, or no tensor cores."""
    multiple = _multiple(call.cost.data_type or DataType.BF16)
    sizes = (product.m, product.n, product.k)
    if min(sizes) < rule.threshold("least_rows") or all(size % multiple == 0 for size in sizes):
        return False
    facts = run.kernels.get(call.kernels[0]) if call.kernels else None
    alignment = None if facts is None else facts.fields.get("alignment")
    return call.roofline.tensor_cores is TensorCoreUse.ELIGIBLE or (
        alignment is not None and alignment < multiple
    )
