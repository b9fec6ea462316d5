"""Calls of a run that work on images: convolutions, norms over channels and pools, and how their images lie.

What kernels of another order or type take cannot be read from a recording. Layers as networks hold them were
measured in both orders and three types (`benchmarks/results/h*_layouts.json`); a call is given the share of
its time that such a layer took.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

import msgspec

from opscope.advice.profiled_run import ProfiledRun
from opscope.analysis.roofline import CallEfficiency
from opscope.analysis.tensor_cores import TensorCoreUse
from opscope.hardware.devices import DataType
from opscope.operators.arguments import TensorArgument, parse_arguments
from opscope.operators.element_types import item_size_bytes
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
