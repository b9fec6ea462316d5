"""The Summary: everything reports say about a Session.

It is the one way from tables to reports. All times are integer nanoseconds; fractions are
0–1; None means unknown. Device time of operators, annotations and steps never overlaps: Σ self_device_ns over
operators + Σ unattributed_ns = device_time_ns, exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from opscope.analysis.collectives import JobCollectives, Straggler, find_straggler, read_collectives
from opscope.analysis.launch_quality import (
    ExplainedLaunch,
    LaunchQuality,
    LeadingKernel,
    launch_explanations,
    launch_quality,
    leading_kernel,
    limits_of_session,
)
from opscope.analysis.measured_step import MeasuredStep, measured_steps
from opscope.analysis.program.places import ProgramTotals, program_totals
from opscope.analysis.provenance import Accuracy, Provenance, measure_accuracy, read_provenance
from opscope.analysis.roofline import Efficiency, measure_efficiency
from opscope.analysis.step_model import StepExecution, StepModel, step_model
from opscope.analysis.timeline.host import SessionRecords, read_session
from opscope.analysis.timeline.measure import join_timelines, measure_timeline
from opscope.analysis.timeline.values import Timeline, WindowKind
from opscope.analysis.totals import (
    CategoryTotal,
    GraphTotal,
    KernelTotal,
    OperatorTotal,
    RangeTotal,
    category_totals,
    kernel_totals,
    operator_totals,
    range_totals,
    serving_engine,
)
from opscope.analysis.watched_steps import HostLine
from opscope.hardware.limits import DeviceLimits
from opscope.ingest.quality import is_of_torch
from opscope.model.files import UNREADABLE_JSON
from opscope.model.finding import Finding
from opscope.model.notebook import Shown
from opscope.model.origin import Grade
from opscope.model.queries import sql
from opscope.model.session import Session
from opscope.model.sidecar import Environment

if TYPE_CHECKING:
    from opscope.analysis.counters import OperatorImprovement

# Of a long trace's steps so many calls are simulated: each change takes some ten simulations of all of them.
_MOST_SIMULATED_CALLS = 1 << 17


class DeviceTime(msgspec.Struct, frozen=True):
    """Use of one device of one trace; `span_ns` is the length of its window: see `TimePartition`."""

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


class StepTotal(msgspec.Struct, frozen=True):
    """One profiler step of one trace, with what it launched and the CPU time of its operators."""

    trace_id: int
    step: int
    duration_ns: int
    device_ns: int
    kernel_count: int
    cpu_ns: int


class BestSet(msgspec.Struct, frozen=True):
    """Changes that together shorten a step most, by code, and by how much."""

    codes: tuple[str, ...]
    estimated_gain_ns_per_step: float


class Summary(Shown):
    """The content of one Session, ready to render. Each section is computed on first use.

    `complete` computes all of them; until then the Session must stay open. `having` replaces the values of
    sections.
    """

    traces: tuple[str, ...]  # the sources
    ranks: tuple[int | None, ...]  # of each trace; None if unknown
    device_time_ns: int  # of all device activities
    attributed_ns: int  # the part of it that belongs to an operator
    set_aside_ns: int  # time of device records that cannot be right, in no other figure
    cpu_time_ns: int
    kernel_launches: int
    activity_count: int
    operator_calls: int
    window_ns: int | None  # the longest recording window

    def __init__(
        self,
        session: Session,
        *,
        measured_dir: Path | None = None,
        ceilings_file: Path | None = None,
        by: str | None = None,
        **known: Any,
    ) -> None:
        """A Summary of a Session.

        Args:
            session: The Session.
            measured_dir: Folder of measured device limits; the datasheet's are used if it holds none.
            ceilings_file: One measurement to use instead.
            by: `range:REGEX`, by which annotations are grouped; None for the steps of a serving engine.
            **known: Attributes that are not to be computed, with their values.
        """
        self._session: Session | None = session
        self.recorded: Session | None = None  # for the pictures of a notebook, where it is kept
        self._measured = (measured_dir, ceilings_file)
        self.ranges_by = by
        traces = session.query("SELECT source, rank FROM traces ORDER BY trace_id")
        self.traces = tuple(source for source, _ in traces)
        self.ranks = tuple(rank for _, rank in traces)
        vars(self).update(session.records(sql(__package__, "summary:totals"))[0])
        vars(self).update(known)

    def having(self, **known: Any) -> Summary:
        """A copy with other values of these attributes."""
        other = copy(self)
        vars(other).update(known)
        return other

    def complete(self) -> Summary:
        """Compute every section, so that the Session may be closed; returns the Summary."""
        for name in _SECTIONS:
            getattr(self, name)
        for name in _UNTIL_COMPLETE:
            vars(self).pop(name, None)
        self._session = None
        return self

    @property
    def session(self) -> Session:
        """The Session, until the Summary is complete."""
        if self._session is None:
            raise RuntimeError("the summary is complete and has let its session go")
        return self._session

    @property
    def has_device(self) -> bool:
        """Whether any device activity was recorded."""
        return self.activity_count > 0

    @cached_property
    def devices(self) -> tuple[DeviceTime, ...]:
        """Devices in use, by trace."""
        in_windows = {
            (one.trace_id, one.device): {
                "span_ns": one.span_ns, "busy_ns": one.busy_ns, "idle_ns": one.idle_ns,
            }
            for one in self.timeline.partitions
        }  # fmt: skip
        return tuple(
            DeviceTime(**row | in_windows.get((row["trace_id"], row["device"]), {}))
            for row in self.session.records(sql(__package__, "summary:devices"))
        )

    @cached_property
    def steps(self) -> tuple[StepTotal, ...]:
        """Profiler steps, by trace and start."""
        return tuple(StepTotal(*row) for row in self.session.query(sql(__package__, "summary:steps")))

    @cached_property
    def environments(self) -> tuple[Environment, ...]:
        """Environments of traces that opscope recorded."""
        found = []
        for (text,) in self.session.query(sql(__package__, "summary:environments")):
            # A saved session may be a stranger's.
            with suppress(*UNREADABLE_JSON):
                found.append(msgspec.json.decode(text, type=Environment))
        return tuple(found)

    @cached_property
    def unattributed_ns(self) -> dict[str, int]:
        """Device time without an operator, by reason."""
        return dict(self.session.query(sql(__package__, "summary:unattributed")))

    @cached_property
    def operators(self) -> tuple[OperatorTotal, ...]:
        """All operators, by self device time; by self CPU time without a device."""
        return operator_totals(
            self.session, self._launches, self._provenance, self.device_time_ns, has_device=self.has_device
        )

    @property
    def operator_names(self) -> int:
        """Number of operators."""
        return len(self.operators)

    @cached_property
    def kernels(self) -> tuple[KernelTotal, ...]:
        """All kernels, copies and memory sets by time."""
        return kernel_totals(self._launches, self._provenance, self.device_time_ns)

    @cached_property
    def categories(self) -> tuple[CategoryTotal, ...]:
        """Self times by category; work without an operator counts by its kernels. Sums to the device time."""
        return category_totals(self.operators, self.device_time_ns, self.cpu_time_ns, self._without_operator)

    @cached_property
    def leading_kernel(self) -> LeadingKernel | None:
        """The program's own kernel that takes more device time than any other operator; None without one."""
        return leading_kernel(self.session, self._without_operator, self.operators)

    @cached_property
    def engine(self) -> str | None:
        """The recorded serving engine; None without one."""
        return serving_engine(self.session)

    @cached_property
    def engine_steps(self) -> tuple[RangeTotal, ...]:
        """Steps of a serving engine by phase; empty without any."""
        return range_totals(self.session, None, self.device_time_ns)

    @cached_property
    def ranges(self) -> tuple[RangeTotal, ...]:
        """The same, or the groups of the `by` expression; empty without any."""
        by = self.ranges_by
        return self.engine_steps if by is None else range_totals(self.session, by, self.device_time_ns)

    @cached_property
    def annotation_kinds(self) -> tuple[str, ...]:
        """Names of annotations with … for numbers and hashes, the most frequent first."""
        return tuple(kind for (kind,) in self.session.query(sql(__package__, "summary:annotation_kinds")))

    @cached_property
    def graphs(self) -> tuple[GraphTotal, ...]:
        """CUDA graphs whose replays were recorded, most device time first."""
        return tuple(
            msgspec.convert(self.session.records(sql(__package__, "summary:graphs")), list[GraphTotal])
        )

    @cached_property
    def counters(self) -> list[dict[str, Any]]:
        """Hardware counters by kernel, where the recording sampled some; rows of `summary:counters`."""
        has_any = self.session.holds("counters")
        return self.session.records(sql(__package__, "summary:counters")) if has_any else []

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """Findings about the data, and about disagreements of ranks."""
        return (*self.collectives.findings, *self.session.findings())

    @property
    def defects(self) -> tuple[Finding, ...]:
        """Parts of the recording that cannot be trusted; see `ingest.kineto_file`."""
        return tuple(one for one in self.findings if one.code.startswith("recording."))

    @property
    def is_usable(self) -> bool:
        """Whether conclusions about the device (bound, idle time, gains) can be drawn from the recording."""
        return not any(one.evidence["withholds"] for one in self.defects)

    @cached_property
    def is_cuda_traced(self) -> bool:
        """Whether CUDA was traced, used or not: nsys may record only ranges."""
        return not any(one.code == "nsys.no_cuda" for one in self.findings)

    @property
    def is_cold(self) -> bool:
        """Whether much of what was recorded comes once, or all is a start: no word of a warm program."""
        is_once = not self.is_whole_process and any(one.is_cold for one in self.timeline.start_ups)
        limits = (one.evidence for one in self.findings if one.code == "capture.size_limit")
        return is_once or any(not one["step_count"] for one in limits)

    @cached_property
    def lead_in_ns(self) -> int:
        """The device's idle time before its first work, in a recording without steps."""
        if self.steps or self.is_whole_process:
            return 0
        begun_ns = self.session.scalar("SELECT min(start_ns) FROM device_activities") or 0
        gaps = (gap for one in self.timeline.in_use for gap in one.longest_gaps)
        return max((gap.duration_ns for gap in gaps if gap.start_ns < begun_ns), default=0)

    @cached_property
    def is_of_torch(self) -> bool:
        """Whether the program uses PyTorch; advice for others uses CUDA's terms."""
        return is_of_torch(self.session)

    @cached_property
    def accuracy(self) -> Accuracy | None:
        """Share of device time that each kind of statement covers."""
        _ = self._provenance  # annotates the Session
        return measure_accuracy(
            self.session, device_time_ns=self.device_time_ns, attributed_ns=self.attributed_ns
        )

    @cached_property
    def torch_version(self) -> str | None:
        """The recording release; None if no table covers it."""
        return self._provenance.torch_version

    @cached_property
    def torch_release(self) -> str | None:
        """The recording release: as the traces say, otherwise by its kernels; None if unsure.

        Release tables hold CUDA kernels, so a ROCm build is not recognized by its kernels.
        """
        named = [row[0] for row in self.session.query("SELECT DISTINCT torch_version FROM traces")]
        if len(named) == 1 and named[0]:
            return str(named[0])
        is_rocm = self.session.scalar(
            "SELECT count(*) FROM traces WHERE properties::VARCHAR LIKE '%hip_runtime_version%'"
        )
        is_sure = self.torch_version_grade in {Grade.EXACT, Grade.RELEASE_INDEX}
        return self.torch_version if is_sure and not is_rocm else None

    @cached_property
    def torch_version_grade(self) -> Grade | None:
        """Grade of `torch_version`."""
        return self._provenance.torch_version_grade

    @cached_property
    def torch_version_reason(self) -> str | None:
        """Reason for that grade."""
        return self._provenance.torch_version_reason

    @cached_property
    def accounts(self) -> Mapping[tuple[str | None, str], tuple[ExplainedLaunch, ...]]:
        """Launch explanations by operator and kernel; operator None means any."""
        used = (operator for operator in self.operators if operator.self_device_ns > 0)
        return launch_explanations(self.session, used, self.kernels, torch_version=self.torch_version)

    @cached_property
    def efficiency(self) -> Efficiency:
        """Distance of calls from the device's limits."""
        return measure_efficiency(self.session, self._limits[0])

    @cached_property
    def limits_reason(self) -> str | None:
        """Why the device has no limits, or which measurements were skipped."""
        return self._limits[1]

    @cached_property
    def quality(self) -> tuple[LaunchQuality, ...]:
        """How well each launch configuration fills the device."""
        return launch_quality(self.session, self._launches)

    @cached_property
    def improvements(self) -> Mapping[str, OperatorImprovement]:
        """Possible improvements of the most expensive kernels, by operator."""
        from opscope.analysis.counters import find_improvements  # noqa: PLC0415 - not for a screen

        return find_improvements(self.operators, self.quality, self.efficiency)

    @cached_property
    def timeline(self) -> Timeline:
        """What devices did at every nanosecond, and why they idled."""
        if self.session.examined:
            return join_timelines([*self.session.examined.values()], self.collectives.skews)
        return measure_timeline(self.session, self._records, self.collectives.skews)

    @property
    def counted_steps(self) -> tuple[StepTotal, ...]:
        """The steps behind figures per step: start-up steps are left out."""
        left_out = self.timeline.left_out
        return tuple(step for step in self.steps if (step.trace_id, step.step) not in left_out)

    @cached_property
    def operators_per_step(self) -> dict[str, tuple[float, float]]:
        """Calls of each operator in one of these steps on average, and device time of its own launches."""
        steps = self.counted_steps
        rows = self.session.query(
            "SELECT name, count(*), sum(self_device_ns) FROM operators SEMI JOIN (SELECT unnest(?::INT[])"
            " AS trace_id, unnest(?::INT[]) AS step) USING (trace_id, step) GROUP BY name",
            [[one.trace_id for one in steps], [one.step for one in steps]],
        )
        return {name: (calls / len(steps), float(total_ns) / len(steps)) for name, calls, total_ns in rows}

    @cached_property
    def loader_ns(self) -> int:
        """Time in which the program's own process waited for its DataLoaders."""
        query = "SELECT coalesce(sum(duration_ns), 0) FROM annotations WHERE side = 'host' AND name LIKE $1"
        return int(self.session.scalar(query, ["enumerate(DataLoader)#%"]))

    @cached_property
    def counted_timeline(self) -> Timeline:
        """The timeline of these steps alone."""
        if not self.timeline.left_out:
            return self.timeline
        records = self._records.within(
            {trace_id: window.counted for trace_id, window in self._records.windows.items()}
        )
        timeline = measure_timeline(self.session, records, read_collectives(self.session, records).skews)
        return msgspec.structs.replace(timeline, start_ups=self.timeline.start_ups)

    @cached_property
    def measured_steps(self) -> tuple[MeasuredStep, ...]:
        """A step with and without the profiler, by trace."""
        return measured_steps(self.session, self._records.windows, self.timeline.host)

    @property
    def measured_step(self) -> MeasuredStep:
        """That of the slowest trace as recorded; unknown if no trace has steps."""
        return max(self.measured_steps, key=lambda one: one.recorded_ns or 0.0, default=MeasuredStep())

    @cached_property
    def program(self) -> ProgramTotals:
        """Device time by module and line of the program."""
        return program_totals(self.session)

    @cached_property
    def host_lines(self) -> tuple[HostLine, ...]:
        """Lines of the program that the host's time goes to; empty unless that decides how long a step takes.

        And without `advice.assess`.
        """
        return ()

    @cached_property
    def advice(self) -> tuple[Finding, ...] | None:
        """What to change, largest gain first; None unless `advice.assess` made the Summary."""
        return None

    @cached_property
    def best_set(self) -> BestSet | None:
        """The changes worth making together; None without any, or without `advice.assess`."""
        return None

    @cached_property
    def collectives(self) -> JobCollectives:
        """Collectives of the ranks: waits, transfers, last ranks, mismatches."""
        return read_collectives(self.session, self._records)

    @cached_property
    def straggler(self) -> Straggler | None:
        """The rank that the others wait for; None without one, or if a rank of the job is missing."""
        return find_straggler(
            self.session,
            self.counted_timeline.skews,
            self.collectives.rank_steps,
            [(step.trace_id, step.duration_ns) for step in self.counted_steps],
            self.timeline.left_out,
        )

    @cached_property
    def typical_step(self) -> StepExecution | None:
        """The simulated step of the middle rank; None if nothing was launched, or others hold it up."""
        step = self.step_model
        return None if step is None or step.waits else step.execution

    @property
    def is_whole_process(self) -> bool:
        """Whether figures are of a process from the device's first work to its last: no steps, no loop."""
        return {one.window for one in self.timeline.partitions} == {WindowKind.WORK}

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
        """Busy time over the window, summed over devices that did anything in it; None without a device."""
        in_use = [device for device in self.devices if device.busy_ns] or self.devices
        span_ns = sum(device.span_ns for device in in_use)
        return sum(device.busy_ns for device in in_use) / span_ns if span_ns else None

    @cached_property
    def step_model(self) -> StepModel | None:
        """The step of the middle rank, by how long it took, the slower of two; to be simulated.

        None where nothing was launched. Until the Summary is complete.
        """
        # First, too: what the timeline takes beside the graph of a long trace is too much.
        hosts = sorted(self.timeline.host, key=attrgetter("step_ns"))
        half = len(hosts) // 2
        for host in (*hosts[half:], *reversed(hosts[:half])) if self.is_usable else ():
            records = self._records.of(host.trace_id)
            if records.is_large:
                share = min(1.0, _MOST_SIMULATED_CALLS / max(1, len(records.traces[0].calls)))
                records = records.within({key: one.middle(share) for key, one in records.windows.items()})
            if model := step_model(self.session, records):
                model.waiting_ns = self._waiting_ns(host.trace_id)
                return model
        return None

    def _waiting_ns(self, trace_id: int) -> float:
        """What a rank waits for others in the collectives of a mean step."""
        left_out, steps = self.timeline.left_out, sum(one.trace_id == trace_id for one in self.counted_steps)
        waiting_ns = sum(
            one.waiting_ns
            for one in self.collectives.rank_steps
            if one.trace_id == trace_id and (trace_id, one.step) not in left_out
        )
        return waiting_ns / max(1, steps)

    @cached_property
    def _records(self) -> SessionRecords:
        return read_session(self.session)

    @cached_property
    def _provenance(self) -> Provenance:
        return read_provenance(self.session)

    @cached_property
    def _launches(self) -> list[dict[str, Any]]:
        return self.session.records(sql(__package__, "launches"))

    @cached_property
    def _without_operator(self) -> tuple[KernelTotal, ...]:
        return kernel_totals(
            [row for row in self._launches if row["operator"] is None], self._provenance, self.device_time_ns
        )

    @cached_property
    def _limits(self) -> tuple[DeviceLimits | None, str | None]:
        return limits_of_session(self.session, *self._measured)


_UNTIL_COMPLETE = (
    "_session", "_launches", "_without_operator", "_provenance", "_limits", "_records", "step_model",
)  # fmt: skip
# What is told, in the order in which it is worth computing it.
_SECTIONS = (
    *Summary.__annotations__,
    *(
        name
        for name, value in vars(Summary).items()
        if isinstance(value, cached_property) and name not in _UNTIL_COMPLETE
    ),
)
