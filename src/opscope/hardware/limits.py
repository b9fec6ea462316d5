"""What a device can do: the rates that work is held against, measured here or from its data sheet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from opscope.hardware.devices import DataType
from opscope.text_enum import TextEnum

__all__ = ["DeviceLimits", "Limit", "LimitEvidence"]


class LimitEvidence(TextEnum):
    """How a limit is known. A closed set."""

    MEASURED = "measured"
    DATASHEET = "datasheet"


@dataclass(frozen=True)
class Limit:
    """One rate, per second, with its evidence and one sentence on how it was measured or where it stands."""

    per_s: float
    evidence: LimitEvidence
    how: str


@dataclass(frozen=True)
class DeviceLimits:
    """Limits of one device.

    Attributes:
        name: Product name.
        memory: Bytes read and written per second by a large copy (measured), or of the bus (data sheet).
        l2: Bytes per second out of the level-2 cache; None if unknown.
        peaks: Dense operations per second by type.
        launch_ns: Host time of one kernel launch; None if unknown.
        l2_bytes: Size of the level-2 cache; None if unknown.
    """

    name: str
    memory: Limit | None = None
    l2: Limit | None = None
    peaks: Mapping[DataType, Limit] = field(default_factory=dict)
    launch_ns: float | None = None
    l2_bytes: int | None = None
    sm_count: int | None = None
    compute_capability: str | None = None
