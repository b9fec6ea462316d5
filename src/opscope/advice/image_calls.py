"""Calls of a run that work on images: convolutions, norms over channels and pools, and how their images lie.

What kernels of another order or type take cannot be read from a recording. Layers as networks hold them were
measured in both orders and three types (`benchmarks/results/h*_layouts.json`); a call is given the share of
its time that such a layer took.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum

import msgspec

from opscope.advice.profiled_run import Advice, Effect, ProfiledRun, finds, listed
from opscope.advice.rules import Rule
from opscope.analysis.launch_quality import TensorCoreUse
from opscope.analysis.roofline import CallEfficiency
from opscope.hardware.devices import DataType
from opscope.operators.arguments import TensorArgument, item_size_bytes, parse_arguments
from opscope.operators.windows import ConvolutionShapes, convolution_shapes

_FEW_CHANNELS = 4  # of an input image: convolutions have no kernels on tensor cores for so few
_WIDE_WINDOW = 5  # beyond it depthwise convolutions have other kernels


class ImageKind(Enum):
    """Layers that gain differently from another order or type."""

    DENSE = "dense"
    POINTWISE = "pointwise"
    STEM = "stem"
    GROUPED = "grouped"
    DEPTHWISE = "depthwise"
    WIDE_DEPTHWISE = "wide_depthwise"
    BATCH_NORM = "batch_norm"
    GROUP_NORM = "group_norm"
    UPSAMPLE = "upsample"
    POOL = "pool"

    @property
    def is_convolution(self) -> bool:
        return self not in _OTHERS.values()


# By what their names hold; all else are convolutions.
_OTHERS = {
    "group_norm": ImageKind.GROUP_NORM,
    "batch_norm": ImageKind.BATCH_NORM,
    "upsample": ImageKind.UPSAMPLE,
    "max_pool2d": ImageKind.POOL,
}


class ImageCall(msgspec.Struct, frozen=True):
    kind: ImageKind
    call: CallEfficiency
    is_backward: bool  # whether it is the gradient
    is_training: bool | None  # a norm that takes its statistics from the batch; None if that is unknown
    is_padded: bool  # a convolution whose groups cuDNN fills up, which turns its tensors in either order
    turning_ns: int  # of its device time, what kernels take that only turn tensors between channel orders
    # Of its device time, what kernels for groups take that use no tensor cores; none are made for channels
    # last
    direct_ns: int
    image: TensorArgument  # what it works on: of gradients, the image or the image's gradient

    @property
    def device_ns(self) -> int:
        return self.call.roofline.device_ns

    @property
    def computing_ns(self) -> int:
        """The same without what only turns tensors."""
        return self.device_ns - self.turning_ns

    @property
    def direction(self) -> str:
        return "backward" if self.is_backward else "forward"

    @property
    def item_bytes(self) -> int:
        return item_size_bytes(self.image.type_name) or 4

    @property
    def is_channels_first(self) -> bool:
        """Whether neighbors in memory are neighbors in the image; not where strides were not recorded."""
        _, channels, height, width = self.image.shape
        strides = self.image.strides
        if strides is None or min(channels, height * width) < 2:
            return False
        return strides[1] == height * width and strides[3] == 1


def image_calls(run: ProfiledRun) -> Iterator[ImageCall]:
    known = {call.call_id: call for call in run.calls}
    for row in (one for one in run.records("image_calls") if one["call_id"] in known):
        name = row["name"]
        columns = {one: row[one] for one in ("overload", "shapes", "types", "strides", "concrete")}
        arguments = parse_arguments(name, **columns)
        image = arguments.tensor("input", "self", "grad_output", "grad_out")
        kind, is_padded = next((kind for part, kind in _OTHERS.items() if part in name), None), False
        if kind is None and (shapes := convolution_shapes(arguments)) is not None:
            kind = _convolution(shapes)
            is_padded = kind is ImageKind.GROUPED and (shapes.data[1] // shapes.groups).bit_count() > 1
        if image is None or len(image.shape) != 4 or kind is None:
            continue
        flags = ("training", "train") if kind is ImageKind.BATCH_NORM else ()
        yield ImageCall(
            kind,
            known[row["call_id"]],
            is_backward="backward" in name,
            is_training=next((arguments.boolean(flag) for flag in flags if arguments.has(flag)), None),
            is_padded=is_padded,
            turning_ns=row["turning_ns"],
            direct_ns=row["direct_ns"],
            image=image,
        )


# Of the shared numbers, by layer, what it takes in 16 bits of its time in TF32, and in TF32 of that without.
_HALF_SHARES = {
    ImageKind.DENSE: "half_convolution",
    ImageKind.POINTWISE: "half_convolution",
    ImageKind.GROUPED: "half_grouped",
}
_TF32_SHARES = {
    ImageKind.DENSE: "tf32_convolution",
    ImageKind.POINTWISE: "tf32_convolution",
    ImageKind.STEM: "tf32_stem",
    ImageKind.GROUPED: "tf32_grouped",
}


def type_share(run: ProfiledRun, one: ImageCall, data_type: DataType) -> float:
    """Of the time of a float32 convolution what it takes in another type, as such layers were measured."""
    share = 1.0
    if one.call.roofline.tensor_cores is TensorCoreUse.ELIGIBLE and one.kind in _TF32_SHARES:
        share = run.book.number(_TF32_SHARES[one.kind])
    if data_type is not DataType.TF32 and one.kind in _HALF_SHARES:
        share *= run.book.number(f"{_HALF_SHARES[one.kind]}_{one.direction}")
    return share


def _convolution(shapes: ConvolutionShapes) -> ImageKind:
    if shapes.groups == 1:
        if shapes.data[1] <= _FEW_CHANNELS:
            return ImageKind.STEM
        return ImageKind.POINTWISE if max(shapes.weight[2:]) == 1 else ImageKind.DENSE
    if shapes.groups < shapes.data[1]:
        return ImageKind.GROUPED
    return ImageKind.WIDE_DEPTHWISE if max(shapes.weight[2:]) > _WIDE_WINDOW else ImageKind.DEPTHWISE


# Advice on the order of channels: tensors turned between orders, and kernels that another order has better.
#
# Convolutions on tensor cores work in channels-last order. On images with channels first they are turned
# before and after, or run in kernels without tensor cores; 1×1 and depthwise convolutions and batch norms
# have other kernels in either order. Group norms have none for channels last: they make their input
# contiguous, so that it is turned twice more.

# The rule's numbers are named after layers, but for those that take the numbers of others.
_LAYOUT_SHARES = {ImageKind.STEM: "dense"}
_HALF_LAYOUT_SHARES = _LAYOUT_SHARES | dict.fromkeys(
    (ImageKind.DEPTHWISE, ImageKind.WIDE_DEPTHWISE), "half_depthwise"
)
# Passes over an image: statistics read it once, the result reads and writes it; gradients read two, twice.
_BATCH_NORM_PASSES = {False: 3, True: 5}
_EVALUATION_PASSES, _EVALUATION_SHARE = 2, "batch_norm_evaluation"


@finds
def layout_conversion(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    # Convolutions of one dimension have no other layout.
    if {name[-2:] for name in run.names if name.startswith("aten::conv")} & {"1d", "2d", "3d"} == {"1d"}:
        return
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
    name = (_HALF_LAYOUT_SHARES if one.item_bytes == 2 else _LAYOUT_SHARES).get(one.kind, one.kind.value)
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
