"""`advise`: asks every rule, simulates what each change is worth, and ranks by that.

Each gain is what its change alone would bring. Changes that touch the same time do not add up: what several
bring together is simulated too (`best_set`). A change that brings less than can be told from noise is left
out; one that the slower host hides today is kept if it is a large part of the device's work, with a gain of
none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path

import msgspec

from opscope.advice import (  # noqa: F401 - each registers the functions of its rules
    attention_rules,
    communication,
    host,
    image_calls,
    kernels,
    products,
    repetition,
)
from opscope.advice.profiled_run import FINDERS, Advice, ProfiledRun, differing, in_the_way
from opscope.advice.rules import EngineWords, Rule, rule_book
from opscope.analysis.step_model import Gain, GraphChange, StepBound, StepModel
from opscope.analysis.summary import BestSet, Summary
from opscope.model.finding import OPEN, Applicability, ApplicabilityStatus, Finding, Severity
from opscope.model.session import Session
from opscope.provenance.serving import ServingPhase
from opscope.units import format_duration


def assess(
    session: Session,
    *,
    measured_dir: Path | None = None,
    ceilings_file: Path | None = None,
    by: str | None = None,
) -> Summary:
    """The Summary with advice; arguments and errors are those of `summarize`.

    Its other sections are computed when they are asked for.
    """
    summary = Summary(session, measured_dir=measured_dir, ceilings_file=ceilings_file, by=by)
    step = summary.step_model
    # First: rules read tables that these fill, and an expression that is none ends it here.
    # Then what rules ask for and reports tell too: `advise` copies what is known here.
    _ = summary.kernels, summary.efficiency, summary.ranges, summary.engine, summary.operators
    _ = summary.devices, summary.unattributed_ns
    return advise(session, summary, step)


def advise(session: Session, summary: Summary, step: StepModel | None) -> Summary:
    """The Summary with what to change, the largest estimated gain first, those without an estimate last.

    The Summary needs efficiency, timeline and program.
    """
    if not summary.has_device or not summary.is_usable:
        return summary.having(advice=())
    # What happens once is no part of a step, and nothing that its rules could make shorter.
    counted = summary.having(timeline=summary.counted_timeline, steps=summary.counted_steps)
    run = ProfiledRun(session, counted, step)
    rules = [run.book.rules["advice.start_up"]] if summary.is_cold else run.book.rules.values()
    found = [one for rule in rules for one in _findings(run, rule)]
    found = sorted(_once(found), key=lambda one: _rank(one[0], one[2]))
    typical = run.summary.typical_step
    is_of_host = typical is not None and typical.bound in {StepBound.HOST, StepBound.TURNS}
    return summary.having(
        advice=tuple(finding for finding, *_ in found),
        best_set=_best_set(run, found),
        host_lines=run.host_lines if is_of_host else (),
        timeline=msgspec.structs.replace(
            summary.timeline, host=tuple(map(run.simulated, summary.timeline.host))
        ),
    )


_COMPILED_MODEL = re.compile(r"model = torch\.compile\(model(.*?\))(?:   #.*)?")
_MODEL = re.compile(r"\bmodel\b")  # what is compiled, where a program has none: its own function
_NO_GAIN = dict.fromkeys(("estimated_gain_ns_per_step", "gain_interval_ns_per_step"))
_Found = tuple[Finding, GraphChange | None, float]  # what it may bring, in ns a step, known or not


def _once(found: Iterable[_Found]) -> Iterator[_Found]:
    """A model is compiled once: what comes to that again, without a number, only says what it found."""
    codes: dict[str, str] = {}
    for finding, change, promised_ns in found:
        edit = (finding.change or "").partition("   #")[0].strip()
        is_first = "torch.compile" not in edit or codes.setdefault(edit, finding.code) == finding.code
        if is_first or finding.is_gain_known:
            yield finding, change, promised_ns
        else:
            yield msgspec.structs.replace(finding, **_NO_GAIN, change=None), None, 0.0


def _best_set(run: ProfiledRun, found: Sequence[_Found]) -> BestSet | None:
    """The changes that together bring most: one by one the change that adds most, while it adds enough."""
    step = run.step
    left = [(finding, change) for finding, change, _ in found if change and finding.is_gain_known]
    if step is None or not left:
        return None
    whole, best_ns, codes = step.change(), 0.0, []
    while left:
        gains = [step.gain_ns(whole & change) for _, change in left]
        most_ns, (finding, change) = max(zip(gains, left, strict=True), key=itemgetter(0))
        if most_ns - best_ns < run.book.number("least_gain_fraction") * step.step_ns:
            break
        whole, best_ns = whole & change, most_ns
        codes.append(finding.code)
        left = [one for one in left if one[0] is not finding and _go_together(one[0], finding)]
    return BestSet(tuple(dict.fromkeys(codes)), best_ns)


def _go_together(one: Finding, other: Finding) -> bool:
    """Not if they set one thing in two ways: a model is compiled in one mode, products have one type."""
    fields = {rule_book().rules[finding.code].field for finding in (one, other)}
    edits = {
        (finding.change or "").strip().partition("\n")[0].partition("   #")[0] for finding in (one, other)
    }
    return len(fields) == 2 or None in fields or "" in edits or len(edits) == 1


def _findings(run: ProfiledRun, rule: Rule) -> Iterator[_Found]:
    """What a rule finds and what it does to a step, without what is not worth a word."""
    for one in FINDERS[rule.code](run, rule):
        advice = _possible(run, rule, one)
        words = _words(run, rule, advice)
        worth = _worth(run, rule, advice, words.change or "")
        # Less of the device's time than anybody could see in one recording without steps.
        least_ns = 0 if run.has_steps else run.book.number("least_gain_fraction") * run.window_ns
        if worth is None or (not worth.gain_ns and advice.evidence.get("device_ns", math.inf) < least_ns):
            continue
        finding = Finding(
            code=rule.code,
            severity=Severity.INFO if worth.is_deferred else rule.severity,
            message=advice.message,
            suggestion=words.suggestion,
            trace_id=advice.trace_id,
            evidence=dict(advice.evidence),
            estimated_gain_ns_per_step=worth.gain_ns,
            gain_interval_ns_per_step=worth.interval_ns,
            gain_basis="; ".join(part for part in (advice.basis or rule.basis, worth.words) if part) or None,
            change=words.change or None,
            applicability=msgspec.structs.replace(OPEN, blocked_by=advice.applicability.blocked_by)
            if worth.is_open
            else advice.applicability,
        )
        if advice.needs_number and not finding.is_gain_known and finding.is_to_try:
            finding = msgspec.structs.replace(finding, **_NO_GAIN, applicability=Applicability())
        yield finding, worth.change, worth.gain_ns or worth.promised_ns


def _possible(run: ProfiledRun, rule: Rule, advice: Advice) -> Advice:
    """The same without gain and code, if what it suggests cannot be done.

    What torch.compile brings where shapes differ from step to step depends on how often it compiles anew.
    """
    change = rule.change if advice.change is None else advice.change
    # What is compiled already is not compiled by that, and what else there is to compile has no name.
    is_done = run.is_compiled and (change or "").strip().startswith("model = torch.compile(model)")
    # It leaves recurrent layers to cuDNN.
    is_done |= "torch.compile" in (change or "") and run.is_recurrent
    if advice.applicability.status is ApplicabilityStatus.BLOCKED or is_done:
        return msgspec.structs.replace(advice, effect=None, gain=None, basis=None, change="")
    if run.summary.engine is None and "torch.compile(model" in (change or "") and (found := differing(run)):
        blockers = in_the_way(run, msgspec.structs.replace(OPEN, blocked_by=found))
        message = (
            f"{advice.message} Shapes or kernels change ({blockers}): "
            "torch.compile may compile again and again."
        )
        both = dict.fromkeys((*advice.applicability.blocked_by, *found))
        blocked = msgspec.structs.replace(OPEN, blocked_by=tuple(both))
        return msgspec.structs.replace(advice, applicability=blocked, message=message)
    return advice


def _words(run: ProfiledRun, rule: Rule, advice: Advice) -> EngineWords:
    """What to do, and as code: in the words of the serving engine, where one was recorded."""
    engine, suggestion = run.summary.engine, advice.suggestion or rule.suggestion
    if engine is not None:
        phase = next((one.phase for one in run.summary.engine_steps), None)
        of_phase = f"{engine}_prefill" if phase is ServingPhase.PREFILL else engine
        own = rule.engines.get(of_phase) or rule.engines.get(engine) or rule.engines.get("any")
    elif not run.summary.is_of_torch:
        own = None if advice.suggestion and not advice.like else (advice.like or rule).engines.get("cuda")
    else:
        change = rule.change if advice.change is None else advice.change
        if change and "torch.compile(model" in change and not run.is_compiled:
            if run.function_to_compile:
                where, _, name = run.function_to_compile.replace("<locals>.", " ").rpartition(" ")
                change = _COMPILED_MODEL.sub(
                    lambda found: f"{name} = torch.compile({name}{found[1]}   # {where.split(' ')[0]}", change
                )
            elif not run.has_model:
                change = _MODEL.sub("step", change)
        return EngineWords(suggestion, change)
    # What changes a program's own lines is no word for others.
    return own or EngineWords(suggestion)


class _Worth(msgspec.Struct, frozen=True):
    """What an advice is worth.

    `is_deferred` where the slower host hides it today, `is_open` where it could not be simulated: then what a
    simulation says all the same only decides what comes first.
    """

    gain_ns: float | None = None
    interval_ns: tuple[float, float] | None = None
    words: str | None = None
    is_deferred: bool = False
    is_open: bool = False
    promised_ns: float = 0.0
    change: GraphChange | None = None


def _worth(run: ProfiledRun, rule: Rule, advice: Advice, code: str) -> _Worth | None:
    """The gain of an advice with this code, and whether to give it; None if it is not worth a word."""
    step = run.step
    if advice.effect is None and advice.gain is None:
        return _Worth()
    if step is None:
        words = "not converted into a gain: the host's side of a step is unknown"
        return _Worth(words=words, is_open=not run.summary.is_whole_process)
    change, gain, missing = None, advice.gain, step.missing
    if advice.effect is not None:
        change = step.change(advice.effect)
        missing = step.missing_for(change)
        gain = _bounded(step, advice, change, rule.gain_error if advice.error is None else advice.error)
    if gain is None:
        return None
    if missing is not None:
        # That is no number; but what nobody waits for, nobody waits for by what is missing either.
        least_ns = run.book.number("wander_fraction") * step.step_ns
        # How the host of a rank that waits may have run says nothing of others.
        is_told = gain.ns >= least_ns or not step.waits
        words, is_open = f"not simulated: {missing}", gain.high_ns >= least_ns
        return _Worth(words=words, is_open=is_open, promised_ns=gain.ns) if is_told else None
    # What graphs break and what kernels torch.compile writes no recording shows.
    is_clear = advice.is_sure and "torch.compile" not in code
    if change is not None and not (is_clear and _can_be_told(run, step, change, gain)):
        gain = msgspec.structs.replace(gain, low_ns=min(0.0, gain.low_ns))
    # Nobody can see a gain that is smaller than what steps differ by, and one recording does not show that.
    share = run.book.number("least_gain_fraction" if run.has_steps else "much_fraction")
    least_ns, spread_ns = share * step.step_ns, _spread_ns(step)
    if gain.ns >= max(least_ns, spread_ns):
        interval_ns = gain.low_ns, gain.high_ns
        # Without code only a person can find what it would take.
        is_numbered = advice.is_sure or code
        return _Worth(gain.ns, interval_ns, _simulated(run, step), change=change) if is_numbered else _Worth()
    worth, deferred_ns = None, run.book.number("deferred_fraction") * step.device_ns
    saved_ns = 0.0 if change is None else change.device_saved_ns
    # Much by one of the ways in which the host may have run is worth trying too.
    most_ns = gain.high_ns if saved_ns >= deferred_ns or not advice.is_sure else gain.ns
    if most_ns >= run.book.number("much_fraction") * step.step_ns:
        words = f"not told from what steps differ by, {format_duration(spread_ns)} to either side"
        worth = _Worth(words=words, is_open=True)
    elif saved_ns >= max(deferred_ns, least_ns) > 0:
        slower = "is" if step.is_host_bound else "would then be"
        words = f"nothing now, for the host {slower} the slower side: {_simulated(run, step)}"
        worth = _Worth(0.0, (min(0.0, gain.low_ns), max(0.0, gain.high_ns)), words, is_deferred=True)
    return worth


def _bounded(step: StepModel, advice: Advice, change: GraphChange, error: float) -> Gain:
    # What is shown without a number needs no least.
    gain = step.gain(change, error if advice.is_sure else 0.0)
    if advice.best is not None:
        high_ns = step.gain(step.change(advice.best), error).high_ns
        gain = msgspec.structs.replace(gain, high_ns=max(gain.high_ns, high_ns))
    if advice.worst is not None and advice.is_sure:
        low_ns = step.gain(step.change(advice.worst), error).low_ns
        gain = msgspec.structs.replace(gain, low_ns=min(gain.low_ns, low_ns))
    return gain


def _can_be_told(run: ProfiledRun, step: StepModel, change: GraphChange, gain: Gain) -> bool:
    """Whether it is more than the host may differ by from run to run, in a step that is understood."""
    error = step.unrecorded_error or 0.0
    is_of_device = 2 * change.device_saved_ns >= gain.ns
    wandering_ns = max(run.book.number("wander_fraction") * step.step_ns, _spread_ns(step))
    return abs(error) <= run.book.number("off_fraction") and (is_of_device or gain.low_ns >= wandering_ns)


def _spread_ns(step: StepModel) -> float:
    """What timed steps differ by, to either side."""
    timed = step.timed
    return 0.0 if timed is None else (timed.high - timed.low) / 2


def _simulated(run: ProfiledRun, step: StepModel) -> str:
    return (
        f"simulated in a step of {format_duration(step.step_ns)} without the profiler, for which "
        f"the device alone needs {format_duration(step.device_ns)} and the host alone "
        f"{format_duration(step.host_ns)}{run.of_rank}"
    )


def _rank(finding: Finding, promised_ns: float) -> tuple[bool, bool, float, int, str, str]:
    is_unknown = finding.estimated_gain_ns_per_step is None
    sizes = ("device_ns", "idle_ns", "awaited_ns")
    most_ns = promised_ns or max(finding.evidence.get(name) or 0.0 for name in sizes)
    return (
        is_unknown and not finding.is_to_try,
        is_unknown,
        # What may bring less counts half, so that what stands first does not depend on what is known.
        -most_ns * (1.0 if finding.is_gain_known else 0.5),
        finding.severity.rank,
        finding.code,
        finding.message,
    )
