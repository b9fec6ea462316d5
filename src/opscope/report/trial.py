"""What trying changes found, as a Document: what the best set brings, every change, what to write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from opscope.model.trial import BestChanges, Correctness, TrialResult, TrialVerdict, Variant
from opscope.report import document as doc
from opscope.units import UNKNOWN, counted, format_bytes, format_duration, format_ratio

_CHANGES = 3
_STEPS = {
    "optimizer": "each ends with optimizer.step()",
    "forward": "each is a call of the model",
    "loop": "each is a round of the main loop",
}
_NUMBERS = {
    Correctness.IDENTICAL: "identical",
    Correctness.WITHIN_ROUNDING: "within rounding",
    Correctness.CHANGED: "changed",
    Correctness.UNKNOWN: UNKNOWN,
}
_IN_WORDS = {
    Correctness.IDENTICAL: "the numerics are identical",
    Correctness.WITHIN_ROUNDING: "the numerics agree within rounding",
    Correctness.CHANGED: "the numerics differ",
    Correctness.UNKNOWN: "the numerics could not be compared",
}


def trial_json(result: TrialResult) -> dict[str, Any]:
    return {"schema_version": 1, **msgspec.to_builtins(result)}


def trial_document(result: TrialResult, command: str | None = None) -> doc.Document:
    good = sorted((one for one in result.variants if one.is_recommended), key=lambda one: one.ratio or 1.0)
    whole, reduced = counted(len(result.variants), "change"), result.best_reduced_precision
    are_faster = any(one.verdict is TrialVerdict.FASTER for one in result.variants)
    meaning: doc.Text = f"None of {whole} is faster" + (" with the same numerics." if are_faster else ".")
    if undecided := _undecided(result):
        meaning = f"No verdict for {undecided} of {whole}: give it more time, --budget 5m."
    if good:
        rest = f" alone takes {100 * (good[0].ratio or 1.0):.1f} % of the time."
        meaning = (f"{len(good)} of {whole} are worth writing; ", doc.Code(good[0].name), rest)
    tried = doc.table(
        result.variants,
        doc.identifier("Change", "name"),
        doc.number("Step", "step_ns", spare=2),
        doc.number("Time", "ratio", lambda ratio: f"{100 * ratio:.1f} %"),
        doc.words("95 % interval", "ratio_interval", _percents),
        doc.words(
            "Verdict", lambda one: doc.Strong(str(one.verdict)) if one.is_recommended else str(one.verdict)
        ),
        doc.words("Numerics", lambda one: _NUMBERS[one.correctness]),
        doc.number(
            "Predicted", "predicted_gain_ns", lambda ns: f"{'−' if ns else ''}{format_duration(ns)}", spare=1
        ),
        doc.number("Memory", "peak_bytes", spare=3),
        doc.number("Warm-up", "warm_up_ns", spare=4),
        caption="Time: of the baseline's in the same rounds; intervals hold the scatter between processes. "
        "Numerics: outputs, gradients, updates and losses compared with the baseline's. Warm-up: its check, "
        "compilation included.",
    )
    not_tried = tuple((doc.Code(one.name), f": {one.reason}") for one in result.not_tried)
    return doc.Document(
        f"Changes tried on {result.program}",
        (_opening(result, good),),
        doc.sections(
            doc.Section("What to change", _best(result, result.best)) if result.best else None,
            doc.Section("With reduced precision", _best(result, reduced)) if reduced else None,
            doc.Section("Changes tried", (tried, doc.Meaning(meaning))) if result.variants else None,
            _details(result),
            doc.Section("Not tried", (doc.BulletList(not_tried),)),
            doc.Section("To repeat", (doc.CodeBlock(command or "", "sh"),)),
        ),
    )


def _opening(result: TrialResult, good: Sequence[Variant]) -> doc.FactList:
    base, noise = result.baseline, result.noise
    best, reduced = result.best, result.best_reduced_precision
    none = "no change that was tried is faster"
    if undecided := _undecided(result):
        none = f"not decided: no verdict for {undecided} of {counted(len(result.variants), 'change')}"
    against = "" if noise is None else _ratio(noise.ratio, noise.interval)
    return doc.facts(
        ("Step", f"{format_duration(base.step_ns)} unchanged ({counted(base.steps, 'time')} taken)"),
        ("Steps", _STEPS.get(base.taken or "")),
        (
            "Best",
            _told(best) if best else none + (" with the same numerics" if reduced and not undecided else ""),
        ),
        ("To write", None if best is None else _to_write(best, "What to change")),
        ("Reduced precision", None if reduced is None else _told(reduced)),
        ("To write then", None if reduced is None else _to_write(reduced, "With reduced precision")),
        *(
            (f"Change {rank}", (doc.Code(one.name), f": {100 * (one.ratio or 1.0):.1f} % of the time"))
            for rank, one in enumerate(good[:_CHANGES], 1)
        ),
        ("Noise", f"the program against itself: {against} of the time" if against else None),
        (
            "Based on",
            f"{counted(result.runs, 'run')} of the program"
            + ("" if result.is_complete else "; stopped before all changes were tried")
            + ("" if base.peak_bytes is None else f"; {format_bytes(base.peak_bytes)} of memory at most"),
        ),
    )


def _undecided(result: TrialResult) -> int:
    """Changes that may be faster: none of them has been shown to be, or not to be."""
    open_ones = (one for one in result.variants if one.verdict is TrialVerdict.INCONCLUSIVE)
    return sum(one.ratio_interval is not None and one.ratio_interval[0] < 1 for one in open_ones)


def _told(best: BestChanges) -> doc.Text:
    low, high = (format_ratio(1 / end) for end in reversed(best.ratio_interval))
    text = (
        f"{format_duration(best.step_ns)}, {format_ratio(1 / best.ratio)} as fast: {' + '.join(best.names)}"
    )
    return (doc.Strong(text), f" (95 % CI {low} to {high})")


def _to_write(best: BestChanges, section: str) -> doc.Text:
    """The line to write; where there are several, the section that holds them: one is no edit."""
    lines = [line for line in best.patch.splitlines() if line.strip()]
    if len(lines) == 1 and len(lines[0]) < 60:
        return doc.Code(lines[0], is_whole=True)
    return f"{counted(len(lines), 'line')}: see {section}"


def _best(result: TrialResult, best: BestChanges) -> tuple[doc.Block, ...]:
    before_ns, lines, names = result.baseline.step_ns, [], []
    for name, step_ns in zip(best.names, best.steps_ns, strict=True):
        names.append(name)
        if step_ns is not None:
            lines.append(f"{' + '.join(names)}: {format_duration(before_ns)} → {format_duration(step_ns)}")
            before_ns, names = step_ns, []
    takes = f"{_ratio(best.ratio, best.ratio_interval)} of the time"
    if len(best.process_ratios) > 1:
        each = ", ".join(f"{100 * one:.1f} %" for one in best.process_ratios)
        takes += f", by process {each}"
    together = "It takes" if len(best.names) == 1 else "Together they take"
    return (
        doc.BulletList(tuple(lines)),
        doc.CodeBlock(best.patch, "python"),
        doc.Meaning(f"{together} {takes}; {_IN_WORDS[best.correctness]}."),
    )


def _percents(ends: tuple[float, float]) -> str:
    low, high = ends
    # The numbers of so wide an interval tell nothing.
    return f"{100 * low:.1f} to {100 * high:.1f} %" if high < 4 * low else "too noisy"


def _details(result: TrialResult) -> doc.Section:
    lines: list[doc.Text] = []
    for one in result.variants:
        if one.verdict is TrialVerdict.FAILED:
            # What follows the first line, hints and the frames of a compiler, is in the JSON.
            lines.append((doc.Code(one.name), " failed: " + (one.error or "").strip().partition("\n")[0]))
        elif one.verdict is TrialVerdict.REFUSED:
            lines.append((doc.Code(one.name), f" was not timed: {one.reason}"))
        elif one.verdict is TrialVerdict.FASTER and one.correctness is Correctness.CHANGED:
            lines.append((doc.Code(one.name), f" is faster but not recommended: {one.reason}"))
        elif one.verdict is TrialVerdict.FASTER and not one.is_recommended:
            hint = (
                "--allow-precision recommends it"
                if one.correctness is Correctness.WITHIN_ROUNDING
                else "look"
            )
            lines.append((doc.Code(one.name), f" is faster, {_IN_WORDS[one.correctness]}; {hint}"))
        elif one.verdict is TrialVerdict.INCONCLUSIVE:
            lines.append((doc.Code(one.name), f" no verdict: {one.reason}"))
        if one.pays_off_after_steps and one.is_recommended:
            lines.append((doc.Code(one.name), f" pays off after {counted(one.pays_off_after_steps, 'step')}"))
    return doc.Section("Remarks", (doc.BulletList(tuple(lines)),))


def _ratio(ratio: float, interval: tuple[float, float]) -> str:
    return f"{100 * ratio:.1f} % (95 % CI {_percents(interval)})"
