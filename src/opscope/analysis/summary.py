"""The Summary: everything reports say about a Session, as frozen values.

`summarize(session)` is the one way from tables to reports. All times are integer nanoseconds; fractions are
0–1; None means unknown. Device time of operators, annotations and steps never overlaps: Σ self_device_ns over
operators + Σ unattributed_ns = device_time_ns, exactly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any

from opscope.model.finding import Finding
from opscope.model.session import Session
from opscope.provenance.categories import category_of

__all__ = [
    "CategoryTotal",
    "DeviceTime",
    "KernelTotal",
    "LaunchGeometry",
    "OperatorTotal",
    "StepTotal",
    "Summary",
    "summarize",
]


@dataclass(frozen=True)
class DeviceTime:
    """Use of one device of one trace; `span_ns` runs from first activity start to last activity end."""

    trace_id: int
    rank: int | None
    device: int
    name: str | None
    compute_capability: str | None
    sm_count: int | None
    memory_bytes: int | None
    span_ns: int
    busy_ns: int
    idle_ns: int
    activity_count: int


@dataclass(frozen=True)
class LaunchGeometry:
    """One distinct launch configuration of a kernel, with its share of the kernel's calls and time."""

    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    registers_per_thread: int | None
    shared_memory_bytes: int | None
    occupancy_estimate: float | None
    calls: int
    total_ns: int


@dataclass(frozen=True)
class KernelTotal:
    """All activities of one name (of one operator, when inside an OperatorTotal).

    `geometries` come longest first.
    """

    name: str
    kind: str
    calls: int
    total_ns: int
    min_ns: int
    max_ns: int
    fraction: float
    size_bytes: int | None
    geometries: tuple[LaunchGeometry, ...] = ()


@dataclass(frozen=True)
class OperatorTotal:
    """All calls of one operator name. `total_*` counts a call nested in another of the same name once."""

    name: str
    overload: str | None
    category: str
    calls: int
    self_device_ns: int
    total_device_ns: int
    self_cpu_ns: int
    total_cpu_ns: int
    kernel_launches: int
    self_device_fraction: float
    total_device_fraction: float
    input_shapes: tuple[tuple[str, int], ...] = ()  # most frequent first: (shapes as JSON text, calls)
    kernels: tuple[KernelTotal, ...] = ()  # of its own launches, longest first


@dataclass(frozen=True)
class CategoryTotal:
    """Self times of all operators of one category."""

    category: str
    device_ns: int
    cpu_ns: int
    fraction: float
    calls: int


@dataclass(frozen=True)
class StepTotal:
    """One profiler step of one trace."""

    trace_id: int
    step: int
    duration_ns: int
    device_ns: int
    kernel_count: int


@dataclass(frozen=True)
class Summary:
    """What one Session holds, ready to render.

    `operators` are ranked by self device time (by self CPU time where `has_device` is false), `kernels` by
    time. Both are complete; renderers cut them.
    """

    traces: tuple[str, ...]
    ranks: tuple[int | None, ...]
    has_device: bool
    device_time_ns: int
    attributed_ns: int
    cpu_time_ns: int
    kernel_launches: int
    activity_count: int
    operator_calls: int
    operator_names: int
    window_ns: int | None
    devices: tuple[DeviceTime, ...]
    steps: tuple[StepTotal, ...]
    unattributed_ns: dict[str, int] = field(default_factory=dict)
    operators: tuple[OperatorTotal, ...] = ()
    categories: tuple[CategoryTotal, ...] = ()
    kernels: tuple[KernelTotal, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def attributed_fraction(self) -> float | None:
        """Share of device time that belongs to an operator; None without device time."""
        return self.attributed_ns / self.device_time_ns if self.device_time_ns else None

    @property
    def busy_fraction(self) -> float | None:
        """Busy time over span, summed over devices; None without a device."""
        span_ns = sum(device.span_ns for device in self.devices)
        return sum(device.busy_ns for device in self.devices) / span_ns if span_ns else None


_TOTALS_SQL = """
SELECT (SELECT coalesce(sum(duration_ns), 0)::BIGINT FROM device_activities) AS device_time_ns,
    (SELECT coalesce(sum(self_device_ns), 0)::BIGINT FROM operators) AS attributed_ns,
    (SELECT coalesce(sum(self_cpu_ns), 0)::BIGINT FROM operators) AS cpu_time_ns,
    (SELECT count(*) FROM device_activities WHERE kind = 'kernel') AS kernel_launches,
    (SELECT count(*) FROM device_activities) AS activity_count,
    (SELECT count(*) FROM operators) AS operator_calls,
    (SELECT max(window_end_ns - window_start_ns) FROM traces) AS window_ns"""

_DEVICES_SQL = """
SELECT d.trace_id, rank, device, name, CASE WHEN compute_major IS NOT NULL THEN
    compute_major || '.' || compute_minor END AS compute_capability, sm_count, memory_bytes,
    span_ns, busy_ns, idle_ns, activity_count
FROM devices d JOIN traces USING (trace_id) WHERE activity_count > 0 ORDER BY d.trace_id, device"""

_UNATTRIBUTED_SQL = """
SELECT attribution, sum(duration_ns)::BIGINT FROM device_activities
WHERE operator_id IS NULL GROUP BY attribution ORDER BY 2 DESC, 1"""

_STEPS_SQL = """
SELECT trace_id, step, duration_ns, device_ns, kernel_count FROM steps ORDER BY trace_id, start_ns"""


def summarize(session: Session) -> Summary:
    """The Summary of a Session."""
    totals = session.records(_TOTALS_SQL)[0]
    launches = session.records(_sql("launches"))
    device_time_ns = totals["device_time_ns"]
    has_device = totals["activity_count"] > 0
    operators = _operators(session, launches, device_time_ns, has_device=has_device)
    traces = session.query("SELECT source, rank FROM traces ORDER BY trace_id")
    return Summary(
        traces=tuple(source for source, _ in traces),
        ranks=tuple(rank for _, rank in traces),
        has_device=has_device,
        devices=tuple(DeviceTime(**row) for row in session.records(_DEVICES_SQL)),
        steps=tuple(StepTotal(*row) for row in session.query(_STEPS_SQL)),
        unattributed_ns=dict(session.query(_UNATTRIBUTED_SQL)),
        operators=operators,
        operator_names=len(operators),
        categories=_categories(operators, device_time_ns, totals["cpu_time_ns"]),
        kernels=_kernels(launches, device_time_ns),
        findings=tuple(session.findings()),
        **totals,
    )


def _sql(name: str) -> str:
    return resources.files(__package__).joinpath(f"{name}.sql").read_text(encoding="utf-8")


def _operators(
    session: Session, launches: list[dict[str, Any]], device_time_ns: int, *, has_device: bool
) -> tuple[OperatorTotal, ...]:
    shapes: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for name, text, calls in session.query(_sql("input_shapes")):
        shapes[name].append((text, calls))
    by_operator: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in launches:
        if row["operator"] is not None:
            by_operator[row["operator"]].append(row)
    side = "device" if has_device else "cpu"
    operators = [
        OperatorTotal(
            **row,
            category=category_of(row["name"]),
            kernel_launches=sum(one["calls"] for one in by_operator[row["name"]] if one["kind"] == "kernel"),
            self_device_fraction=_fraction(row["self_device_ns"], device_time_ns),
            total_device_fraction=_fraction(row["total_device_ns"], device_time_ns),
            input_shapes=tuple(shapes[row["name"]]),
            kernels=_kernels(by_operator[row["name"]], device_time_ns),
        )
        for row in session.records(_sql("operators"))
    ]
    operators.sort(key=lambda o: (-getattr(o, f"self_{side}_ns"), -getattr(o, f"total_{side}_ns"), o.name))
    return tuple(operators)


def _kernels(launches: Iterable[dict[str, Any]], device_time_ns: int) -> tuple[KernelTotal, ...]:
    """Kernels of rows of `launches.sql`, longest first."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in launches:
        groups[row["name"], row["kind"]].append(row)
    kernels = [
        KernelTotal(
            name=name,
            kind=kind,
            calls=sum(row["calls"] for row in rows),
            total_ns=(total_ns := sum(row["total_ns"] for row in rows)),
            min_ns=min(row["min_ns"] for row in rows),
            max_ns=max(row["max_ns"] for row in rows),
            fraction=_fraction(total_ns, device_time_ns),
            size_bytes=None if kind == "kernel" else sum(row["size_bytes"] or 0 for row in rows),
            geometries=_geometries(rows) if kind == "kernel" else (),
        )
        for (name, kind), rows in groups.items()
    ]
    kernels.sort(key=lambda kernel: (-kernel.total_ns, kernel.name, kernel.kind))
    return tuple(kernels)


def _geometries(rows: list[dict[str, Any]]) -> tuple[LaunchGeometry, ...]:
    merged: dict[LaunchGeometry, list[int]] = defaultdict(lambda: [0, 0])
    for row in rows:
        geometry = LaunchGeometry(
            _triple(row, "grid"),
            _triple(row, "block"),
            row["registers_per_thread"],
            row["shared_memory_bytes"],
            row["occupancy_estimate"],
            calls=0,
            total_ns=0,
        )
        merged[geometry][0] += row["calls"]
        merged[geometry][1] += row["total_ns"]
    found = [
        replace(geometry, calls=calls, total_ns=total_ns) for geometry, (calls, total_ns) in merged.items()
    ]
    return tuple(sorted(found, key=lambda geometry: -geometry.total_ns))


def _triple(row: dict[str, Any], name: str) -> tuple[int, int, int] | None:
    values = (row[f"{name}_x"], row[f"{name}_y"], row[f"{name}_z"])
    return None if None in values else values


def _categories(
    operators: tuple[OperatorTotal, ...], device_time_ns: int, cpu_time_ns: int
) -> tuple[CategoryTotal, ...]:
    device_ns: dict[str, int] = defaultdict(int)
    cpu_ns: dict[str, int] = defaultdict(int)
    calls: dict[str, int] = defaultdict(int)
    for operator in operators:
        device_ns[operator.category] += operator.self_device_ns
        cpu_ns[operator.category] += operator.self_cpu_ns
        calls[operator.category] += operator.calls
    part, whole = (device_ns, device_time_ns) if device_time_ns else (cpu_ns, cpu_time_ns)
    totals = [
        CategoryTotal(name, device_ns[name], cpu_ns[name], _fraction(part[name], whole), calls[name])
        for name in calls
    ]
    return tuple(sorted(totals, key=lambda total: (-total.fraction, -total.cpu_ns, total.category)))


def _fraction(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
