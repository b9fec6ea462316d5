"""`compare_sessions`: two recordings, operator by operator and kernel by kernel.

Every nanosecond of either side is in exactly one row or in what lies outside steps, so the difference of the
totals is the sum of the rows' differences.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from statistics import median
from typing import Any, TypeVar

from opscope.analysis.comparison_rules import (
    MeanResampler,
    MedianResampler,
    Timing,
    environment_finding,
    presence_of,
    time_change,
)
from opscope.analysis.measured_step import unrecorded_samples
from opscope.analysis.provenance import KernelFacts, Provenance, kernel_title, read_provenance
from opscope.analysis.timeline.windows import read_windows
from opscope.benchmarking.statistics import FEWEST_ROUNDS
from opscope.model.comparison import (
    Basis,
    CategoryChange,
    ComparisonOptions,
    KernelChange,
    Metric,
    OperatorChange,
    Presence,
    SessionComparison,
    SessionSide,
    TimeChange,
    UnattributedChange,
    Use,
    VariantChange,
)
from opscope.model.evidence import Grade
from opscope.model.finding import Finding, Severity, most_severe_first
from opscope.model.queries import sql
from opscope.model.session import Session
from opscope.provenance.categories import OTHER, category_of
from opscope.units import format_duration, format_fraction

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


_COUNTER = re.compile(r"(?:_\d+)+$")
# Fields of a name that say how a kernel of the same family computes, with their words.
_TOLD = {
    "operand_type": "operands", "tile": "tile", "stages": "stages", "cluster": "cluster", "layout": "layout",
    "vector_width": "vector width", "variant": "form", "architecture": "architecture", "split_k": "split K",
    "tensor_core": "tensor cores", "epilogue": "epilogue", "mma_shape": "matrix instruction",
    "head_dimension": "head dimension", "library": "library", "copy_direction": "direction",
    "host_memory": "host memory",
}  # fmt: skip
_MOST_TOLD = 4

# Below this share of a side's time other input shapes are a detail.
_RELEVANT_FRACTION = 0.05
_NO_DEVICE_CODE = "trace.no_device_activity"  # as ingest writes it

Row = TypeVar("Row", OperatorChange, KernelChange, VariantChange, UnattributedChange)


def compare_sessions(
    reference: Session, candidate: Session, options: ComparisonOptions | None = None
) -> SessionComparison:
    """The candidate recording beside the reference.

    Device time is compared where both sides have any, else CPU time; per step where both recorded steps, else
    in total. Operators match by name, their calls by overload and input shapes, kernels by name or by
    what their names decode to.
    """
    recordings = (read_recording(reference), read_recording(candidate))
    metric = Metric.DEVICE if all(recording.has_device for recording in recordings) else Metric.CPU
    basis = Basis.STEP if all(recording.steps for recording in recordings) else Basis.TOTAL
    first, second = (ComparedSession(recording, metric, basis) for recording in recordings)
    return _Matcher(first, second, options or ComparisonOptions()).comparison(metric, basis)


class _Matcher:
    """Pairs the things of two sides and judges their times."""

    def __init__(
        self, reference: ComparedSession, candidate: ComparedSession, options: ComparisonOptions
    ) -> None:
        self.reference = reference
        self.candidate = candidate
        self._options = options
        self._resampler = MeanResampler(options.seed)

    def comparison(self, metric: Metric, basis: Basis) -> SessionComparison:
        reference, candidate = self.reference, self.candidate
        operators = _ranked(map(self._operator, sorted({*reference.operators, *candidate.operators})))
        reasons = sorted({*reference.unattributed, *candidate.unattributed})
        has_steps = basis is Basis.STEP
        return SessionComparison(
            reference=reference.side(),
            candidate=candidate.side(),
            metric=metric,
            basis=basis,
            options=self._options,
            total=self._change(reference.total, candidate.total)["time"],
            wall=self._change(reference.wall(), candidate.wall())["time"] if has_steps else None,
            unrecorded=self._unrecorded(),
            operators=operators,
            unattributed=_ranked(map(self._unattributed, reasons)),
            categories=self._categories(operators, metric),
            findings=comparison_findings(reference, candidate, metric, basis, operators),
        )

    def _unrecorded(self) -> TimeChange | None:
        sides = (self.reference.recording.unrecorded_ns, self.candidate.recording.unrecorded_ns)
        if not all(sides):
            return None
        first, second = (Timing(median(times_ns), times_ns) for times_ns in sides)
        resampler = MedianResampler(self._options.seed)
        return time_change(first, second, resampler, self._options.threshold)

    def _change(self, reference: Sums | None, candidate: Sums | None) -> dict[str, Any]:
        """The fields of a `Change`: both sides per step (in all, without steps), and the verdict."""
        first, second = self.reference.use(reference), self.candidate.use(candidate)
        timings = _timing(first, self.reference), _timing(second, self.candidate)
        time = time_change(*timings, self._resampler, self._options.threshold)
        return {
            "presence": presence_of(first, second), "reference": first, "candidate": second, "time": time
        }  # fmt: skip

    def _operator(self, name: str) -> OperatorChange:
        before, after = self.reference.operators.get(name), self.candidate.operators.get(name)
        kernels = self._kernels(name, before, after)
        old, new = before.variants if before else {}, after.variants if after else {}
        return OperatorChange(
            name=name,
            category=self._operator_category(name, kernels),
            variants=_ranked(
                VariantChange(
                    overload=key[0], input_shapes=key[1], **self._change(old.get(key), new.get(key))
                )
                for key in dict.fromkeys((*old, *new))
            ),
            kernels=kernels,
            **self._change(before.total if before else None, after.total if after else None),
        )

    def _unattributed(self, reason: str) -> UnattributedChange:
        before, after = self.reference.unattributed.get(reason), self.candidate.unattributed.get(reason)
        return UnattributedChange(
            reason=reason,
            kernels=self._kernels(None, before, after),
            **self._change(before.total if before else None, after.total if after else None),
        )

    def _kernels(
        self, operator: str | None, reference: OperatorUse | None, candidate: OperatorUse | None
    ) -> tuple[KernelChange, ...]:
        before = reference.kernels if reference else {}
        after = candidate.kernels if candidate else {}
        pairs: list[tuple[KernelKey | None, KernelKey | None]] = [
            (key, key) for key in before if key in after
        ]
        left = {key: sums.time_ns for key, sums in before.items() if key not in after}
        right = {key: sums.time_ns for key, sums in after.items() if key not in before}
        for kind in sorted({key[1] for key in left}):
            for old, new in pair_kernels(_of_kind(left, kind), _of_kind(right, kind), self._facts):
                pairs.append(((old, kind), (new, kind)))
                del left[old, kind], right[new, kind]
        pairs += [(key, None) for key in left]
        pairs += [(None, key) for key in right]
        return _ranked(
            self._kernel(operator, old, new, self._change(old and before.get(old), new and after.get(new)))
            for old, new in pairs
        )

    def _kernel(
        self, operator: str | None, old: KernelKey | None, new: KernelKey | None, facts: dict[str, Any]
    ) -> KernelChange:
        change = None
        if old and new and old != new:
            facts["presence"] = Presence.REPLACED
            change = describe_replacement(self._facts(old[0]), self._facts(new[0]))
        before, after = old and old[0], new and new[0]
        side, name = (self.reference, before) if before else (self.candidate, after)
        return KernelChange(
            operator=operator,
            kind=(old or new or ("", ""))[1],
            category=side.category(operator, name),
            reference_name=before,
            candidate_name=after,
            reference_title=None if before is None else kernel_title(self.reference.facts(before)),
            candidate_title=None if after is None else kernel_title(self.candidate.facts(after)),
            change=change,
            **facts,
        )

    def _facts(self, kernel: str) -> KernelFacts:
        """By whichever side knows the name."""
        facts = self.reference.facts(kernel)
        return facts if facts.function or facts.family else self.candidate.facts(kernel)

    def _operator_category(self, name: str, kernels: Iterable[KernelChange]) -> str:
        """Its own; of an operator no table knows, that of its longest kernel."""
        own = self.reference.category(name)
        if own == OTHER:
            own = self.candidate.category(name)
        if own != OTHER:
            return own
        times_ns: dict[str, float] = defaultdict(float)
        for kernel in kernels:
            times_ns[kernel.category] += (kernel.time.reference_ns or 0) + (kernel.time.candidate_ns or 0)
        return max(times_ns, key=lambda category: (times_ns[category], category), default=OTHER)

    def _categories(self, operators: Iterable[OperatorChange], metric: Metric) -> tuple[CategoryChange, ...]:
        before: dict[str, float] = defaultdict(float)
        after: dict[str, float] = defaultdict(float)
        for one in operators:
            if metric is Metric.CPU:
                before[self.reference.category(one.name)] += one.time.reference_ns or 0
                after[self.candidate.category(one.name)] += one.time.candidate_ns or 0
                continue
            for kernel in one.kernels:
                if old := kernel.reference_name:
                    before[self.reference.category(one.name, old)] += kernel.time.reference_ns or 0
                if new := kernel.candidate_name:
                    after[self.candidate.category(one.name, new)] += kernel.time.candidate_ns or 0
        rows = [CategoryChange(name, before[name], after[name]) for name in sorted({*before, *after})]
        return tuple(sorted(rows, key=lambda row: (-abs(row.difference_ns), row.category)))


def _timing(use: Use | None, side: ComparedSession) -> Timing | None:
    if use is None:
        return None
    ranks, samples = side.ranks_per_step, side.sample_count
    by_step = tuple(step_ns / ranks for step_ns in use.step_ns)
    return Timing(use.time_ns / (ranks * samples or 1), by_step)


def _of_kind(times_ns: Mapping[KernelKey, int], kind: str) -> dict[str, int]:
    return {name: time_ns for (name, of_kind), time_ns in times_ns.items() if of_kind == kind}


def _ranked(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Rows by the size of their difference; equal ones by time, then in their order."""

    def key(row: Row) -> tuple[float, float]:
        time = row.time
        return -abs(time.difference_ns), -max(time.reference_ns or 0, time.candidate_ns or 0)

    return tuple(sorted(rows, key=key))


def pair_kernels(
    removed: Mapping[str, int], added: Mapping[str, int], facts: Callable[[str], KernelFacts]
) -> list[tuple[str, str]]:
    """Pairs (removed, added) of one operator's kernels of one kind; each kernel is in one pair at most.

    Both sides are times of kernels by name.
    """
    pairs: list[tuple[str, str]] = []
    left, right = dict(removed), dict(added)
    for sign in (
        _same_code,
        _same_fusion,
        attrgetter("function"),
        lambda facts: facts.family and (facts.family, facts.fields.get("direction")),
    ):
        others = _by_sign(sign, right, facts)
        for key, names in _by_sign(sign, left, facts).items():
            for old, new in zip(names, others.get(key, ()), strict=False):
                pairs.append((old, new))
                del left[old], right[new]
    return pairs


def _by_sign(
    sign: Callable[[KernelFacts], Hashable], times_ns: Mapping[str, int], facts: Callable[[str], KernelFacts]
) -> dict[Hashable, list[str]]:
    """Names of one sign, the longest in time first; without those that have none."""
    groups: dict[Hashable, list[str]] = defaultdict(list)
    for name in sorted(times_ns, key=lambda name: (-times_ns[name], name)):
        key = sign(facts(name))
        if key is not None:
            groups[key].append(name)
    return groups


def _same_code(facts: KernelFacts) -> Hashable:
    return facts.function and (facts.function, facts.fields.get("functor"))


def _same_fusion(facts: KernelFacts) -> Hashable:
    if not facts.fields.get("fused_operators"):
        return None
    return facts.fields.get("variant"), _COUNTER.sub("", facts.name)


def describe_replacement(old: KernelFacts, new: KernelFacts) -> str:
    """What the names say changed: `operands f32 → bf16, tile 128x64x8 → 192x128x64`."""
    told = [
        f"{words} {_word(old.fields.get(name))} → {_word(new.fields.get(name))}"
        for name, words in _TOLD.items()
        if old.fields.get(name) != new.fields.get(name)
    ]
    if told:
        return ", ".join(told[:_MOST_TOLD])
    if _same_code(old) is not None and _same_code(old) == _same_code(new):
        return _arguments(old, new)
    if _same_fusion(old) is not None and _same_fusion(old) == _same_fusion(new):
        return "renumbered"
    return f"another kernel of the family {new.family}" if new.family else "another kernel"


def _arguments(old: KernelFacts, new: KernelFacts) -> str:
    pairs = zip(old.template_arguments, new.template_arguments, strict=False)
    changed = [(name, before, after) for (name, before), (_, after) in pairs if before != after]
    if not changed or any(len(before) + len(after) > 60 for _, before, after in changed):
        return "other template arguments"
    return ", ".join(
        f"{name or 'argument'} {before} → {after}" for name, before, after in changed[:_MOST_TOLD]
    )


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(map(str, value))
    return "–" if value is None else str(value)


_SIDES = ("reference", "candidate")


def comparison_findings(
    reference: ComparedSession,
    candidate: ComparedSession,
    metric: Metric,
    basis: Basis,
    operators: Sequence[OperatorChange],
) -> tuple[Finding, ...]:
    sides = (reference, candidate)
    recordings = (reference.recording, candidate.recording)
    found = [
        *environment_finding(recordings[0].environment, recordings[1].environment),
        *_recording_findings(recordings, metric),
        *_input_finding(operators),
        *(_step_findings(sides) if basis is Basis.STEP else _totals_findings(sides)),
    ]
    if recordings[0].has_stacks != recordings[1].has_stacks:
        message = (
            f"Only the {_SIDES[recordings[1].has_stacks]} was recorded with Python stacks, which slows the "
            "host down: CPU times and the duration of steps do not compare."
        )
        found.append(Finding("compare.recording_differs", Severity.WARNING, message))
    # What makes one side's own data doubtful. Unattributed time has rows of its own.
    said = {_NO_DEVICE_CODE} if metric is Metric.CPU else set()
    for name, recording in zip(_SIDES, recordings, strict=True):
        for one in recording.findings:
            is_said = one.code in said or one.code.startswith("attribution.")
            if one.severity is not Severity.INFO and not is_said:
                message = f"{name.capitalize()}: {one.message}"
                found.append(Finding(one.code, one.severity, message, one.suggestion, evidence=one.evidence))
    return most_severe_first(found)


def _recording_findings(recordings: Sequence[ComparedRecording], metric: Metric) -> Iterator[Finding]:
    """What the two hold that does not compare."""
    lacking = [name for name, one in zip(_SIDES, recordings, strict=True) if not one.has_device]
    if metric is Metric.CPU and len(lacking) == 2:
        yield Finding(
            "compare.cpu_time",
            Severity.INFO,
            "Neither recording holds device activity: operators are compared by their own CPU time.",
        )
    elif metric is Metric.CPU:
        yield Finding(
            "compare.device_missing",
            Severity.WARNING,
            f"The {lacking[0]} holds no device activity: operators are compared by their own CPU time, which "
            "for the other side is mostly the time of launching work.",
            "Record both with CUDA activities",
        )
    ranks = [len(recording.sources) for recording in recordings]
    if ranks[0] != ranks[1]:
        yield Finding(
            "compare.ranks_differ",
            Severity.WARNING,
            f"The reference holds {ranks[0]} traces, the candidate {ranks[1]}; figures per step are the mean "
            "of a side's ranks, totals are their sum.",
            evidence={"reference_traces": ranks[0], "candidate_traces": ranks[1]},
        )


def _input_finding(operators: Iterable[OperatorChange]) -> Iterator[Finding]:
    """That operators of both sides were called with shapes of which none is in common."""

    def has_other_shapes(operator: OperatorChange) -> bool:
        known = [one for one in operator.variants if one.input_shapes is not None]
        before = {one.input_shapes for one in known if one.reference is not None}
        after = {one.input_shapes for one in known if one.candidate is not None}
        return bool(before and after and before.isdisjoint(after))

    both = [operator for operator in operators if operator.presence is Presence.BOTH]
    whole_ns = sum(operator.time.reference_ns or 0 for operator in both)
    others = [operator for operator in both if has_other_shapes(operator)]
    others_ns = sum(operator.time.reference_ns or 0 for operator in others)
    if not whole_ns or others_ns < _RELEVANT_FRACTION * whole_ns:
        return
    names = ", ".join(operator.name for operator in others[:3])
    yield Finding(
        "compare.inputs_differ",
        Severity.WARNING,
        f"{len(others)} of {len(both)} common operators ({names}{', …' if len(others) > 3 else ''}), with "
        f"{format_fraction(others_ns / whole_ns)} of their time in the reference, were called with other "
        "input shapes: the work may not be the same.",
        evidence={"operators": len(others), "reference_ns": others_ns},
    )


def _step_findings(sides: Sequence[ComparedSession]) -> Iterator[Finding]:
    steps = [side.sample_count for side in sides]
    if steps[0] != steps[1]:
        yield Finding(
            "compare.steps_differ",
            Severity.INFO,
            f"The reference holds {steps[0]} steps, the candidate {steps[1]}: all figures are per step.",
            evidence={"reference_steps": steps[0], "candidate_steps": steps[1]},
        )
    count = min(steps)
    if count < FEWEST_ROUNDS:
        few = "One step is not enough" if count == 1 else f"{count} steps of a side are too few"
        yield from _no_interval(few, sides)
    outside = [side.side().outside_steps_ns for side in sides]
    if any(outside):
        yield Finding(
            "compare.outside_steps",
            Severity.INFO,
            f"Left out, because it belongs to no step: {format_duration(outside[0])} of the reference, "
            f"{format_duration(outside[1])} of the candidate.",
            evidence={"reference_ns": outside[0], "candidate_ns": outside[1]},
        )


def _totals_findings(sides: Sequence[ComparedSession]) -> Iterator[Finding]:
    lacking = [name for name, side in zip(_SIDES, sides, strict=True) if not side.recording.steps]
    if len(lacking) == 1:
        yield Finding(
            "compare.steps_missing",
            Severity.WARNING,
            f"The {lacking[0]} recorded no steps, so whole recordings are compared, however much each holds.",
            "Record both with a schedule of steps",
        )
    yield from _no_interval("One recording each, without steps, is not enough", sides)


def _no_interval(what: str, sides: Sequence[ComparedSession]) -> Iterator[Finding]:
    """What sides that differ lack for a verdict."""
    if len({(side.use(side.total), side.sample_count) for side in sides}) > 1:
        yield Finding(
            "compare.no_interval",
            Severity.INFO,
            f"{what} for an interval: times are shown, but only equal ones get a verdict. Launches and "
            "kernels are exact.",
            f"Record {FEWEST_ROUNDS} steps or more on both sides.",
        )
