"""How well launches fill the device: occupancy and its limiter, waves and their tail, partial warps.

Facts of the recorded geometry and of the device alone, per launch configuration; no guess at what a kernel
does with its blocks. The recorder's own estimate stands beside the theoretical occupancy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from opscope.analysis.common_device import common_device
from opscope.analysis.occupancy import WARP_SIZE, Limiter, Residency, Waves
from opscope.analysis.parallelism.facts import DeviceFacts, LaunchFacts
from opscope.analysis.parallelism.filling import resident_blocks, waves
from opscope.analysis.queries import sql
from opscope.analysis.totals import KernelTotal, LaunchGeometry, geometry_of
from opscope.model.session import Session
from opscope.provenance.kernel_names import decode

__all__ = [
    "LaunchQuality",
    "QualityTotal",
    "geometry_quality",
    "kernel_quality",
    "launch_quality",
    "quality_by_kernel",
    "quality_by_operator",
    "total_quality",
]

_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True)
class LaunchQuality:
    """One launch configuration of a kernel under one operator; None is unknown.

    Attributes:
        operator: None for launches of no operator.
        geometry: As recorded.
        blocks: Of the grid.
        threads: Of a block.
        residency: Blocks that one multiprocessor holds of it, with the limiters; None without registers,
            shared memory or the device's limits.
        filled: How the grid fills the device; None without residency or multiprocessors.
        sm_count: Multiprocessors of the device.
    """

    kernel: str
    operator: str | None
    geometry: LaunchGeometry
    blocks: int | None = None
    threads: int | None = None
    residency: Residency | None = None
    filled: Waves | None = None
    sm_count: int | None = None

    @property
    def calls(self) -> int:
        """Launches."""
        return self.geometry.calls

    @property
    def total_ns(self) -> int:
        """Their device time."""
        return self.geometry.total_ns

    @property
    def occupancy(self) -> float | None:
        """Resident warps of a full multiprocessor over the most there can be, 0–1."""
        return None if self.residency is None else self.residency.occupancy

    @property
    def limiters(self) -> tuple[Limiter, ...]:
        """The resources that allow no more blocks."""
        return () if self.residency is None else self.residency.limiters

    @property
    def waves(self) -> float | None:
        """Blocks over the blocks that the whole device holds."""
        return None if self.filled is None else self.filled.count

    @property
    def tail_loss(self) -> float | None:
        """Share of the slots of all waves that stay empty, 0–1."""
        return None if self.filled is None else self.filled.tail_loss

    @property
    def occupancy_estimate(self) -> float | None:
        """The recorder's own estimate, 0–1, which small grids lower."""
        return self.geometry.occupancy_estimate

    @property
    def idle_sm_count(self) -> int | None:
        """Multiprocessors that get no block."""
        if self.blocks is None or self.sm_count is None:
            return None
        return max(0, self.sm_count - self.blocks)

    @property
    def is_underfilled(self) -> bool | None:
        """Fewer blocks than one wave: certain below one block per multiprocessor, whatever one holds."""
        if self.idle_sm_count:
            return True
        return None if self.filled is None else self.filled.count < 1

    @property
    def partial_warp_loss(self) -> float | None:
        """Share of a block's thread slots that its last warp leaves empty, 0–1."""
        if self.threads is None:
            return None
        unused = -self.threads % WARP_SIZE
        return unused / (self.threads + unused)


@dataclass(frozen=True)
class QualityTotal:
    """Launch configurations together, weighted by device time: means over the time for which each is known.

    Attributes:
        total_ns: Device time of the kernels.
        known_ns: The part of it whose waves are known.
        occupancy: Theoretical occupancy.
        tail_loss: Share of slots that stay empty.
        underfilled_ns: Device time of launches with fewer blocks than one wave.
        partial_warp_ns: Device time of launches whose blocks end in a partial warp.
        limiters: Device time by the resource that limits occupancy; a launch with two counts in both.
    """

    total_ns: int
    known_ns: int
    occupancy: float | None
    tail_loss: float | None
    underfilled_ns: int
    partial_warp_ns: int
    limiters: Mapping[Limiter, int]


def launch_quality(
    session: Session, launches: list[dict[str, Any]] | None = None
) -> tuple[LaunchQuality, ...]:
    """Every launch configuration of every kernel, by operator, most device time first.

    Args:
        session: The Session.
        launches: Rows of `launches.sql`, if at hand.
    """
    rows = session.records(sql("launches")) if launches is None else launches
    device = common_device(session)
    found = [
        geometry_quality(row["name"], geometry_of(row), device, operator=row["operator"])
        for row in rows
        if row["kind"] == "kernel"
    ]
    return tuple(sorted(found, key=lambda one: (-one.total_ns, one.kernel, one.operator or "")))


def geometry_quality(
    kernel: str, geometry: LaunchGeometry, device: DeviceFacts | None, *, operator: str | None = None
) -> LaunchQuality:
    """The quality of one launch configuration on a device."""
    launch = LaunchFacts(decode(kernel), geometry, device=device)
    return LaunchQuality(
        kernel,
        operator,
        geometry,
        launch.block_count,
        launch.thread_count,
        resident_blocks(launch),
        waves(launch),
        launch.sm_count,
    )


def kernel_quality(kernel: KernelTotal, device: DeviceFacts | None) -> tuple[LaunchQuality, ...]:
    """The quality of a kernel's launch configurations, most device time first."""
    return tuple(geometry_quality(kernel.name, geometry, device) for geometry in kernel.geometries)


def quality_by_operator(launches: Iterable[LaunchQuality]) -> dict[str | None, QualityTotal]:
    """Totals by operator; None is for launches of no operator."""
    return _totals(launches, lambda launch: launch.operator)


def quality_by_kernel(launches: Iterable[LaunchQuality]) -> dict[str, QualityTotal]:
    """Totals by kernel name, whoever launched it."""
    return _totals(launches, lambda launch: launch.kernel)


def total_quality(launches: Iterable[LaunchQuality]) -> QualityTotal:
    """All of these launches together."""
    known = list(launches)
    filled = [(one.filled, one.total_ns) for one in known if one.filled is not None and one.total_ns]
    limiters: dict[Limiter, int] = defaultdict(int)
    for one in known:
        for limiter in one.limiters:
            limiters[limiter] += one.total_ns
    return QualityTotal(
        total_ns=sum(one.total_ns for one in known),
        known_ns=sum(total_ns for _, total_ns in filled),
        occupancy=_mean((waves.residency.occupancy, total_ns) for waves, total_ns in filled),
        tail_loss=_mean((waves.tail_loss, total_ns) for waves, total_ns in filled),
        underfilled_ns=sum(one.total_ns for one in known if one.is_underfilled),
        partial_warp_ns=sum(one.total_ns for one in known if one.partial_warp_loss),
        limiters=dict(limiters),
    )


def _totals(
    launches: Iterable[LaunchQuality], key: Callable[[LaunchQuality], _Key]
) -> dict[_Key, QualityTotal]:
    groups: dict[_Key, list[LaunchQuality]] = defaultdict(list)
    for launch in launches:
        groups[key(launch)].append(launch)
    return {name: total_quality(alike) for name, alike in groups.items()}


def _mean(weighted: Iterable[tuple[float, int]]) -> float | None:
    pairs = list(weighted)
    weight = sum(total_ns for _, total_ns in pairs)
    return sum(value * total_ns for value, total_ns in pairs) / weight if weight else None
