"""Advice on attention: composed of single operators, or not by the kernel that its arguments allow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from opscope.advice.attention_pattern import ComposedAttention
from opscope.advice.kernel_times import HALF_TYPES, AttentionMask, AttentionWork, attention_ns, attention_type
from opscope.advice.profiled_run import Advice, Effect, ProfiledRun, calls_taking, finds, listed, time_of
from opscope.advice.rules import Rule
from opscope.analysis.roofline import CallEfficiency
from opscope.analysis.step_model import GraphChange
from opscope.hardware.devices import DataType
from opscope.model.queries import grouped
from opscope.operators.arguments import parse_arguments
from opscope.operators.products import attention_sizes

_FLASH_CAPABILITY = (8, 0)  # Source: Dao-AILab/flash-attention, README: Ampere and later
_FLASH_HEAD_SIZE = 256
_FLASH_HEAD_MULTIPLE = 8  # Source: pytorch, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp
_EFFICIENT = "aten::_efficient_attention_"
# What keeps a memory-efficient call from flash attention.
_REASONS = {
    "type": "its operands are float32, and flash attention takes 16-bit types only",
    "mask": "a mask is given, and flash attention takes none but is_causal",
    "head_size": f"its head size is not a multiple of {_FLASH_HEAD_MULTIPLE}",
    "choice": "nothing in its arguments rules out flash attention, so the program or a library chose",
}
_CODES = {
    "type": """\
with torch.autocast("cuda", dtype=torch.bfloat16):   # around attention alone, if the rest is to stay float32
    out = F.scaled_dot_product_attention(query, key, value, ...)""",
    "mask": """\
out = F.scaled_dot_product_attention(query, key, value, is_causal=True)   # in place of a causal mask""",
}
_FOR_GROUPS = (
    "heads share keys and values; in float32 scaled_dot_product_attention with enable_gqa is composed of "
    "single operators too; repeat keys and values before, or compute in 16 bits"
)


@finds
def eager_attention(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    yield from _fusing(run, rule, "Attention is composed of", is_math_path=False)


@finds
def attention_backend(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    yield from _fusing(run, rule, "The math path of attention runs", is_math_path=True)
    yield from _efficient(run, rule)


def _fusing(run: ProfiledRun, rule: Rule, what: str, *, is_math_path: bool) -> Iterator[Advice]:
    found = [one for one in run.attention if one.is_math_path is is_math_path]
    total_ns = sum(one.device_ns for one in found)
    if not found or run.is_minor(total_ns, rule):
        return
    call_host_ns = run.book.number("attention_host_ns")
    host_ns = sum(one.host_ns - one.calls * call_host_ns for one in found)
    is_grouped, effect, worst = any(map(_has_no_kernel, found)), None, None
    basis = f"not estimated: {_FOR_GROUPS if is_grouped else 'the rate for these types is unknown'}"
    times_ns = [_fused_ns(run, one) for one in found]
    known_ns = [one_ns for one_ns in times_ns if one_ns is not None]
    if len(known_ns) == len(times_ns):
        effect = _one_kernel(found, known_ns, call_host_ns)
        worst_ns = [_worst_ns(run, *each) for each in zip(found, known_ns, strict=True)]
        worst = _one_kernel(found, worst_ns, call_host_ns) if worst_ns != known_ns else None
        basis = (
            f"these operators take {run.time(total_ns)} on the device, one attention kernel in their place "
            f"would take {run.time(sum(known_ns))}; the host needs "
            f"{run.time(host_ns * run.unrecorded_share)} less"
        )
    names = list(dict.fromkeys(part.name for one in found for part in one.parts))
    change, has_mask = rule.change or "", any(one.work.mask is not None for one in found)
    if not has_mask:
        change = change.replace(", attn_mask=mask", "")
    if not any("dropout" in name for name in names):
        change = change.replace(", dropout_p=p if training else 0.0", "")
    yield Advice(
        f"{what} {listed(names)}: {run.device_time(total_ns)}, for {found[0].work}.",
        run.evidence(
            total_ns,
            calls=sum(one.calls for one in found),
            operators=names,
            sizes=list(dict.fromkeys(str(one.work) for one in found)),
            directions=sorted({"backward" if one.work.is_backward else "forward" for one in found}),
            has_mask=has_mask,
        ),
        effect,
        basis,
        worst=worst,
        change=change,
    )


def _one_kernel(found: Sequence[ComposedAttention], times_ns: Sequence[float], host_ns: float) -> Effect:
    """The first part takes the time of the one kernel; the others go, and the host's time for them."""

    def effect(change: GraphChange) -> object:
        for one, after_ns in zip(found, times_ns, strict=True):
            (first, *others), model = one.parts, change.model
            change.scale(model.is_launched_by(first.operator_ids), after_ns / max(1, first.device_ns))
            change.drop(model.is_launched_by([each for part in others for each in part.operator_ids]))
            spans = model.between(first.operator_ids, one.parts[-1].operator_ids)
            change.drop_host(spans, max(0.0, 1.0 - one.calls * host_ns / max(1, one.host_ns)))
        return change

    return effect


def _fused_ns(run: ProfiledRun, one: ComposedAttention) -> float | None:
    """Its time in one kernel; where its mask may stand for `is_causal`, with that: half of the scores."""
    data_type = attention_type(one.type_name)
    if data_type is None or _has_no_kernel(one):
        return None
    is_causal = one.work.mask is AttentionMask.SQUARE and one.work.sizes.queries == one.work.sizes.keys
    mask = None if is_causal else one.work.mask
    each_ns = attention_ns(replace(one.work, mask=mask), data_type, run.rates)
    return None if each_ns is None else one.calls * each_ns / (2 if is_causal else 1)


def _worst_ns(run: ProfiledRun, one: ComposedAttention, fused_ns: float) -> float:
    """Its time if a mask is given after all, or needs a gradient, which in 16 bits has a slower kernel."""
    data_type = attention_type(one.type_name)
    if one.work.mask is AttentionMask.BIAS and data_type in HALF_TYPES:
        return fused_ns / run.book.number("learned_mask_share")
    each_ns = None if data_type is None else attention_ns(one.work, data_type, run.rates)
    return fused_ns if each_ns is None else one.calls * each_ns


def _has_no_kernel(one: ComposedAttention) -> bool:
    """Whether heads share keys and values in float32, which scaled_dot_product_attention computes in parts.

    Source: pytorch, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp: of grouped heads the flash and the
    cuDNN kernels know, which take 16 bits alone.
    """
    return one.is_grouped and attention_type(one.type_name) is DataType.FP32


def _efficient(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    """Memory-efficient attention where flash attention could be, by what keeps it from that."""
    if run.capability is None or run.capability < _FLASH_CAPABILITY:
        return
    by_reason = grouped(
        (reading[1], (call, reading[0]))
        for call in run.calls
        if (reading := _reading(call)) is not None and reading[0].sizes.head_size <= _FLASH_HEAD_SIZE
    )
    for reason, found in by_reason.items():
        calls = [call for call, _ in found]
        total_ns = time_of(calls)
        if run.is_minor(total_ns, rule):
            continue
        effect, basis = _flash(run, found)
        yield Advice(
            f"Attention takes its memory-efficient path, {run.device_time(total_ns)}: {_REASONS[reason]}.",
            run.call_evidence(calls, reason=reason),
            effect,
            basis,
            change=_CODES.get(reason),
        )


def _reading(call: CallEfficiency) -> tuple[AttentionWork, str] | None:
    """Sizes of a memory-efficient call, and what keeps it from flash attention; None of any other."""
    if not call.operator.startswith(_EFFICIENT):
        return None
    recorded = parse_arguments(call.operator, overload=call.overload, shapes=call.shapes, types=call.types)
    sizes, query = attention_sizes(recorded), recorded.tensor("query")
    if sizes is None or query is None:
        return None
    work = AttentionWork(sizes, is_backward=call.operator.endswith("_backward"))
    if attention_type(query.type_name) not in HALF_TYPES:
        return work, "type"
    if recorded.tensor("bias") is not None:
        return work, "mask"
    return work, "head_size" if sizes.head_size % _FLASH_HEAD_MULTIPLE else "choice"


def _flash(
    run: ProfiledRun, found: Sequence[tuple[CallEfficiency, AttentionWork]]
) -> tuple[Effect | None, str]:
    half = run.rates.half_type
    if half is None:
        return None, "not estimated: the device's rate for 16-bit types is unknown"
    before_ns = {call.call_id: float(call.roofline.device_ns) for call, _ in found}
    after_ns = {
        call.call_id: min(
            before_ns[call.call_id], call.calls * (attention_ns(sizes, half, run.rates) or float("inf"))
        )
        for call, sizes in found
    }
    return (
        calls_taking([call for call, _ in found], after_ns),
        f"these calls take {run.time(sum(before_ns.values()))}, with flash "
        f"attention {run.time(sum(after_ns.values()))}",
    )
