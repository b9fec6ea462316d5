"""One Session as a side of a comparison: what each operator, kernel and reason spent, in all and by step.

Sums are exact integers. What lies outside steps is left out of every `Use` once steps are the basis, and
counted by itself, so that all of a side's time is accounted for.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from opscope.analysis.measured_step import unrecorded_samples
from opscope.analysis.provenance import KernelFacts, Provenance, read_provenance
from opscope.analysis.timeline.device_windows import read_windows
from opscope.model.comparison import Basis, Metric, SessionSide, Use
from opscope.model.evidence import Grade
from opscope.model.finding import Finding
from opscope.model.queries import sql
from opscope.model.session import Session
from opscope.provenance.categories import OTHER, category_of

Variant = tuple[str | None, str | None]  # overload and input shapes
KernelKey = tuple[str, str]  # name and kind

_VERSIONS_SQL = "SELECT torch_version, cuda_version, driver_version FROM traces"
_CPUS_SQL = """
SELECT value::JSON->>'$.environment.cpu' FROM metadata WHERE key LIKE 'sidecar:%'"""
_DEVICES_SQL = """
SELECT coalesce(name, 'unnamed device'), count(*) FROM devices WHERE activity_count > 0
GROUP BY ALL ORDER BY 1"""
_SOURCES_SQL = "SELECT source FROM traces ORDER BY trace_id"


@dataclass(frozen=True)
class ComparedRecording:
    """What is read of one Session, before anyone knows what it is compared with."""

    sources: tuple[str, ...]
    environment: Mapping[str, str]
    calls: list[dict[str, Any]]  # rows of `compared_operators.sql`
    launches: list[dict[str, Any]]  # rows of `compared_launches.sql`
    # Duration of each step in ns, by trace and number, without those that begin the program
    steps: Mapping[tuple[int, int], int]
    unrecorded_ns: tuple[float, ...]  # times of steps without the profiler; empty if unknown
    has_stacks: bool  # whether Python frames were recorded, which slows the host down
    provenance: Provenance
    findings: tuple[Finding, ...]

    @property
    def has_device(self) -> bool:
        return bool(self.launches)


def read_recording(session: Session) -> ComparedRecording:
    provenance = read_provenance(session)
    durations: Counter[tuple[int, int]] = Counter()
    for trace_id, window in read_windows(session).items():
        for step in window.counted.steps:
            durations[trace_id, step.number] += step.end_ns - step.start_ns
    return ComparedRecording(
        sources=tuple(source for (source,) in session.query(_SOURCES_SQL)),
        environment=_environment(session, provenance),
        calls=session.records(sql(__package__, "compared_operators")),
        launches=session.records(sql(__package__, "compared_launches")),
        steps=dict(sorted(durations.items())),
        unrecorded_ns=unrecorded_samples(session),
        has_stacks=bool(session.scalar("SELECT count(*) FROM (SELECT 1 FROM frames LIMIT 1)")),
        provenance=provenance,
        findings=tuple(session.findings()),
    )


def _environment(session: Session, provenance: Provenance) -> dict[str, str]:
    """What a Session tells of where it was recorded."""

    def joined(values: Iterable[str | None]) -> str | None:
        return ", ".join(sorted({value for value in values if value})) or None

    # The release the kernels were recognized by, unless it is only the one that fits best.
    is_certain = provenance.torch_version_grade in {Grade.EXACT, Grade.RELEASE_INDEX}
    recognized = provenance.torch_version if is_certain else None
    rows = session.query(_VERSIONS_SQL)
    torch, cuda, driver = (joined(row[column] for row in rows) for column in range(3))
    devices = [name if count == 1 else f"{count} × {name}" for name, count in session.query(_DEVICES_SQL)]
    facts = {
        "GPU": ", ".join(devices),
        "CPU": None if devices else joined(cpu for (cpu,) in session.query(_CPUS_SQL)),
        "PyTorch": torch or recognized,
        "CUDA": cuda,
        "CUDA driver": driver,
    }
    return {label: value for label, value in facts.items() if value}


@dataclass
class Sums:
    """A `Use` in the making; a sample is a step, None outside of steps."""

    calls: int = 0
    launches: int = 0
    time_ns: int = 0
    step_ns: Counter[int] = field(default_factory=Counter)

    def add(self, sample: int | None, *, calls: int = 0, launches: int = 0, time_ns: int = 0) -> None:
        self.calls += calls
        self.launches += launches
        self.time_ns += time_ns
        if sample is not None:
            self.step_ns[sample] += time_ns


@dataclass
class OperatorUse:
    """Sums of one operator name: in all, by overload and shapes, and by kernel."""

    total: Sums = field(default_factory=Sums)
    variants: defaultdict[Variant, Sums] = field(default_factory=lambda: defaultdict(Sums))
    kernels: defaultdict[KernelKey, Sums] = field(default_factory=lambda: defaultdict(Sums))


class ComparedSession:
    """One side, counted by a metric over a basis.

    Args:
        recording: What was read.
        metric: Which time.
        basis: Over steps or over the whole.

    Attributes:
        ranks_per_step: Ranks that a sample adds up.
        total: Everything in scope.
    """

    def __init__(self, recording: ComparedRecording, metric: Metric, basis: Basis) -> None:
        self.recording = recording
        self._metric = metric
        self._basis = basis
        self._samples, self.ranks_per_step = _samples(recording.steps) if basis is Basis.STEP else ({}, 1)
        self.operators: defaultdict[str, OperatorUse] = defaultdict(OperatorUse)
        self.unattributed: defaultdict[str, OperatorUse] = defaultdict(OperatorUse)
        self.total = Sums()
        self._outside = Sums()
        for row in (*recording.calls, *recording.launches):
            self._add(row)

    @property
    def sample_count(self) -> int:
        """Steps that serve as samples; 0 on the basis of totals."""
        return len(set(self._samples.values()))

    def use(self, sums: Sums | None) -> Use | None:
        """Sums as a value; None of what this side lacks."""
        if sums is None:
            return None
        by_step = tuple(sums.step_ns[sample] for sample in range(self.sample_count))
        return Use(sums.calls, sums.launches, sums.time_ns, by_step)

    def wall(self) -> Sums:
        wall = Sums()
        for key, duration_ns in self.recording.steps.items():
            wall.add(self._samples[key], calls=1, time_ns=duration_ns)
        return wall

    def side(self) -> SessionSide:
        recording = self.recording
        return SessionSide(
            sources=recording.sources,
            ranks=len(recording.sources),
            steps=self.sample_count,
            ranks_per_step=self.ranks_per_step,
            has_device=recording.has_device,
            whole_ns=self.total.time_ns + self._outside.time_ns,
            outside_steps_ns=self._outside.time_ns,
            outside_steps_launches=self._outside.launches,
            launches=self.total.launches,
            environment=recording.environment,
        )

    def facts(self, kernel: str) -> KernelFacts:
        return self.recording.provenance.kernels.get(kernel) or KernelFacts(kernel, OTHER)

    def category(self, operator: str | None, kernel: str | None = None) -> str:
        """Of an operator; of a kernel, where the operator is one no table knows."""
        own = OTHER
        if operator is not None:
            functions = self.recording.provenance.functions.get(operator, ())
            own = functions[0].category if functions else category_of(operator)
        if own != OTHER or kernel is None:
            return own
        return self.facts(kernel).category

    def _add(self, row: Mapping[str, Any]) -> None:
        is_call = "kernel" not in row
        counted = {"calls": row["calls"]} if is_call else {}
        if not is_call:
            counted["launches"] = row["launches"] if row["kind"] == "kernel" else 0
        if is_call == (self._metric is Metric.CPU):
            counted["time_ns"] = row["time_ns"]
        step = row["trace_id"], row["step"]
        sample = self._samples.get(step)
        if self._basis is Basis.STEP and step not in self._samples:
            self._outside.add(None, **counted)
            return
        is_owned = row["operator"] is not None
        owner = self.operators[row["operator"]] if is_owned else self.unattributed[row["attribution"]]
        for sums in (self.total, owner.total, owner.variants[row["overload"], row["input_shapes"]]):
            sums.add(sample, **counted)
        if not is_call:
            owner.kernels[row["kernel"], row["kind"]].add(sample, calls=row["launches"], **counted)


def _samples(steps: Mapping[tuple[int, int], int]) -> tuple[dict[tuple[int, int], int], int]:
    """Sample of each step of each trace, and the ranks in a sample.

    Ranks of one step wait for each other, so one sample is a step of all ranks, where all have the same
    steps.
    """
    traces = {trace_id for trace_id, _ in steps}
    numbers = sorted({step for _, step in steps})
    if len(steps) == len(traces) * len(numbers):
        return {key: numbers.index(key[1]) for key in steps}, len(traces)
    return {key: index for index, key in enumerate(sorted(steps))}, 1
