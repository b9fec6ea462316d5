"""The work that a roofline is made of: launches of alike calls, with the cost of one call.

Times are device time in integer nanoseconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import msgspec

from opscope.analysis.launch_quality import LaunchQuality
from opscope.launches.facts import DeviceFacts, LaunchFacts, LaunchGeometry
from opscope.model.queries import sql
from opscope.model.session import Session
from opscope.operators.call_cost import CallCost
from opscope.provenance.kernel_names import DecodedKernel, decode

# What runs beside a kernel to prepare or finish its work, and is no work of its own.
_HELPERS = frozenset(
    (
        "memset", "split_k_reduction", "gemm_helper", "attention_helper", "convolution_helper",
        "layout_transform",
    )
)  # fmt: skip
# An activity whose stream was empty starts 2.3 us after its launch call returned (median of recordings on an
# H200; 99 of 100 within 3.5 us, within 5 us on a V100). What starts later waited for something else.
_AT_ONCE_NS = 10_000


class Launches(msgspec.Struct, frozen=True):
    """Activities of one name and geometry under one distinct call.

    Attributes:
        is_helper: They prepare or finish another kernel's work.
        count: How many.
        launch_bound_ns: Device time of those whose call the host issued more slowly than the device did it;
            0 for collectives, whose time is that of waiting for other devices.
        sole_count: Those that did all of their call's work, helpers aside.
        sole_ns: Their device time.
        quality: How they fill the device; None for copies and memory sets.
    """

    kernel: str
    kind: str
    is_helper: bool
    count: int
    total_ns: int
    launch_bound_ns: int
    sole_count: int
    sole_ns: int
    quality: LaunchQuality | None = None

    @property
    def decoded(self) -> DecodedKernel:
        """What the name says."""
        return decode(self.kernel)

    @property
    def mean_ns(self) -> float:
        """Mean device time of one."""
        return self.total_ns / self.count

    @property
    def is_underfilled(self) -> bool | None:
        """Whether they have fewer blocks than the device holds at once; None if unknown."""
        return None if self.quality is None else self.quality.is_underfilled


class Work(msgspec.Struct, frozen=True, dict=True):
    """Launches that together did `repeats` times the work of `cost`.

    Attributes:
        costed_ns: The part of the launches' device time that those repeats took; 0 if their cost is unknown.
    """

    launches: tuple[Launches, ...]
    cost: CallCost
    repeats: int
    costed_ns: int

    @cached_property
    def device_ns(self) -> int:
        """Device time of all launches."""
        return sum(one.total_ns for one in self.launches)

    @cached_property
    def launch_bound_ns(self) -> int:
        """The part that waited for the host."""
        return sum(one.launch_bound_ns for one in self.launches)

    @cached_property
    def main(self) -> tuple[Launches, ...]:
        """The launches that do the work; all of them where every one only helps."""
        return tuple(one for one in self.launches if not one.is_helper) or self.launches

    def time_where(self, condition: Callable[[Launches], bool | None]) -> int:
        """Device time of the launches for which a condition holds."""
        return sum(one.total_ns for one in self.launches if condition(one))


def work_of_call(launches: tuple[Launches, ...], cost: CallCost, calls: int) -> Work:
    """The work of all calls with the same arguments."""
    is_costed = cost.flop_count is not None and cost.min_bytes is not None
    return Work(launches, cost, calls, sum(one.total_ns for one in launches) if is_costed else 0)


def work_by_kernel(call: Work) -> Iterator[tuple[str, Work]]:
    """The same work by kernel: one that does all of a call's work has done its cost each time.

    Launches of no operator tell no calls apart: where they are more than the calls, none did all the work.
    """
    is_told = call.costed_ns > 0 and sum(one.sole_count for one in call.launches) <= call.repeats
    by_name: dict[str, list[Launches]] = defaultdict(list)
    for one in call.launches:
        by_name[one.kernel].append(one)
    for name, launches in by_name.items():
        repeats = sum(one.sole_count for one in launches) if is_told else 0
        costed_ns = sum(one.sole_ns for one in launches) if is_told else 0
        yield name, Work(tuple(launches), call.cost, repeats, costed_ns)


def read_launches(session: Session, device: DeviceFacts | None) -> dict[int, tuple[Launches, ...]]:
    """Launches by call id of table `call_costs`, most device time first. Needs its tables filled."""
    names = session.query("SELECT name_id, name FROM kernel_names")
    helpers = [name_id for name_id, name in names if decode(name).family in _HELPERS]
    by_call: dict[int, list[Launches]] = defaultdict(list)
    for row in session.records(sql(__package__, "launched_calls"), [helpers, _AT_ONCE_NS]):
        by_call[row["call_id"]].append(_launches(row, device))
    return {call_id: tuple(launches) for call_id, launches in by_call.items()}


def _launches(row: Mapping[str, Any], device: DeviceFacts | None) -> Launches:
    return Launches(
        kernel=row["name"],
        kind=row["kind"],
        is_helper=row["is_helper"],
        count=row["launches"],
        total_ns=row["total_ns"],
        # A collective's time is not its own: it ends when the last device has come.
        launch_bound_ns=0
        if decode(row["name"]).family in ("collective", "device_communication")
        else row["launch_bound_ns"],
        sole_count=row["sole_launches"],
        sole_ns=row["sole_ns"],
        quality=LaunchQuality(LaunchFacts(decode(row["name"]), _geometry(row), device=device))
        if row["kind"] == "kernel"
        else None,
    )


def _geometry(row: Mapping[str, Any]) -> LaunchGeometry:
    """The geometry as far as it matters to filling the device: extents of all dimensions multiplied."""
    return LaunchGeometry(
        _extent(row["blocks"]),
        _extent(row["threads"]),
        row["registers_per_thread"],
        row["shared_memory_bytes"],
        None,
        calls=row["launches"],
        total_ns=row["total_ns"],
    )


def _extent(size: int | None) -> tuple[int, int, int] | None:
    return None if size is None else (size, 1, 1)
