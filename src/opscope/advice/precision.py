"""Advice on the type that products are computed in: TF32, 16 bits, and sizes that tensor cores can load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from opscope.advice.case import Advice, Case
from opscope.advice.product_time import ITEM_BYTES, Product, padded, product_ns, product_of
from opscope.advice.rule_book import Rule
from opscope.advice.rule_functions import RuleFunction
from opscope.advice.step_time import Saving
from opscope.advice.wording import call_evidence, listed, of_device, operators_of, per_step
from opscope.analysis.efficiency import Bound, CallEfficiency, TensorCoreUse
from opscope.analysis.tensor_cores import has_tensor_cores_for
from opscope.hardware.devices import DataType
from opscope.provenance.categories import category_of

__all__ = ["RULES"]

_FULL = (DataType.FP32, DataType.TF32)
_HALF = (DataType.FP16, DataType.BF16)
_LOAD_BYTES = 16  # of one tensor core operand row. Source: cuBLAS documentation, Tensor Core usage.


def tf32_off(case: Case, rule: Rule) -> Iterator[Advice]:
    """float32 products on CUDA cores."""
    calls = [call for call in _products(case, _FULL) if call.roofline.tensor_cores is TensorCoreUse.ELIGIBLE]
    if not _takes(case, DataType.TF32) or case.share(case.time_of(calls)) < rule.threshold("least_fraction"):
        return
    saved_ns = _saved_ns(case, calls, DataType.TF32)
    total_ns = case.time_of(calls)
    yield Advice(
        f"{_subject(calls)} of float32 operands without tensor cores take {of_device(case, total_ns)} "
        f"({per_step(case, total_ns)}): TF32 is off.",
        call_evidence(case, calls),
        None if saved_ns is None else Saving(device_ns=case.per_step(saved_ns)),
        _basis(case, DataType.TF32, total_ns, saved_ns),
        change=_tf32_change(calls, rule),
    )


def reduced_precision(case: Case, rule: Rule) -> Iterator[Advice]:
    """float32 products where 16 bits would serve."""
    calls = _products(case, _FULL)
    half = next((one for one in (DataType.BF16, DataType.FP16) if _takes(case, one)), None)
    total_ns = case.time_of(calls)
    if half is None or case.share(total_ns) < rule.threshold("least_fraction"):
        return
    saved_ns = _saved_ns(case, calls, half)
    if saved_ns is None and case.step is not None and case.step.is_host_bound:
        return
    saving, basis = None, _basis(case, half, total_ns, saved_ns)
    if saved_ns is not None and case.has_backward:
        saving, words = _with_casts(case, calls, saved_ns)
        basis += words
    elif saved_ns is not None:
        others_ns = sum(_halved_ns(case, call) for call in case.calls)
        saving = Saving(device_ns=case.per_step(saved_ns + others_ns))
        basis += f"; kernels bound by memory, with half the bytes, save {per_step(case, others_ns)}"
    yield Advice(
        f"{_subject(calls)} of float32 operands take {of_device(case, total_ns)} "
        f"({per_step(case, total_ns)}); in {_NAMES[half]} tensor cores do them several times as fast.",
        call_evidence(case, calls),
        saving,
        basis,
        change=(rule.change or "").replace("bfloat16", _NAMES[half]),
    )


def unaligned_products(case: Case, rule: Rule) -> Iterator[Advice]:
    """Products whose sizes keep them from tensor cores' best kernels."""
    found: list[tuple[CallEfficiency, Product]] = []
    for call in _products(case, _HALF):
        product = product_of(call)
        if product is not None and _is_unaligned(case, call, product, rule):
            found.append((call, product))
    calls = [call for call, _ in found]
    total_ns = case.time_of(calls)
    if case.share(total_ns) < rule.threshold("least_fraction"):
        return
    sizes = [f"{product.m}×{product.k} by {product.k}×{product.n}" for _, product in found]
    saved_ns = 0.0
    for call, product in found:
        data_type = _type_of(call) or DataType.BF16
        better_ns = product_ns(padded(product, _multiple(data_type)), data_type, case.rates)
        saved_ns += max(0.0, call.roofline.device_ns - call.calls * (better_ns or float("inf")))
    yield Advice(
        f"{_subject(calls)} with sizes that are no multiple of {_LOAD_BYTES} bytes ({listed(sizes, 2)}) take "
        f"{of_device(case, total_ns)} ({per_step(case, total_ns)}), in kernels for unaligned operands.",
        call_evidence(case, calls),
        Saving(device_ns=case.per_step(saved_ns)),
        f"the products at sizes rounded up to {_LOAD_BYTES} bytes, by rounds of tiles at the device's rate",
    )


RULES: Mapping[str, RuleFunction] = {
    "advice.tf32_off": tf32_off,
    "advice.reduced_precision": reduced_precision,
    "advice.unaligned_products": unaligned_products,
}

_NAMES = {DataType.BF16: "bfloat16", DataType.FP16: "float16", DataType.TF32: "TF32"}


def _products(case: Case, types: tuple[DataType, ...]) -> list[CallEfficiency]:
    """Matrix products and convolutions with operands of these types that tensor cores have work for."""
    return [
        call
        for call in case.calls
        if call.cost.data_type in types
        and category_of(call.operator) in ("matrix", "convolution")
        and call.roofline.tensor_cores in (TensorCoreUse.USED, TensorCoreUse.ELIGIBLE)
    ]


def _takes(case: Case, data_type: DataType) -> bool:
    if case.capability is None:
        return False
    return bool(has_tensor_cores_for(data_type, "{}.{}".format(*case.capability)))


def _subject(calls: Sequence[CallEfficiency]) -> str:
    categories = {category_of(call.operator) for call in calls}
    kinds = [words for name, words in _KINDS.items() if name in categories]
    return f"{' and '.join(kinds)} ({listed(operators_of(calls), 3)})"


_KINDS = {"matrix": "Matrix products", "convolution": "Convolutions"}


def _tf32_change(calls: Sequence[CallEfficiency], rule: Rule) -> str:
    """Only the lines that concern what was found."""
    categories = {category_of(call.operator) for call in calls}
    lines = (rule.change or "").splitlines()
    wanted = [line for line, name in zip(lines, ("matrix", "convolution"), strict=True) if name in categories]
    return "\n".join(wanted)


def _saved_ns(case: Case, calls: Sequence[CallEfficiency], data_type: DataType) -> float | None:
    """Device time that the calls would lose in a type; None where the rate is unknown."""
    if case.rates.flop_per_s(data_type) is None:
        return None
    return sum(
        max(0.0, call.roofline.device_ns - call.calls * one_ns)
        for call in calls
        if (one_ns := _call_ns(case, call, data_type)) is not None
    )


def _call_ns(case: Case, call: CallEfficiency, data_type: DataType) -> float | None:
    """Time of one call in a type: by its tiles, else at the share of the rate that it reaches today."""
    product = product_of(call)
    if product is not None:
        return product_ns(product, data_type, case.rates)
    rate, flop_count = case.rates.flop_per_s(data_type), call.cost.flop_count
    today = call.roofline.fraction
    if rate is None or not flop_count or today is None or call.roofline.bound is not Bound.COMPUTE:
        return None
    compute_ns = flop_count / (rate * min(1.0, today)) * 1e9
    item_bytes = ITEM_BYTES[data_type]
    memory_ns = case.rates.memory_ns((call.cost.min_bytes or 0) * item_bytes / 4)
    return max(compute_ns + case.book.number("product_fill_ns"), memory_ns or 0.0)


def _basis(case: Case, data_type: DataType, total_ns: float, saved_ns: float | None) -> str:
    name = _NAMES[data_type]
    if saved_ns is None:
        return f"not estimated: the device's {name} rate is unknown"
    after = per_step(case, total_ns - saved_ns)
    return (
        f"these calls take {per_step(case, total_ns)} and would take {after} in {name}, by whole rounds of "
        "tiles and by bytes"
    )


def _with_casts(case: Case, calls: Sequence[CallEfficiency], saved_ns: float) -> tuple[Saving, str]:
    """Autocast casts both operands of each product before it."""
    launches, cast_ns = 0, 0.0
    for call in calls:
        launches += 2 * call.calls
        read_bytes = call.cost.read_bytes or 0
        cast_ns += call.calls * (case.rates.memory_ns(read_bytes * 1.5) or 0.0)
    host_ns = launches * _operator_host_ns(case)
    saving = Saving(device_ns=case.per_step(saved_ns - cast_ns), host_ns=-case.per_step(host_ns))
    words = f"; casting the operands costs {per_step(case, cast_ns)} on the device"
    return saving, f"{words} and {per_step(case, host_ns)} on the host"


def _operator_host_ns(case: Case) -> float:
    limits = case.summary.efficiency.limits
    measured = None if limits is None else limits.operator_call_ns
    return measured or case.book.number("operator_host_ns")


def _halved_ns(case: Case, call: CallEfficiency) -> float:
    """What a float32 call that memory bounds loses with half the bytes."""
    is_product = call.roofline.tensor_cores in (TensorCoreUse.USED, TensorCoreUse.ELIGIBLE)
    if is_product or call.roofline.bound is not Bound.MEMORY or call.cost.data_type is not DataType.FP32:
        return 0.0
    floor_ns = call.calls * case.book.number("kernel_floor_ns")
    return max(0.0, call.roofline.device_ns - max(call.roofline.device_ns / 2, floor_ns))


def _type_of(call: CallEfficiency) -> DataType | None:
    return call.cost.data_type


def _multiple(data_type: DataType) -> int:
    return _LOAD_BYTES // ITEM_BYTES.get(data_type, 2)


def _is_unaligned(case: Case, call: CallEfficiency, product: Product, rule: Rule) -> bool:
    """Odd sizes, and a kernel that shows it: unaligned operands, or no tensor cores."""
    multiple = _multiple(_type_of(call) or DataType.BF16)
    sizes = (product.m, product.n, product.k)
    if min(sizes) < rule.threshold("least_rows") or all(size % multiple == 0 for size in sizes):
        return False
    facts = case.kernels.get(call.kernels[0]) if call.kernels else None
    alignment = None if facts is None else facts.fields.get("alignment")
    return call.roofline.tensor_cores is TensorCoreUse.ELIGIBLE or (
        alignment is not None and alignment < multiple
    )
