"""`compare_sessions`: two recordings, operator by operator and kernel by kernel.

Every nanosecond of either side is in exactly one row or in what lies outside steps, so the difference of the
totals is the sum of the rows' differences.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TypeVar

from opscope.analysis.compared_session import ComparedSession, KernelKey, OperatorUse, read_recording
from opscope.analysis.comparison import Timing, presence_of, time_change
from opscope.analysis.kernel_pairs import describe_replacement, pair_kernels
from opscope.analysis.kernel_titles import kernel_title
from opscope.analysis.provenance import KernelFacts
from opscope.analysis.resampling import MeanResampler
from opscope.analysis.session_differences import comparison_findings
from opscope.model.comparison import (
    Basis,
    CategoryChange,
    ComparisonOptions,
    KernelChange,
    Metric,
    OperatorChange,
    Presence,
    SessionComparison,
    TimeChange,
    UnattributedChange,
    Use,
    VariantChange,
)
from opscope.model.session import Session
from opscope.provenance.categories import OTHER

__all__ = ["compare_sessions"]

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
        """Everything."""
        sides = (self.reference.side(), self.candidate.side())
        operators = _ranked(map(self._operator, _names(self.reference.operators, self.candidate.operators)))
        unattributed = _ranked(
            map(self._unattributed, _names(self.reference.unattributed, self.candidate.unattributed))
        )
        wall = self.time(self.reference.wall(), self.candidate.wall()) if basis is Basis.STEP else None
        return SessionComparison(
            reference=sides[0],
            candidate=sides[1],
            metric=metric,
            basis=basis,
            options=self._options,
            total=self.time(self.reference.total, self.candidate.total),
            wall=wall,
            operators=operators,
            unattributed=unattributed,
            categories=self._categories(operators, metric),
            findings=comparison_findings(self.reference, self.candidate, metric, basis, operators),
        )

    def time(self, reference: Use | None, candidate: Use | None) -> TimeChange:
        """Both times per step (in all, without steps), judged."""
        return time_change(
            _timing(reference, self.reference),
            _timing(candidate, self.candidate),
            self._resampler,
            self._options.threshold,
        )

    def _operator(self, name: str) -> OperatorChange:
        uses = self.reference.operators.get(name), self.candidate.operators.get(name)
        reference, candidate = self._totals(*uses)
        kernels = self._kernels(name, *uses)
        return OperatorChange(
            name=name,
            category=self._operator_category(name, kernels),
            presence=presence_of(reference, candidate),
            reference=reference,
            candidate=candidate,
            time=self.time(reference, candidate),
            variants=self._variants(*uses),
            kernels=kernels,
        )

    def _unattributed(self, reason: str) -> UnattributedChange:
        uses = self.reference.unattributed.get(reason), self.candidate.unattributed.get(reason)
        reference, candidate = self._totals(*uses)
        return UnattributedChange(
            reason=reason,
            presence=presence_of(reference, candidate),
            reference=reference,
            candidate=candidate,
            time=self.time(reference, candidate),
            kernels=self._kernels(None, *uses),
        )

    def _totals(self, *uses: OperatorUse | None) -> tuple[Use | None, Use | None]:
        counts = (self.reference.sample_count, self.candidate.sample_count)
        first, second = (
            None if use is None else use.total.use(count) for use, count in zip(uses, counts, strict=True)
        )
        return first, second

    def _variants(
        self, reference: OperatorUse | None, candidate: OperatorUse | None
    ) -> tuple[VariantChange, ...]:
        before = reference.variants if reference else {}
        after = candidate.variants if candidate else {}
        rows = []
        for overload, shapes in dict.fromkeys((*before, *after)):
            key = (overload, shapes)
            first = before[key].use(self.reference.sample_count) if key in before else None
            second = after[key].use(self.candidate.sample_count) if key in after else None
            rows.append(
                VariantChange(
                    overload, shapes, presence_of(first, second), first, second, self.time(first, second)
                )
            )
        return _ranked(rows)

    def _kernels(
        self, operator: str | None, reference: OperatorUse | None, candidate: OperatorUse | None
    ) -> tuple[KernelChange, ...]:
        before = _uses(reference, self.reference)
        after = _uses(candidate, self.candidate)
        pairs: list[tuple[KernelKey | None, KernelKey | None]] = [
            (key, key) for key in before if key in after
        ]
        left = {key: use for key, use in before.items() if key not in after}
        right = {key: use for key, use in after.items() if key not in before}
        for kind in sorted({key[1] for key in left}):
            for old, new in pair_kernels(_times(left, kind), _times(right, kind), self._facts):
                pairs.append(((old, kind), (new, kind)))
                del left[old, kind], right[new, kind]
        pairs += [(key, None) for key in left]
        pairs += [(None, key) for key in right]
        return _ranked(
            self._kernel(
                operator, old, new, before.get(old) if old else None, after.get(new) if new else None
            )
            for old, new in pairs
        )

    def _kernel(
        self,
        operator: str | None,
        old: KernelKey | None,
        new: KernelKey | None,
        reference: Use | None,
        candidate: Use | None,
    ) -> KernelChange:
        presence = presence_of(reference, candidate)
        change = None
        if old and new and old != new:
            presence = Presence.REPLACED
            change = describe_replacement(self._facts(old[0]), self._facts(new[0]))
        names = (old[0] if old else None, new[0] if new else None)
        side, name = (self.reference, names[0]) if names[0] else (self.candidate, names[1])
        return KernelChange(
            operator=operator,
            kind=(old or new or ("", ""))[1],
            presence=presence,
            category=side.category(operator, name),
            reference_name=names[0],
            candidate_name=names[1],
            reference_title=_title(self.reference, names[0]),
            candidate_title=_title(self.candidate, names[1]),
            reference=reference,
            candidate=candidate,
            time=self.time(reference, candidate),
            change=change,
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
        for operator in operators:
            if metric is Metric.CPU:
                before[self.reference.category(operator.name)] += operator.time.reference_ns or 0
                after[self.candidate.category(operator.name)] += operator.time.candidate_ns or 0
            for kernel in operator.kernels if metric is Metric.DEVICE else ():
                names = kernel.reference_name, kernel.candidate_name
                if names[0]:
                    before[self.reference.category(operator.name, names[0])] += kernel.time.reference_ns or 0
                if names[1]:
                    after[self.candidate.category(operator.name, names[1])] += kernel.time.candidate_ns or 0
        rows = [CategoryChange(name, before[name], after[name]) for name in _names(before, after)]
        return tuple(sorted(rows, key=lambda row: (-abs(row.difference_ns), row.category)))


def _timing(use: Use | None, side: ComparedSession) -> Timing | None:
    if use is None:
        return None
    ranks, samples = side.ranks_per_step, side.sample_count
    by_step = tuple(step_ns / ranks for step_ns in use.step_ns)
    return Timing(use.time_ns / (ranks * samples or 1), by_step)


def _names(first: Iterable[str], second: Iterable[str]) -> list[str]:
    return sorted({*first, *second})


def _uses(operator: OperatorUse | None, side: ComparedSession) -> dict[KernelKey, Use]:
    if operator is None:
        return {}
    return {key: sums.use(side.sample_count) for key, sums in operator.kernels.items()}


def _times(kernels: Mapping[KernelKey, Use], kind: str) -> dict[str, int]:
    return {name: use.time_ns for (name, of_kind), use in kernels.items() if of_kind == kind}


def _title(side: ComparedSession, kernel: str | None) -> str | None:
    return None if kernel is None else kernel_title(side.facts(kernel))


def _ranked(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Rows by the size of their difference; equal ones by time, then in their order."""

    def key(row: Row) -> tuple[float, float]:
        time = row.time
        return -abs(time.difference_ns), -max(time.reference_ns or 0, time.candidate_ns or 0)

    return tuple(sorted(rows, key=key))
