"""Advice on the order of channels: tensors turned between orders, and kernels that another order has better.

Convolutions on tensor cores work in channels-last order. On images with channels first they are turned before
and after, or run in kernels without tensor cores; 1×1 and depthwise convolutions and batch norms have other
kernels in either order. Group norms have none for channels last: they make their input contiguous, so that it
is turned twice more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from opscope.advice.image_calls import ImageCall, ImageKind, image_calls
from opscope.advice.profiled_run import Advice, Effect, ProfiledRun, finds, listed
from opscope.advice.rules import Rule
from opscope.analysis.tensor_cores import TensorCoreUse

# The rule's numbers are named after layers, but for those that take the numbers of others.
_SHARES = {ImageKind.STEM: "dense"}
_HALF_SHARES = _SHARES | dict.fromkeys((ImageKind.DEPTHWISE, ImageKind.WIDE_DEPTHWISE), "half_depthwise")
# Passes over an image: statistics read it once, the result reads and writes it; gradients read two, twice.
_BATCH_NORM_PASSES = {False: 3, True: 5}
_EVALUATION_PASSES, _EVALUATION_SHARE = 2, "batch_norm_evaluation"


@finds
def layout_conversion(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    kernels = [k for k in run.summary.kernels if k.facts is not None and k.facts.family == "layout_transform"]
    calls = [one for one in image_calls(run) if one.is_channels_first]
    # Kernels turn the images of other layouts, dimensions or paddings all the same.
    ends = {one.call.call_id for one in calls if not one.is_padded}
    stay = [row for row in run.records("image_calls") if row["strides"] and row["call_id"] not in ends]
    turning_ns = sum(kernel.total_ns for kernel in kernels) - sum(row["turning_ns"] for row in stay)
    count = sum(kernel.calls for kernel in kernels) - sum(row["turning_count"] for row in stay)
    after_ns = {one.call.call_id: _channels_last_ns(run, rule, one) for one in calls}
    computing_ns, then_ns = sum(one.computing_ns for one in calls), sum(after_ns.values())
    if run.is_minor(max(turning_ns, turning_ns + computing_ns - then_ns), rule):
        return
    names = [kernel.name for kernel in kernels]
    turning = [one.name for one in run.summary.operators if any(k.name in names for k in one.kernels)]
    nothing_slower_ns = {one.call.call_id: min(after_ns[one.call.call_id], one.computing_ns) for one in calls}
    layers = [one for one in calls if one.kind.is_convolution or one.kind is ImageKind.BATCH_NORM]
    layer_names = list(dict.fromkeys(one.call.operator for one in layers))
    turned = [row["call_id"] for row in stay]
    message = (
        f"{run.times(count, 'kernel')} only convert tensors between channel layouts, "
        f"in {listed(turning, 3) or 'no recorded operator'}: {run.device_time(turning_ns)}."
    )
    if not turning_ns:
        layers_ns = sum(one.computing_ns for one in layers)
        message = (
            f"{listed(layer_names, 3)} work on channels-first (NCHW) images: {run.device_time(layers_ns)}."
        )
    yield Advice(
        message,
        run.evidence(
            turning_ns,
            calls=count,
            operators=list(dict.fromkeys([*turning, *layer_names])),
            kernels=names[:5],
        ),
        _effect(calls, after_ns, names, turned),
        "kernels that only convert layouts go away; the rest of these layers "
        f"takes {run.time(computing_ns)} and would take {run.time(then_ns)}, as measured for such layers "
        "in both layouts",
        best=_effect(calls, nothing_slower_ns, names, turned),
        # The shares are those of NVIDIA's libraries.
        is_sure=run.capability is not None,
    )


def _effect(
    calls: Sequence[ImageCall], after_ns: Mapping[int, float], turning: Sequence[str], turned: Collection[int]
) -> Effect:
    """Kernels that turn tensors go, but for those of some calls; what else calls do takes other times."""
    factors = {
        one.call.call_id: (after_ns[one.call.call_id] + stays_ns) / (one.computing_ns + stays_ns)
        for one in calls
        for stays_ns in [one.turning_ns if one.is_padded else 0]
        if one.computing_ns
    }
    return lambda change: change.scale_calls(factors).drop_launches(turning, but_of=turned)


def _channels_last_ns(run: ProfiledRun, rule: Rule, one: ImageCall) -> float:
    """Device time in channels-last order, without what turns tensors today."""
    if one.kind is ImageKind.GROUP_NORM:
        turned_bytes = 2 * one.image.element_count * one.item_bytes
        turned_ns = (run.rates.memory_ns(turned_bytes) or 0.0) / rule.threshold("turning_rate")
        return one.computing_ns + rule.threshold("group_norm_turns") * one.call.calls * turned_ns
    if one.kind is ImageKind.BATCH_NORM:
        return _batch_norm_ns(run, rule, one)
    if one.kind.is_convolution and one.call.roofline.tensor_cores is TensorCoreUse.ELIGIBLE:
        return one.computing_ns * rule.threshold("without_tensor_cores")
    name = (_HALF_SHARES if one.item_bytes == 2 else _SHARES).get(one.kind, one.kind.value)
    share = rule.threshold(f"{name}_{one.direction}")
    return (one.computing_ns - one.direct_ns) * share + one.direct_ns * rule.threshold("direct")


def _batch_norm_ns(run: ProfiledRun, rule: Rule, one: ImageCall) -> float:
    """The time of its bytes: kernels for channels first, which give each channel a block, may need more."""
    is_evaluation = one.is_training is False and not one.is_backward
    passes = _EVALUATION_PASSES if is_evaluation else _BATCH_NORM_PASSES[one.is_backward]
    # With statistics, elements of 16 bits take nearly as long as those of 32.
    item_bytes = one.item_bytes if is_evaluation else (4 + one.item_bytes) / 2
    moved_ns = run.rates.memory_ns(passes * one.image.element_count * item_bytes)
    if moved_ns is None:
        return one.computing_ns
    share = _EVALUATION_SHARE if is_evaluation else f"batch_norm_{one.direction}"
    return one.call.calls * moved_ns * rule.threshold(share)
