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
    """Work per second of one call, repeated.

    Attributes:
        name: `copy`, `read`, `write`, `l2_read`, or `matrix_<type>` with the type's name in the table of
            devices (`matrix_bf16`); `matrix_fp64` is the product of float64 by whatever units the library
            uses.
        unit: What is counted: bytes, for a copy those read and those written; or operations, two for each
            multiplication and its addition.
        per_s: `amount` over the median duration.
        low_per_s: Lower end of the 95 % interval of that median.
        high_per_s: Upper end.
        amount: Bytes or operations of one call.
        median_ns: Duration of one call.
        sample_count: Calls timed, after a warm-up. None was left out.
        how: Operator, sizes and data, for people.
        state: Clocks and reasons that lower them while the same call ran; None if not readable.
    """

    name: str
    unit: Literal["bytes", "operations"]
    per_s: float
    low_per_s: float
    high_per_s: float
    amount: int
    median_ns: float
    sample_count: int
    how: str
    state: DeviceState | None = None


class MeasuredTime(msgspec.Struct, frozen=True, kw_only=True):
    """A duration that repeats: the median of batches, per piece, with its 95 % interval.

    Attributes:
        name: `launch`, `operator_call` or `kernel_interval`.
        median_ns: Of the batches, per piece.
        low_ns: Lower end of the interval of that median.
        high_ns: Upper end.
        sample_count: Batches timed.
        how: What was repeated, for people.
    """

    name: str
    median_ns: float
    low_ns: float
    high_ns: float
    sample_count: int
    how: str


class MeasuredLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Everything measured of one device in one run. Unknown is None.

    Attributes:
        device: Name as its driver reports it; of a CPU, its model.
        compute_capability: As `"9.0"`; None for a CPU.
        memory_bytes: As reported.
        l2_bytes: As reported.
        driver: Version of the GPU's driver, e.g. `"580.159.04"`; None if it cannot be asked.
        created: When it was measured, ISO 8601 in UTC.
        duration_ns: Wall time of the whole measurement.
        missing: Why rates and times are absent, by their names.
    """

    schema_version: int
    device: str
    compute_capability: str | None
    sm_count: int | None
    memory_bytes: int | None
    l2_bytes: int | None
    driver: str | None
    cuda_runtime: str | None
    torch: str
    opscope: str
    created: str
    duration_ns: int
    rates: tuple[MeasuredRate, ...] = ()
    times: tuple[MeasuredTime, ...] = ()
    missing: dict[str, str] = {}
    state_before: DeviceState | None = None
    state_after: DeviceState | None = None

    def rate(self, name: str) -> MeasuredRate | None:
        """The rate of that name; None if it was not measured."""
        return next((one for one in self.rates if one.name == name), None)

    def time(self, name: str) -> MeasuredTime | None:
        """The duration of that name; None if it was not measured."""
        return next((one for one in self.times if one.name == name), None)
