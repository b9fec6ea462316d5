"""The Summary: everything reports say about a Session, as frozen values.

`summarize(session)` is the one way from tables to reports. All times are integer nanoseconds; fractions are
0–1; None means unknown. Device time of operators, annotations and steps never overlaps: Σ self_device_ns over
operators + Σ unattributed_ns = device_time_ns, exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from opscope.analysis.accuracy import Accuracy, measure_accuracy
from opscope.analysis.common_device import common_device
from opscope.analysis.efficiency import Efficiency
from opscope.analysis.improvement import OperatorImprovement, find_improvements
from opscope.analysis.launch_quality import (
    ExplainedLaunch,
    LaunchQuality,
    launch_explanations,
    launch_quality,
)
from opscope.analysis.program.totals import program_totals
from opscope.analysis.program.values import ProgramTotals
from opscope.analysis.provenance import read_provenance
from opscope.analysis.queries import sql
from opscope.analysis.roofline.measure import measure_efficiency
from opscope.analysis.session_limits import limits_of_session
from opscope.analysis.timeline.measure import measure_timeline
from opscope.analysis.timeline.values import Timeline
from opscope.analysis.totals import (
    CategoryTotal,
    KernelTotal,
    OperatorTotal,
    category_totals,
    kernel_totals,
    operator_totals,
)
from opscope.model.evidence import Grade
from opscope.model.finding import Finding
from opscope.model.session import Session

__all__ = [
    "DeviceTime",
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
    time. Both are complete; renderers cut them. `torch_version` is the release whose tables were asked, with
    how and why it was taken for the trace's. `accounts` tell by (operator, kernel) how launches
    parallelize; those of the operator None are of a kernel whoever launched it. `advice` says what to change,
    the largest gain first, and is None where no one asked for it; `findings` qualify the data.
    `limits_reason` says why the device has no limits, or which measurements of it were passed over.
    `quality` says how well each launch configuration fills the device; `improvements`, by operator, what
    could be better in the kernels that take most time.
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
    accuracy: Accuracy | None = None
    torch_version: str | None = None
    torch_version_grade: Grade | None = None
    torch_version_reason: str | None = None
    accounts: Mapping[tuple[str | None, str], tuple[ExplainedLaunch, ...]] = field(default_factory=dict)
    efficiency: Efficiency = field(default_factory=Efficiency)
    limits_reason: str | None = None
    quality: tuple[LaunchQuality, ...] = ()
    improvements: Mapping[str, OperatorImprovement] = field(default_factory=dict)
    timeline: Timeline = field(default_factory=Timeline)
    program: ProgramTotals = field(default_factory=ProgramTotals)
    advice: tuple[Finding, ...] | None = None

    @property
    def attributed_fraction(self) -> float | None:
        """Share of device time that belongs to an operator; None without device time."""
        return self.attributed_ns / self.device_time_ns if self.device_time_ns else None

    @property
    def source_mapped_fraction(self) -> float | None:
        """Share of device time whose operator or kernel has a source file; None without device time."""
        mapped_ns = sum(operator.self_device_ns for operator in self.operators if operator.source is not None)
        return mapped_ns / self.device_time_ns if self.device_time_ns else None

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


def summarize(
    session: Session, *, measured_dir: Path | None = None, ceilings_file: Path | None = None
) -> Summary:
    """The Summary of a Session, without advice: `advice.assess` adds it.

    Args:
        session: The Session.
        measured_dir: Folder of measured device limits; the data sheet's are used if it holds none.
        ceilings_file: One measurement to use instead.

    Raises:
        InputError: The file cannot be used, or is of another GPU than the recording.
    """
    limits, limits_reason = limits_of_session(session, measured_dir, ceilings_file)
    provenance = read_provenance(session)
    totals = session.records(_TOTALS_SQL)[0]
    launches = session.records(sql("launches"))
    device_time_ns = totals["device_time_ns"]
    has_device = totals["activity_count"] > 0
    operators = operator_totals(session, launches, provenance, device_time_ns, has_device=has_device)
    kernels = kernel_totals(launches, provenance, device_time_ns)
    traces = session.query("SELECT source, rank FROM traces ORDER BY trace_id")
    efficiency = measure_efficiency(session, limits)
    quality = launch_quality(session, launches)
    device = common_device(session)
    capability = None if device is None else device.compute_capability
    return Summary(
        traces=tuple(source for source, _ in traces),
        ranks=tuple(rank for _, rank in traces),
        has_device=has_device,
        devices=tuple(DeviceTime(**row) for row in session.records(_DEVICES_SQL)),
        steps=tuple(StepTotal(*row) for row in session.query(_STEPS_SQL)),
        unattributed_ns=dict(session.query(_UNATTRIBUTED_SQL)),
        operators=operators,
        operator_names=len(operators),
        categories=category_totals(operators, device_time_ns, totals["cpu_time_ns"]),
        kernels=kernels,
        findings=tuple(session.findings()),
        accuracy=measure_accuracy(
            session, device_time_ns=device_time_ns, attributed_ns=totals["attributed_ns"]
        ),
        torch_version=provenance.torch_version,
        torch_version_grade=provenance.torch_version_grade,
        torch_version_reason=provenance.torch_version_reason,
        accounts=launch_explanations(
            session,
            (operator for operator in operators if operator.self_device_ns > 0),
            kernels,
            torch_version=provenance.torch_version,
        ),
        efficiency=efficiency,
        quality=quality,
        improvements=find_improvements(session, operators, quality, efficiency, capability),
        limits_reason=limits_reason,
        timeline=measure_timeline(session),
        program=program_totals(session),
        **totals,
    )
