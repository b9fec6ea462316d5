"""`compare_sessions`: two recordings, operator by operator and kernel by kernel.

Every nanosecond of either side is in exactly one row or in what lies outside steps, so the difference of the
totals is the sum of the rows' differences.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from statistics import median
from typing import Any, TypeVar

import numpy as np

from opscope.analysis.comparison_rules import (
    Timing,
    finding,
    presence_of,
    resampled_means,
    resampled_medians,
    time_change,
)
from opscope.analysis.measured_step import unrecorded_samples
from opscope.analysis.provenance import KernelFacts, Provenance, read_provenance
from opscope.analysis.timeline.windows import read_windows
from opscope.benchmarking.statistics import FEWEST_ROUNDS
from opscope.model.comparison import (
    Basis,
    ComparisonOptions,
    KernelChange,
    Metric,
    OperatorChange,
    Presence,
    SessionComparison,
    SessionSide,
    UnattributedChange,
    Use,
    VariantChange,
)
from opscope.model.finding import Finding, Severity, most_severe_first
from opscope.model.origin import Grade
from opscope.model.queries import grouped, sql, summed
from opscope.model.session import Session, registered
from opscope.provenance.categories import OTHER, category_of
from opscope.units import format_duration, format_fraction

Row = TypeVar("Row", OperatorChange, KernelChange, VariantChange, UnattributedChange)
Owner = tuple[str | None, str | None]  # an operator's name, or why there is none
KernelKey = tuple[str, str]  # name and kind

_CPUS_SQL = """
SELECT value::JSON->>'$.environment.cpu' FROM metadata WHERE key LIKE 'sidecar:%'"""
_DEVICES_SQL = """
SELECT coalesce(name, 'unnamed device'), count(*) FROM devices WHERE activity_count > 0
GROUP BY ALL ORDER BY 1"""


def _environment(session: Session, provenance: Provenance) -> dict[str, str]:
    def joined(values: Iterable[str | None]) -> str | None:
        return ", ".join(sorted({value for value in values if value})) or None

    # The release the kernels were recognized by, unless it is only the one that fits best.
    is_certain = provenance.torch_version_grade in {Grade.EXACT, Grade.RELEASE_INDEX}
    recognized = provenance.torch_version if is_certain else None
    rows = session.query("SELECT torch_version, cuda_version, driver_version FROM traces")
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


class _Side:
    """One recording, counted by a metric over a basis; what lies outside steps is left out and counted apart.

    `steps` are durations in ns, by trace and number. Ranks of one step wait for each other, so a sample is a
    step of all ranks, where all have the same steps.
    """

    def __init__(
        self, session: Session, steps: Mapping[tuple[int, int], int], metric: Metric, basis: Basis
    ) -> None:
        self.provenance, self.has_steps = read_provenance(session), bool(steps)
        self.unrecorded_ns = unrecorded_samples(session)
        # Python frames slow the host down.
        self.has_stacks = session.holds("frames")
        self.findings = tuple(session.findings())
        steps = steps if basis is Basis.STEP else {}
        traces, numbers = {trace_id for trace_id, _ in steps}, sorted({step for _, step in steps})
        is_shared = len(steps) == len(traces) * len(numbers)
        samples = {key: numbers.index(key[1]) if is_shared else at for at, key in enumerate(sorted(steps))}
        self.sample_count = len(set(samples.values()))
        self.ranks_per_step = max(1, len(traces)) if is_shared else 1
        wall_ns = summed((samples[key], duration_ns) for key, duration_ns in steps.items())
        self.wall = self._use(len(steps), 0, wall_ns.total(), wall_ns)
        self.total = self.outside = self._use(0, 0, 0, {})
        self.owners: dict[Owner, Use] = {}
        self.variants: dict[Owner, dict[Any, Use]] = defaultdict(dict)
        self.kernels: dict[Owner, dict[KernelKey, Use]] = defaultdict(dict)
        keys = np.array([(*key, sample) for key, sample in samples.items()], dtype=np.int64).reshape(-1, 3)
        known = {"trace_id": keys[:, 0], "step": keys[:, 1], "sample": keys[:, 2]}
        query, how = sql(__package__, "compared_uses"), [metric is Metric.CPU, basis is Basis.TOTAL]
        with registered(session, compared_samples=known):
            rows = session.query(query, how)
        for level, is_inside, operator, reason, overload, shapes, kernel, kind, *figures in rows:
            use, owner = self._use(*figures), (operator, reason)
            if level == 0 and is_inside:
                self.total = use
            elif level == 0:
                self.outside = use
            elif level == 1:
                self.owners[owner] = use
            elif level == 2:
                self.variants[owner][overload, shapes] = use
            else:
                self.kernels[owner][kernel, kind] = use
        sources = tuple(name for (name,) in session.query("SELECT source FROM traces ORDER BY trace_id"))
        self.shown = SessionSide(
            sources=sources,
            ranks=len(sources),
            steps=self.sample_count,
            ranks_per_step=self.ranks_per_step,
            has_device=session.holds("device_activities"),
            whole_ns=self.total.time_ns + self.outside.time_ns,
            outside_steps_ns=self.outside.time_ns,
            outside_steps_launches=self.outside.launches,
            launches=self.total.launches,
            environment=_environment(session, self.provenance),
        )

    def _use(self, calls: int, launches: int, time_ns: int, sample_ns: Mapping[int, int]) -> Use:
        by_step = tuple(sample_ns.get(sample, 0) for sample in range(self.sample_count))
        return Use(calls, launches, time_ns, by_step)

    def timing(self, use: Use | None) -> Timing | None:
        """A use per step of one rank."""
        if use is None:
            return None
        by_step = tuple(step_ns / self.ranks_per_step for step_ns in use.step_ns)
        return Timing(use.time_ns / (self.ranks_per_step * self.sample_count or 1), by_step)

    def facts(self, kernel: str) -> KernelFacts:
        return self.provenance.kernels.get(kernel) or KernelFacts(kernel, OTHER)

    def category(self, operator: str | None, kernel: str | None = None) -> str:
        """Of an operator; of a kernel, where the operator is one no table knows."""
        own = OTHER
        if operator is not None:
            functions = self.provenance.functions.get(operator, ())
            own = functions[0].category if functions else category_of(operator)
        return own if own != OTHER or kernel is None else self.facts(kernel).category


def compare_sessions(
    reference: Session, candidate: Session, options: ComparisonOptions | None = None
) -> SessionComparison:
    """The candidate recording beside the reference.

    Device time is compared where both sides have any, else CPU time; per step where both recorded steps, else
    in total. Operators match by name, their calls by overload and input shapes, kernels by name or by
    what their names decode to.
    """
    sessions = reference, candidate
    has_device = all(one.holds("device_activities") for one in sessions)
    metric = Metric.DEVICE if has_device else Metric.CPU
    steps = [
        summed(
            ((trace_id, step.number), step.end_ns - step.start_ns)
            for trace_id, window in read_windows(session).items()
            for step in window.counted.steps  # without those that begin the program
        )
        for session in sessions
    ]
    basis = Basis.STEP if all(steps) else Basis.TOTAL
    first, second = (_Side(one, own, metric, basis) for one, own in zip(sessions, steps, strict=True))
    return _Comparison(first, second, options or ComparisonOptions()).value(metric, basis)


class _Comparison:
    def __init__(self, reference: _Side, candidate: _Side, options: ComparisonOptions) -> None:
        self._reference, self._candidate, self._options = reference, candidate, options

    def value(self, metric: Metric, basis: Basis) -> SessionComparison:
        reference, candidate, options = self._reference, self._candidate, self._options
        owners = sorted({*reference.owners, *candidate.owners}, key=lambda one: (one[0] or "", one[1] or ""))
        operators = _ranked(self._operator(name) for name, _ in owners if name is not None)
        unrecorded, samples = None, (reference.unrecorded_ns, candidate.unrecorded_ns)
        if all(samples):
            first, second = (Timing(median(times_ns), times_ns) for times_ns in samples)
            unrecorded = time_change(first, second, resampled_medians, options)
        return SessionComparison(
            reference=reference.shown,
            candidate=candidate.shown,
            metric=metric,
            basis=basis,
            options=options,
            total=self._change(reference.total, candidate.total)["time"],
            wall=self._change(reference.wall, candidate.wall)["time"] if basis is Basis.STEP else None,
            unrecorded=unrecorded,
            operators=operators,
            unattributed=_ranked(
                UnattributedChange(reason=reason, **self._of_owner((None, reason)))
                for _, reason in owners
                if reason is not None
            ),
            findings=_findings((reference, candidate), metric, basis, operators),
        )

    def _change(self, reference: Use | None, candidate: Use | None) -> dict[str, Any]:
        """The fields of a `Change`: both sides per step (in all, without steps), and the verdict."""
        timings = self._reference.timing(reference), self._candidate.timing(candidate)
        time = time_change(*timings, resampled_means, self._options)
        presence = presence_of(reference, candidate)
        return {"presence": presence, "reference": reference, "candidate": candidate, "time": time}

    def _operator(self, name: str) -> OperatorChange:
        old, new = (one.variants[name, None] for one in (self._reference, self._candidate))
        fields = self._of_owner((name, None))
        # Its own category; of an operator no table knows, that of its longest kernel.
        own = self._reference.category(name)
        own = self._candidate.category(name) if own == OTHER else own
        times_ns = summed(
            (one.category, (one.time.reference_ns or 0) + (one.time.candidate_ns or 0))
            for one in fields["kernels"]
        )
        longest = max(times_ns, key=lambda category: (times_ns[category], category), default=OTHER)
        return OperatorChange(
            name=name,
            category=longest if own == OTHER else own,
            variants=_ranked(
                VariantChange(
                    overload=key[0], input_shapes=key[1], **self._change(old.get(key), new.get(key))
                )
                for key in dict.fromkeys((*old, *new))
            ),
            **fields,
        )

    def _of_owner(self, owner: Owner) -> dict[str, Any]:
        """The fields of its total, and its kernels."""
        before, after = self._reference.kernels[owner], self._candidate.kernels[owner]
        pairs: list[tuple[KernelKey | None, KernelKey | None]] = [
            (key, key) for key in before if key in after
        ]
        left = {key: use.time_ns for key, use in before.items() if key not in after}
        right = {key: use.time_ns for key, use in after.items() if key not in before}
        for kind in sorted({key[1] for key in left}):
            gone, came = ({name: ns for (name, of), ns in one.items() if of == kind} for one in (left, right))
            for old, new in pair_kernels(gone, came, self._facts):
                pairs.append(((old, kind), (new, kind)))
                del left[old, kind], right[new, kind]
        pairs += [*((key, None) for key in left), *((None, key) for key in right)]
        kernels = _ranked(
            self._kernel(owner[0], old, new, self._change(old and before.get(old), new and after.get(new)))
            for old, new in pairs
        )
        totals = self._reference.owners.get(owner), self._candidate.owners.get(owner)
        return {"kernels": kernels, **self._change(*totals)}

    def _kernel(
        self, operator: str | None, old: KernelKey | None, new: KernelKey | None, facts: dict[str, Any]
    ) -> KernelChange:
        change = None
        if old and new and old != new:
            facts["presence"] = Presence.REPLACED
            change = describe_replacement(self._facts(old[0]), self._facts(new[0]))
        before, after = old and old[0], new and new[0]
        side, name = (self._reference, before) if before else (self._candidate, after)
        return KernelChange(
            operator=operator,
            kind=(old or new or ("", ""))[1],
            category=side.category(operator, name),
            reference_name=before,
            candidate_name=after,
            reference_title=None if before is None else self._reference.facts(before).title,
            candidate_title=None if after is None else self._candidate.facts(after).title,
            change=change,
            **facts,
        )

    def _facts(self, kernel: str) -> KernelFacts:
        facts = self._reference.facts(kernel)
        return facts if facts.function or facts.family else self._candidate.facts(kernel)


def _ranked(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Rows by the size of their difference; equal ones by time, then in their order."""

    def key(row: Row) -> tuple[float, float]:
        time = row.time
        return -abs(time.difference_ns), -max(time.reference_ns or 0, time.candidate_ns or 0)

    return tuple(sorted(rows, key=key))


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


def pair_kernels(
    removed: Mapping[str, int], added: Mapping[str, int], facts: Callable[[str], KernelFacts]
) -> list[tuple[str, str]]:
    """Pairs (removed, added) of one operator's kernels of one kind, given by time; each in one at most."""
    pairs: list[tuple[str, str]] = []
    left, right = dict(removed), dict(added)

    def by_sign(
        sign: Callable[[KernelFacts], Hashable], times_ns: Mapping[str, int]
    ) -> dict[Hashable, list[str]]:
        """Names of one sign, the longest in time first; without those that have none."""
        return grouped(
            (key, name)
            for name in sorted(times_ns, key=lambda name: (-times_ns[name], name))
            if (key := sign(facts(name))) is not None
        )

    for sign in (
        _same_code,
        _same_fusion,
        attrgetter("function"),
        lambda facts: facts.family and (facts.family, facts.fields.get("direction")),
    ):
        others = by_sign(sign, right)
        for key, names in by_sign(sign, left).items():
            for old, new in zip(names, others.get(key, ()), strict=False):
                pairs.append((old, new))
                del left[old], right[new]
    return pairs


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
        pairs = zip(old.template_arguments, new.template_arguments, strict=False)
        changed = [(name, before, after) for (name, before), (_, after) in pairs if before != after]
        if not changed or any(len(before) + len(after) > 60 for _, before, after in changed):
            return "other template arguments"
        return ", ".join(f"{name or 'argument'} {one} → {two}" for name, one, two in changed[:_MOST_TOLD])
    if _same_fusion(old) is not None and _same_fusion(old) == _same_fusion(new):
        return "renumbered"
    return f"another kernel of the family {new.family}" if new.family else "another kernel"


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(map(str, value))
    return "–" if value is None else str(value)


_SIDES = ("reference", "candidate")


def _findings(
    sides: tuple[_Side, _Side], metric: Metric, basis: Basis, operators: Sequence[OperatorChange]
) -> tuple[Finding, ...]:
    found = [
        *_recording_findings(sides, metric),
        *_input_finding(operators),
        *_basis_findings(sides, basis),
    ]
    # What makes one side's own data doubtful. Unattributed time has rows of its own.
    said = {"trace.no_device_activity"} if metric is Metric.CPU else set()
    for name, side in zip(_SIDES, sides, strict=True):
        for one in side.findings:
            is_said = one.code in said or one.code.startswith("attribution.")
            if one.severity is not Severity.INFO and not is_said:
                message = f"{name.capitalize()}: {one.message}"
                found.append(Finding(one.code, one.severity, message, one.suggestion, evidence=one.evidence))
    return most_severe_first(found)


def _recording_findings(sides: tuple[_Side, _Side], metric: Metric) -> Iterator[Finding]:
    lacking = [name for name, one in zip(_SIDES, sides, strict=True) if not one.shown.has_device]
    if metric is Metric.CPU and len(lacking) == 2:
        yield finding("compare.cpu_time")
    elif metric is Metric.CPU:
        yield finding("compare.device_missing", side=lacking[0])
    ranks = [side.shown.ranks for side in sides]
    if ranks[0] != ranks[1]:
        yield finding(
            "compare.ranks_differ", evidence={"reference_traces": ranks[0], "candidate_traces": ranks[1]}
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
    # Below this share of a side's time other input shapes are a detail.
    if not whole_ns or others_ns < 0.05 * whole_ns:
        return
    yield finding(
        "compare.inputs_differ",
        evidence={"operators": len(others), "reference_ns": others_ns},
        both=len(both),
        names=", ".join(operator.name for operator in others[:3]),
        more=", …" if len(others) > 3 else "",
        share=format_fraction(others_ns / whole_ns),
    )


def _basis_findings(sides: tuple[_Side, _Side], basis: Basis) -> Iterator[Finding]:
    """What the steps that are compared, or their lack, leave open; and that stacks slow one side down."""
    steps, lacking = [side.shown.steps for side in sides], _SIDES[sides[0].has_steps]
    few = "One recording each, without steps, is not enough"
    if basis is Basis.STEP:
        few = "One step is not enough" if min(steps) == 1 else f"{min(steps)} steps of a side are too few"
    if steps[0] != steps[1]:
        yield finding(
            "compare.steps_differ", evidence={"reference_steps": steps[0], "candidate_steps": steps[1]}
        )
    if sides[0].has_steps != sides[1].has_steps:
        yield finding("compare.steps_missing", side=lacking)
    # What sides that differ lack for a verdict.
    if len({(side.total, side.sample_count) for side in sides}) > 1 and min(steps) < FEWEST_ROUNDS:
        yield Finding(
            "compare.no_interval",
            Severity.INFO,
            f"{few} for an interval: times are shown, but only equal ones get a verdict. Launches and "
            "kernels are exact.",
            f"Record {FEWEST_ROUNDS} steps or more on both sides.",
        )
    outside = [side.shown.outside_steps_ns for side in sides]
    if any(outside):
        times_ns = {f"{side}_ns": ns for side, ns in zip(_SIDES, outside, strict=True)}
        reference, candidate = map(format_duration, outside)
        yield finding("compare.outside_steps", evidence=times_ns, reference=reference, candidate=candidate)
    if sides[0].has_stacks != sides[1].has_stacks:
        yield finding("compare.recording_differs", side=_SIDES[sides[1].has_stacks])
