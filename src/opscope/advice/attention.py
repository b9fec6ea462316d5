"""Advice on attention: composed of single operators, or not by the kernel that its arguments allow."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from opscope.advice.attention_pattern import ComposedAttention
from opscope.advice.attention_time import AttentionSizes, attention_ns, attention_type
from opscope.advice.case import Advice, Case
from opscope.advice.rule_book import Rule
from opscope.advice.rule_functions import RuleFunction
from opscope.advice.step_time import Saving
from opscope.advice.wording import call_evidence, listed, of_device, per_step
from opscope.analysis.cost.arguments import parse_arguments
from opscope.analysis.efficiency import CallEfficiency
from opscope.hardware.devices import DataType

__all__ = ["RULES"]

_FLASH_CAPABILITY = (8, 0)  # Source: Dao-AILab/flash-attention, README: Ampere and later
_FLASH_HEAD_SIZE = 256
_FLASH_HEAD_MULTIPLE = 8  # Source: pytorch, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp
# Position of the query, and of the mask, among the arguments. Source: pytorch, native_functions.yaml.
_EFFICIENT = {
    "aten::_efficient_attention_forward": (0, 3),
    "aten::_efficient_attention_backward": (1, 4),
}
_HALF = (DataType.FP16, DataType.BF16)


def eager_attention(case: Case, rule: Rule) -> Iterator[Advice]:
    """Attention that the program composes itself."""
    found = [one for one in case.attention if not one.is_math_path]
    advice = _fusing(case, rule, found)
    if advice is not None:
        yield advice


def attention_backend(case: Case, rule: Rule) -> Iterator[Advice]:
    """scaled_dot_product_attention without flash attention."""
    math = _fusing(case, rule, [one for one in case.attention if one.is_math_path])
    if math is not None:
        yield replace(
            math, message=math.message.replace("Attention is composed of", "The math path of attention runs")
        )
    yield from _efficient(case, rule)


RULES: Mapping[str, RuleFunction] = {
    "advice.eager_attention": eager_attention,
    "advice.attention_backend": attention_backend,
}


def _fusing(case: Case, rule: Rule, found: Sequence[ComposedAttention]) -> Advice | None:
    """What one kernel in place of single operators saves."""
    total_ns = sum(one.device_ns for one in found)
    if not found or case.share(total_ns) < rule.threshold("least_fraction"):
        return None
    times = [_fused_ns(case, one) for one in found]
    host_ns = sum(one.host_ns - one.calls * case.book.number("attention_host_ns") for one in found)
    host_ns *= case.unrecorded_share
    saving, basis = None, "not estimated: the device's rate for these types is unknown"
    known = [one_ns for one_ns in times if one_ns is not None]
    if len(known) == len(times):
        after_ns = sum(known)
        launches = sum(one.calls * (len(one.parts) - 1) for one in found)
        saving = Saving(case.per_step(total_ns - after_ns), case.per_step(launches), case.per_step(host_ns))
        basis = (
            f"these operators take {per_step(case, total_ns)} on the device, one attention kernel in their "
            f"place would take {per_step(case, after_ns)}; the host needs {per_step(case, host_ns)} less"
        )
    names = list(dict.fromkeys(part.name for one in found for part in one.parts))
    return Advice(
        f"Attention is composed of {listed(names)}: {of_device(case, total_ns)} "
        f"({per_step(case, total_ns)}), for {_sizes_text(found[0])}.",
        _pattern_evidence(case, found, names),
        saving,
        basis,
    )


def _fused_ns(case: Case, one: ComposedAttention) -> float | None:
    data_type = attention_type(one.type_name)
    if data_type is None:
        return None
    sizes = AttentionSizes(
        one.heads, one.query_length, one.key_length, one.head_size, one.is_backward, one.has_mask
    )
    each_ns = attention_ns(sizes, data_type, case.rates)
    return None if each_ns is None else one.calls * each_ns


def _sizes_text(one: ComposedAttention) -> str:
    return f"{one.heads} heads of {one.query_length}×{one.key_length} scores and {one.head_size} elements"


def _pattern_evidence(case: Case, found: Sequence[ComposedAttention], names: list[str]) -> dict[str, Any]:
    total_ns = sum(one.device_ns for one in found)
    return {
        "device_fraction": case.share(total_ns),
        "device_ns": total_ns,
        "calls": sum(one.calls for one in found),
        "operators": names,
        "sizes": list(dict.fromkeys(_sizes_text(one) for one in found)),
        "directions": sorted({"backward" if one.is_backward else "forward" for one in found}),
        "has_mask": any(one.has_mask for one in found),
    }


def _efficient(case: Case, rule: Rule) -> Iterator[Advice]:
    """Memory-efficient attention where flash attention could be, by what keeps it from that."""
    if case.capability is None or case.capability < _FLASH_CAPABILITY:
        return
    by_reason: dict[str, list[CallEfficiency]] = defaultdict(list)
    for call in case.calls:
        sizes, reason = _reading(call)
        if sizes is not None and sizes.head_size <= _FLASH_HEAD_SIZE and reason is not None:
            by_reason[reason].append(call)
    for reason, calls in by_reason.items():
        total_ns = case.time_of(calls)
        if case.share(total_ns) < rule.threshold("least_fraction"):
            continue
        saving, basis = _flash_saving(case, calls)
        yield Advice(
            f"Attention takes its memory-efficient path, {of_device(case, total_ns)} "
            f"({per_step(case, total_ns)}): {_REASONS[reason]}.",
            {**call_evidence(case, calls), "reason": reason},
            saving,
            basis,
        )


_REASONS = {
    "type": "its operands are float32, and flash attention takes 16-bit types only",
    "mask": "a mask is given, and flash attention takes none but is_causal",
    "head_size": f"its head size is no multiple of {_FLASH_HEAD_MULTIPLE}",
    "choice": "nothing in its arguments forbids flash attention, so the program or its libraries chose",
}


def _reading(call: CallEfficiency) -> tuple[AttentionSizes | None, str | None]:
    """Sizes of a memory-efficient call, and what keeps it from flash attention."""
    positions = _EFFICIENT.get(call.operator)
    if positions is None:
        return None, None
    recorded = parse_arguments(call.operator, shapes=call.shapes, types=call.types)
    query, key, mask = (recorded.tensor(place) for place in (positions[0], positions[0] + 1, positions[1]))
    if query is None or key is None or len(query.shape) != 4 or len(key.shape) != 4:
        return None, None
    batch, length, heads, size = query.shape
    sizes = AttentionSizes(batch * heads, length, key.shape[1], size, positions[0] == 1)
    if attention_type(query.type_name) not in _HALF:
        return sizes, "type"
    if mask is not None:
        return sizes, "mask"
    return sizes, "head_size" if size % _FLASH_HEAD_MULTIPLE else "choice"


def _flash_saving(case: Case, calls: Sequence[CallEfficiency]) -> tuple[Saving | None, str]:
    half = case.rates.half_type
    if half is None:
        return None, "not estimated: the device's rate for 16-bit types is unknown"
    after_ns = 0.0
    for call in calls:
        sizes, _ = _reading(call)
        if sizes is not None:
            after_ns += min(
                call.roofline.device_ns, call.calls * (attention_ns(sizes, half, case.rates) or float("inf"))
            )
    total_ns = case.time_of(calls)
    return (
        Saving(device_ns=case.per_step(total_ns - after_ns)),
        f"these calls take {per_step(case, total_ns)}, as flash attention {per_step(case, after_ns)}",
    )
