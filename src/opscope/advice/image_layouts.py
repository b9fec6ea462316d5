"""Advice on the order of channels: tensors turned between orders, and kernels that another order has better.

Convolutions on tensor cores work in channels-last order. On images with channels first they are turned before
and after, or run in kernels without tensor cores; grouped and depthwise convolutions and the statistics of
batch norms have other kernels in either order. Group norms have none for channels last: they make their input
contiguous, so that it is turned twice more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from opscope.advice.image_calls import ImageCall, ImageKind, image_calls
from opscope.advice.profiled_run import Advice, Effect, ProfiledRun, calls_taking, finds, listed
from opscope.advice.rules import Rule
from opscope.analysis.efficiency import TensorCoreUse
from opscope.analysis.step_model import GraphChange

# Of the rule's numbers, by layer: forward and backward.
_SHARES = {
    ImageKind.DENSE: ("dense_forward", "dense_backward"),
    ImageKind.STEM: ("dense_forward", "dense_backward"),
    ImageKind.GROUPED: ("grouped_forward", "grouped_backward"),
    ImageKind.DEPTHWISE: ("depthwise_forward", "depthwise_backward"),
    ImageKind.WIDE_DEPTHWISE: ("depthwise_forward", "wide_depthwise_backward"),
    ImageKind.UPSAMPLE: ("upsample_forward", "upsample_backward"),
    ImageKind.POOL: ("pool_forward", "pool_backward"),
}
_HALF_SHARES = {
    ImageKind.DEPTHWISE: ("half_depthwise_forward", "half_depthwise_backward"),
    ImageKind.WIDE_DEPTHWISE: ("half_depthwise_forward", "half_depthwise_backward"),
}
# Passes over an image: statistics read it once, the result reads and writes it; gradients read two, twice.
_BATCH_NORM_PASSES = {False: 3, True: 5}
_EVALUATION_PASSES = 2
# Kernels of batch norms take as long for elements of 16 bits as for those of 32.
_BATCH_NORM_BYTES = 4


@finds
def layout_conversion(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    """Kernels that only turn channel orders, and those that are better in the other order."""
    kernels = [k for k in run.summary.kernels if k.facts is not None and k.facts.family == "layout_transform"]
    turning_ns = sum(kernel.total_ns for kernel in kernels)
    calls = [one for one in image_calls(run) if one.is_channels_first]
    after_ns = {one.call.call_id: _channels_last_ns(run, rule, one) for one in calls}
    computing_ns, then_ns = sum(one.computing_ns for one in calls), sum(after_ns.values())
    if run.is_minor(max(turning_ns, turning_ns + computing_ns - then_ns), rule):
        return
    names = [kernel.name for kernel in kernels]
    turning = [one.name for one in run.summary.operators if any(k.name in names for k in one.kernels)]
    nothing_slower_ns = {one.call.call_id: min(after_ns[one.call.call_id], one.computing_ns) for one in calls}
    count = sum(kernel.calls for kernel in kernels)
    layers = [one for one in calls if one.kind.is_convolution or one.kind is ImageKind.BATCH_NORM]
    yield Advice(
        _message(run, turning_ns, count, turning, layers),
        run.evidence(
            turning_ns,
            calls=count,
            operators=list(dict.fromkeys([*turning, *(one.call.operator for one in layers)])),
            kernels=names[:5],
        ),
        _effect(calls, after_ns, names),
        "kernels that only convert layouts go away; the rest of these layers "
        f"takes {run.time(computing_ns)} and would take {run.time(then_ns)}, as measured for such layers "
        "in both layouts",
        best=_effect(calls, nothing_slower_ns, names),
    )


def _effect(calls: Sequence[ImageCall], after_ns: Mapping[int, float], turning: Sequence[str]) -> Effect:
    """Kernels that turn tensors go, and what else calls do takes other times, by call id."""
    # A call's factor is that of its kernels that do more than turn.
    scale = calls_taking(
        [one.call for one in calls],
        {
            one.call.call_id: after_ns[one.call.call_id] * one.device_ns / one.computing_ns
            for one in calls
            if one.computing_ns
        },
    )

    def effect(change: GraphChange) -> object:
        if calls:
            scale(change)
        return change.drop_kernels(turning)

    return effect


def _message(
    run: ProfiledRun, turning_ns: int, count: int, turning: Sequence[str], layers: Sequence[ImageCall]
) -> str:
    """What is turned; where that is little, which layers run with channels first."""
    if turning_ns:
        return (
            f"{run.times(count, 'kernel')} only convert tensors between channel layouts, "
            f"in {listed(turning, 3) or 'no recorded operator'}: {run.device_time(turning_ns)}."
        )
    layers_ns = sum(one.computing_ns for one in layers)
    operators = list(dict.fromkeys(one.call.operator for one in layers))
    return f"{listed(operators, 3)} work on channels-first (NCHW) images: {run.device_time(layers_ns)}."


def _channels_last_ns(run: ProfiledRun, rule: Rule, one: ImageCall) -> float:
    """Device time in channels-last order, without what turns tensors today."""
    if one.kind is ImageKind.GROUP_NORM:
        turned_bytes = 2 * one.image.element_count * _item_bytes(one)
        turned_ns = (run.rates.memory_ns(turned_bytes) or 0.0) / rule.threshold("turning_rate")
        return one.computing_ns + rule.threshold("group_norm_turns") * one.call.calls * turned_ns
    if one.kind is ImageKind.BATCH_NORM:
        return _batch_norm_ns(run, rule, one)
    if one.kind.is_convolution and one.call.roofline.tensor_cores is TensorCoreUse.ELIGIBLE:
        return one.computing_ns * rule.threshold("without_tensor_cores")
    if one.kind in (ImageKind.DENSE, ImageKind.STEM) and not one.turning_ns and not one.is_backward:
        return float(one.computing_ns)
    is_half = _item_bytes(one) == 2
    shares = (_HALF_SHARES.get(one.kind) if is_half else None) or _SHARES[one.kind]
    return one.computing_ns * rule.threshold(shares[one.is_backward])


def _batch_norm_ns(run: ProfiledRun, rule: Rule, one: ImageCall) -> float:
    """The time of its bytes, where kernels for channels first, which give each channel a block, need more.

    Without statistics of the batch that is small images; with them, few channels, which leave multiprocessors
    idle.
    """
    is_evaluation = one.is_training is False and not one.is_backward
    passes = _EVALUATION_PASSES if is_evaluation else _BATCH_NORM_PASSES[one.is_backward]
    moved_ns = run.rates.memory_ns(passes * one.image.element_count * _BATCH_NORM_BYTES)
    if moved_ns is None or run.sm_count is None:
        return one.computing_ns
    if is_evaluation:
        return one.call.calls * moved_ns * rule.threshold("batch_norm_evaluation")
    has_few_channels = one.image.shape[1] < run.sm_count
    if not has_few_channels:
        return one.computing_ns
    return min(one.computing_ns, one.call.calls * moved_ns * rule.threshold("batch_norm_training"))


def _item_bytes(one: ImageCall) -> int:
    return 2 if one.image.type_name in ("c10::Half", "c10::BFloat16") else 4
