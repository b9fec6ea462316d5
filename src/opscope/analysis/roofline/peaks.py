"""Which of the device's rates a call is held against: the peak of the type that computed, and memory's.

Products are held against the units their kernel used, fp32 ones against TF32's peak where the name says
tensor cores; fp16 ones against that of tensor cores even where CUDA cores computed, which shows how far they
are. All other arithmetic runs on CUDA cores, in fp32 unless the numbers are fp64.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from opscope.analysis.efficiency import TensorCoreUse
from opscope.analysis.roofline.work import Launches
from opscope.analysis.tensor_cores import TensorCoreEvidence, is_product, operand_type, tensor_core_evidence
from opscope.hardware.devices import DataType
from opscope.hardware.limits import DeviceLimits, Limit
from opscope.operators.call_cost import CallCost, FlopSource
from opscope.provenance.kernel_names import DecodedKernel

_DOUBLE = (DataType.FP64, DataType.FP64_TENSOR)
# A call that reads, or writes, at least this share of its bytes is held against the rate of reading, or
# writing, alone: memory that need not turn between both is a few percent faster.
_ONE_WAY = 0.9


class ComputeLimit(msgspec.Struct, frozen=True):
    """The peak of a call. `flop_per_s` is None where the device's rate of the type is unknown."""

    data_type: DataType | None
    flop_per_s: float | None
    tensor_cores: TensorCoreUse | None


def compute_limit(
    cost: CallCost,
    launches: Iterable[Launches],
    limits: DeviceLimits | None,
    compute_capability: str | None,
) -> ComputeLimit:
    """The peak that one call's operations are held against."""
    by_name = _time_by_kernel(launches)
    products = {kernel: ns for kernel, ns in by_name.items() if is_product(kernel)}
    kernel = max(products or by_name, key=lambda one: by_name[one], default=None)
    if kernel is None:
        return ComputeLimit(None, None, None)
    evidence = tensor_core_evidence(kernel, cost.data_type, compute_capability)
    does_product = bool(products) or cost.flop_source is FlopSource.REGISTRY
    data_type = _computing_type(cost.data_type, kernel, evidence) if does_product else _plain(cost.data_type)
    peaks = {} if limits is None else limits.peaks
    limit = peaks.get(_with_accumulator(data_type, kernel, peaks)) if data_type is not None else None
    per_s = None if limit is None else limit.per_s / evidence.passes
    return ComputeLimit(data_type if cost.flop_count else None, per_s, evidence.use)


def memory_limit(cost: CallCost, limits: DeviceLimits | None) -> Limit | None:
    """The rate of memory that one call's bytes are held against; None if unknown."""
    if limits is None or cost.read_bytes is None or cost.written_bytes is None:
        return None
    least = _ONE_WAY * (cost.read_bytes + cost.written_bytes)
    one_way = (
        limits.read if cost.read_bytes >= least else limits.write if cost.written_bytes >= least else None
    )
    known = [limit for limit in (limits.memory, one_way) if limit is not None]
    return max(known, key=lambda limit: limit.per_s, default=None)


def _time_by_kernel(launches: Iterable[Launches]) -> dict[DecodedKernel, int]:
    time_ns: dict[DecodedKernel, int] = defaultdict(int)
    for one in launches:
        time_ns[one.decoded] += one.total_ns
    return time_ns


def _plain(data_type: DataType | None) -> DataType:
    """The type of arithmetic on CUDA cores."""
    return DataType.FP64 if data_type in _DOUBLE else DataType.FP32


def _computing_type(
    recorded: DataType | None, kernel: DecodedKernel, evidence: TensorCoreEvidence
) -> DataType | None:
    """The type a product was computed in, or could have been."""
    if evidence.use is TensorCoreUse.NOT_APPLICABLE:
        return _plain(recorded or operand_type(kernel))
    named = operand_type(kernel)
    data_type = named if recorded is None or kernel.multiply_type is not None else recorded
    if data_type in (DataType.FP32, DataType.TF32):
        return DataType.TF32 if evidence.use is TensorCoreUse.USED else DataType.FP32
    if data_type in _DOUBLE:
        return DataType.FP64_TENSOR if evidence.use is TensorCoreUse.USED else DataType.FP64
    return data_type


def _with_accumulator(
    data_type: DataType, kernel: DecodedKernel, peaks: Mapping[DataType, Limit]
) -> DataType:
    """The peak with sums in fp16, where the name says so and the device has one."""
    if (
        data_type is DataType.FP16
        and kernel.accumulator_type == "f16"
        and DataType.FP16_FP16_ACCUMULATE in peaks
    ):
        return DataType.FP16_FP16_ACCUMULATE
    return data_type
