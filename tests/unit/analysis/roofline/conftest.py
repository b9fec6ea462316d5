"""Launches and limits of an H200, made by hand."""

import pytest

from opscope.analysis.launch_quality import LaunchQuality
from opscope.analysis.roofline import Launches, work_of_call
from opscope.hardware.devices import DataType
from opscope.hardware.limits import DeviceLimits, Limit, LimitEvidence
from opscope.launches.facts import DeviceFacts, LaunchGeometry
from opscope.operators.effects import CallCost, FlopSource
from opscope.provenance.kernel_names.decoder import decode

DEVICE = DeviceFacts("NVIDIA H200", "9.0", 132)
PEAKS = {
    DataType.FP64: 34e12, DataType.FP64_TENSOR: 67e12, DataType.FP32: 50e12, DataType.TF32: 400e12,
    DataType.FP16: 800e12, DataType.BF16: 800e12,
}  # fmt: skip
MEMORY_BYTES_PER_S = 4e12
L2_BYTES = 50_000_000


def limit(per_s):
    return Limit(per_s, LimitEvidence.MEASURED, "by hand")


@pytest.fixture
def limits():
    return DeviceLimits(
        "NVIDIA H200",
        memory=limit(MEMORY_BYTES_PER_S),
        peaks={data_type: limit(per_s) for data_type, per_s in PEAKS.items()},
        l2_bytes=L2_BYTES,
    )


def launches(kernel="k", total_ns=100_000, *, count=1, blocks=10_000, registers=32, **known):
    """Launches of a kernel, all of them the only work of their calls unless told otherwise."""
    geometry = LaunchGeometry(
        None if blocks is None else (blocks, 1, 1), (128, 1, 1), registers, 0, None, count, total_ns
    )
    fields = {
        "kernel": kernel, "kind": "kernel", "is_helper": False, "count": count, "total_ns": total_ns,
        "launch_bound_ns": 0, "sole_count": count, "sole_ns": total_ns,
        "quality": LaunchQuality(decode(kernel), geometry, device=DEVICE),
    }  # fmt: skip
    return Launches(**{**fields, **known})


def cost(flop_count=0, min_bytes=0, data_type=DataType.FP32, source=FlopSource.DEFINITION):
    return CallCost(flop_count, source, min_bytes, None if min_bytes is None else 0, data_type)


def work(known, *parts, repeats=1):
    return work_of_call(parts, known, repeats)
