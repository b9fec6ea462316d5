"""What work can be expected to reach: the device's limits, a data sheet's reduced to what programs see."""

from __future__ import annotations

from dataclasses import dataclass, field

from opscope.advice.rule_book import RuleBook, rule_book
from opscope.hardware.devices import DataType
from opscope.hardware.limits import DeviceLimits, Limit, LimitEvidence

__all__ = ["Rates"]


@dataclass(frozen=True)
class Rates:
    """Rates of one device.

    Attributes:
        limits: None if unknown.
        sm_count: Multiprocessors; None if unknown.
    """

    limits: DeviceLimits | None = None
    sm_count: int | None = None
    book: RuleBook = field(default_factory=rule_book, repr=False)

    def number(self, name: str) -> float:
        """A shared number of the rule book."""
        return self.book.number(name)

    def flop_per_s(self, data_type: DataType) -> float | None:
        """Operations per second that large products of a type reach."""
        peak = None if self.limits is None else self.limits.peaks.get(data_type)
        return self._expected(peak, "datasheet_peak_share")

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes per second that large copies reach."""
        memory = None if self.limits is None else self.limits.memory
        return self._expected(memory, "datasheet_bandwidth_share")

    @property
    def half_type(self) -> DataType | None:
        """The 16-bit type to compute in: bfloat16 where there are tensor cores for it."""
        known = (DataType.BF16, DataType.FP16)
        return next((one for one in known if self.flop_per_s(one) is not None), None)

    def memory_ns(self, size_bytes: float) -> float | None:
        """Time to move bytes, never less than a kernel takes; None if the rate is unknown."""
        rate = self.bytes_per_s
        return None if rate is None else max(self.number("kernel_floor_ns"), size_bytes / rate * 1e9)

    def _expected(self, limit: Limit | None, share: str) -> float | None:
        if limit is None:
            return None
        is_measured = limit.evidence is LimitEvidence.MEASURED
        return limit.per_s if is_measured else limit.per_s * self.number(share)
