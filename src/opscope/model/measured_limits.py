"""What one machine's device was measured to reach, as it is kept in a file.

The structs are the JSON contract of `opscope devices --measure --save`: field names carry their unit, unknown
is null. Imports nothing that computes.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from opscope.model.benchmark import DeviceState

MEASURED_LIMITS_SCHEMA_VERSION = 1


class MeasuredRate(msgspec.Struct, frozen=True, kw_only=True):
    """Work per second of one call, repeated."""

    # `copy`, `read`, `write`, `l2_read`, or `matrix_<type>` with the type's name in the table of devices
    # (`matrix_bf16`); `matrix_fp64` is the product of float64 by whatever units the library uses
    name: str
    # What is counted: bytes, for a copy those read and those written; or operations, two for each
    # multiplication and its addition
    unit: Literal["bytes", "operations"]
    per_s: float  # `amount` over the median duration
    low_per_s: float  # Lower end of the 95 % interval of that median
    high_per_s: float  # Upper end
    amount: int  # Bytes or operations of one call
    median_ns: float  # Duration of one call
    sample_count: int  # Calls timed, after a warm-up. None was left out
    how: str  # Operator, sizes and data, for people
    # Clocks and reasons that lower them while the same call ran; None if not readable
    state: DeviceState | None = None


class MeasuredTime(msgspec.Struct, frozen=True, kw_only=True):
    """A duration that repeats: the median of batches, per piece, with its 95 % interval."""

    name: str  # `launch`, `operator_call` or `kernel_interval`
    median_ns: float  # Of the batches, per piece
    low_ns: float  # Lower end of the interval of that median
    high_ns: float  # Upper end
    sample_count: int  # Batches timed
    how: str  # What was repeated, for people


class MeasuredLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Everything measured of one device in one run. Unknown is None."""

    schema_version: int
    device: str  # Name as its driver reports it; of a CPU, its model
    compute_capability: str | None  # As `"9.0"`; None for a CPU
    sm_count: int | None
    memory_bytes: int | None  # As reported
    l2_bytes: int | None  # As reported
    driver: str | None  # Version of the GPU's driver, e.g. `"580.159.04"`; None if it cannot be asked
    cuda_runtime: str | None
    torch: str
    opscope: str
    created: str  # When it was measured, ISO 8601 in UTC
    duration_ns: int  # Wall time of the whole measurement
    rates: tuple[MeasuredRate, ...] = ()
    times: tuple[MeasuredTime, ...] = ()
    missing: dict[str, str] = {}  # Why rates and times are absent, by their names
    state_before: DeviceState | None = None
    state_after: DeviceState | None = None
