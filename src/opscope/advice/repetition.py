"""Advice on what two watched steps showed: work that gives what is there, and rounds that need not wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from opscope.advice.profiled_run import Advice, Effect, ProfiledRun, finds, listed
from opscope.advice.rules import Rule
from opscope.analysis.arrays import Spans
from opscope.analysis.step_model import GraphChange
from opscope.analysis.watched_steps import Dataflow, FoundOperators
from opscope.model.queries import grouped
from opscope.model.sidecar import RepeatedSince, RepeatedWork, UnusedWork
from opscope.units import counted, format_duration

# What is said of it, and what becomes of its lines.
_AGAIN = {
    RepeatedSince.STEP: (
        "Each step works out the same at {}: {}.",
        "{text}   # once, before the steps, and kept",
    ),
    RepeatedSince.CALL: (
        "A step works out the same more than once at {}: {}.",
        "{text}   # once in a step, and kept for the rest of it",
    ),
}
_SHOWN = 3


@finds
def repeated_work(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    watched = run.dataflow
    for since, (said, moved) in _AGAIN.items():
        works = [one for one in watched.recorded.repeated if one.since is since]
        if not works:
            continue
        found = watched.found([stretch for one in works for stretch in one.operators])
        if _is_nearly_all(watched, found, rule):
            return
        # Python may have made there what it gives them from the host.
        python_ns, before = watched.python_before(
            [stretch for one in works if one.is_from_host for stretch in one.operators]
        )
        costs_ns = {one: _cost_ns(watched, one) for one in works}
        works.sort(key=lambda one: -costs_ns[one])
        least_ns = rule.threshold("least_of_longest") * costs_ns[works[0]]
        texts = dict.fromkeys(one.text for one in works[:_SHOWN] if one.text and costs_ns[one] >= least_ns)
        said_of_python = (
            f" Python takes {format_duration(python_ns / len(watched.steps))} right before them."
            if python_ns > found.host_ns
            else ""
        )
        yield Advice(
            said.format(listed([one.line or "" for one in works], _SHOWN), _costs(watched, found))
            + said_of_python,
            _evidence(run, found, lines=[one.line for one in works], since=since.value),
            _without(_with_gradients(run, found), before),
            change="\n".join(moved.format(text=text) for text in texts) or None,
            # Of three gains measured on programs of others (benchmarks/results/h200_field_*.json) none was
            # right: the edit keeps more or less than these lines, and hosts differ.
            is_sure=False,
        )


@finds
def unused_work(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    watched = run.dataflow
    works = [one for one in watched.recorded.unused if not one.is_checked]
    if not works:
        return
    works.sort(key=lambda one: -_cost_ns(watched, one))
    whole, partly = (
        watched.found([part for one in works if one.is_of_weights is of for part in one.operators])
        for of in (False, True)
    )
    kernels: dict[int, int] = dict(run.session.query(_OF_WEIGHTS_SQL, [partly.operator_ids]))
    found = whole._replace(device_ns=whole.device_ns + sum(kernels.values()))
    if _is_nearly_all(watched, found, rule):
        return
    lines = dict.fromkeys(
        _NOT_READ if one.line is None else f"# {one.text}   # nothing reads its result"
        for one in works[:_SHOWN]
        if one.line is None or (one.text and one.is_whole)
    )

    def effect(change: GraphChange) -> object:
        nodes = change.model.node_of_activity
        change.scale([nodes[one] for one in kernels if one in nodes], 0.0)
        return _without(whole)(change)

    where = listed([*dict.fromkeys(one.line or "the backward pass" for one in works)], _SHOWN)
    yield Advice(
        f"Nothing reads a part of what a step works out at {where}: {_costs(watched, found)}.",
        _evidence(run, found, lines=[one.line for one in works]),
        effect,
        change="\n".join(lines) or None,
        # A part of what a line calls may have no switch of its own.
        is_sure=all(one.is_whole for one in works[:_SHOWN]),
    )


_OF_WEIGHTS_SQL = """
SELECT activity_id, duration_ns FROM device_activities JOIN kernel_names USING (name_id)
WHERE list_contains($1::BIGINT[], operator_id) AND contains(name, 'wgrad')"""
_NOT_READ = "loss.backward(inputs=trained)   # whose gradients are read; else requires_grad_(False)"


@finds
def padding(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    watched = run.dataflow
    for one in watched.recorded.padded:
        is_to_cut = one.longest <= rule.threshold("most_longest") * one.columns
        filled = (one.longest if is_to_cut else one.mean) / one.columns
        if not is_to_cut and filled > rule.threshold("most_filled"):
            continue
        found = watched.found(one.operators)
        kept = "-longest:" if one.is_left else ":longest"
        yield Advice(
            f"{listed(one.lines, _SHOWN)}: {one.rows} rows are filled up to {one.columns} columns; the "
            f"longest needs {one.longest}, an average one {one.mean:.0f}. Work on all of them: "
            f"{_costs(watched, found)}.",
            _evidence(run, found, lines=one.lines, columns=one.columns, longest=one.longest, mean=one.mean),
            _shortened(found, filled),
            change=_TRIMMED.format(filler=f"{one.filler:g}", kept=kept) if is_to_cut else _SORTED,
            is_sure=False,  # a part of a model may be made for this length
        )


def _shortened(found: FoundOperators, share: float) -> Effect:
    return lambda change: change.scale(change.model.is_launched_by(found.operator_ids), share)


_TRIMMED = """\
longest = int((tokens != {filler}).sum(1).max())   # of each batch, on the host
tokens, mask = tokens[:, {kept}], mask[:, {kept}]   # and all that has a column for each token"""
_SORTED = """\
order = sorted(range(len(dataset)), key=lambda at: len(dataset[at]))   # rows of like length side by side
batches = [order[at:at + size] for at in range(0, len(order), size)]   # shuffle them: a batch_sampler"""


@finds
def recomputation(run: ProfiledRun, _: Rule) -> Iterator[Advice]:
    watched = run.dataflow
    works = [one for one in watched.recorded.repeated if one.since is RepeatedSince.FORWARD]
    for found in (watched.found(one.operators) for one in works):
        yield Advice(
            f"The backward pass runs parts of the forward pass again: {_costs(watched, found)}.",
            _evidence(run, found),
            _without(found),
            is_sure=False,  # it needs the memory
        )


@finds
def loop(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    watched, step = run.dataflow, run.step
    if step is None:
        return
    least_ns = rule.threshold("least_fraction") * step.recorded_host_ns * len(watched.steps)
    # Runs of one loop count together: that of each layer, say.
    runs = grouped(((one.line, one.module), one) for one in watched.recorded.rounds)
    for one, *again in runs.values():
        count = len(one.rounds) + sum(len(other.rounds) for other in again)
        found = watched.found([part for of in (one, *again) for part in of.rounds])
        # What the device has no part in is a matter of loading data, where a loader is waited for.
        if (run.summary.loader_ns and not found.device_ns) or found.host_ns < least_ns:
            continue
        # On a busy device gradients are summed up round by round for want of memory.
        if one.has_backward and not step.is_host_bound:
            continue
        loops = f" of {len(again) + 1} loops" if again else ""
        what = f"{counted(count, 'call')} of {one.module}" if one.module else counted(count, "round") + loops
        sizes = (
            " for members of one group each, found by a mask"
            if one.is_selected
            else " with weights of their own"
            if one.has_weights
            else " for parts of different sizes"
            if one.is_ragged
            else " with a backward pass after each (all at once take the memory of all)"
            if one.has_backward
            else ""
        )
        costs = _costs(watched, found)
        said = f"{one.line}: {what} in a step do the same{sizes}, and none needs another's result: {costs}."
        first, others = (
            watched.found([part for of in (one, *again) for part in of.rounds[begin:end]])
            for begin, end in ((0, 1), (1, None))
        )
        change = _STACKED if one.has_weights else None if one.is_ragged else _OF_ONE_SIZE
        if one.is_selected:
            names = {row["name"].rstrip("_") for row in watched.steps[0][slice(*one.rounds[0])] if row}
            change = _SUMMED_BY_GROUP if names <= _OF_SUMS else _SORTED_BY_GROUP
        elif one.module:
            change = _CALLED.format(module=one.module, line=one.line)
        yield Advice(
            said,
            _evidence(run, found, line=one.line, rounds=count, module=one.module),
            _at_once(
                _with_gradients(run, first),
                _with_gradients(run, others),
                0.5 + 0.5 * _share_at_limits(run, found),
            ),
            suggestion=_BY_GROUP if one.is_selected else None,
            change=change,
            is_sure=False,  # how long one call for all takes is not known
        )


_OF_ONE_SIZE = "results = function(torch.stack(parts))   # in place of the loop, with one dimension more"
_STACKED = """\
weights = torch.stack([model.weight for model in models])   # of all rounds, with one dimension more
results = torch.vmap(function)(weights, inputs)   # or torch.func.stack_module_state for whole modules"""
# Where no more is worked out of a group's members than their sum or mean.
_OF_SUMS = frozenset(
    f"aten::{of}" for of in ("eq", "nonzero", "where", "index", "masked_select", "sum", "mean", "copy")
)
_BY_GROUP = (
    "Work on all groups at once: sums and means by index_add_; else sort by group once, and wait for the "
    "sizes of all groups together."
)
_SUMMED_BY_GROUP = """\
sums = x.new_zeros(groups, x.shape[1]).index_add_(0, labels, x)   # in place of the loop
means = sums / torch.bincount(labels, minlength=groups).clamp(min=1)[:, None]"""
_SORTED_BY_GROUP = """\
order = labels.argsort()   # members of a group side by side; one wait, not one for each group
parts = x[order].split(torch.bincount(labels, minlength=groups).tolist())"""
_CALLED = "results = model(torch.cat(parts)).chunk(len(parts))   # one call of {module} at {line}"


def _costs(watched: Dataflow, found: FoundOperators) -> str:
    steps = len(watched.steps)
    return (
        f"{counted(len(found.ranges) / steps, 'operator')} per step, "
        f"{format_duration(found.device_ns / steps)} of work for the device and "
        f"{format_duration(found.host_ns / steps)} on the host as recorded"
    )


def _evidence(run: ProfiledRun, found: FoundOperators, **more: Any) -> dict[str, Any]:
    return run.evidence(found.device_ns, host_ns=found.host_ns, calls=len(found.ranges), **more)


def _is_nearly_all(watched: Dataflow, found: FoundOperators, rule: Rule) -> bool:
    """Whether steps are repeated to be measured: to do less is not what that is for."""
    return found.device_ns > rule.threshold("most_fraction") * watched.device_ns


def _cost_ns(watched: Dataflow, work: RepeatedWork | UnusedWork) -> int:
    found = watched.found(work.operators)
    is_from_host = isinstance(work, RepeatedWork) and work.is_from_host
    return found.device_ns + found.host_ns + (watched.python_before(work.operators)[0] if is_from_host else 0)


def _at_once(first: FoundOperators, others: FoundOperators, share: float = 1.0) -> Effect:
    """The first round works for all: its kernels take this share of what all took, the others' none."""

    def effect(change: GraphChange) -> object:
        mine = change.model.is_launched_by(first.operator_ids)
        change.scale(mine, share * (1 + others.device_ns / max(first.device_ns, 1)))
        return change.drop_operators(others.operator_ids).drop_host(others.spans)

    return effect


_CALLS_SQL = """
SELECT call_id, sum(duration_ns)
FROM (SELECT unnest($1::BIGINT[]) AS operator_id) JOIN device_activities USING (operator_id)
JOIN activity_costs USING (activity_id)
GROUP BY ALL"""


def _share_at_limits(run: ProfiledRun, found: FoundOperators) -> float:
    """Of these operators' device time, what they would take at their limits; all of it where unknown."""
    gaps = {one.call_id: (one.gap_ns or 0.0) / one.roofline.device_ns for one in run.calls}
    times_ns: dict[int, float] = dict(run.session.query(_CALLS_SQL, [found.operator_ids]))
    beyond_ns = sum(ns * gaps.get(call_id, 0.0) for call_id, ns in times_ns.items())
    return 1 - beyond_ns / max(sum(times_ns.values()), 1)


# The operators of the backward pass that belong to these.
_GRADIENTS_SQL = """
SELECT DISTINCT operator_id, last_descendant_id
FROM (SELECT unnest($1::BIGINT[]) AS forward_operator_id) JOIN autograd_links USING (forward_operator_id)
JOIN operators ON operator_id = backward_operator_id"""


def _with_gradients(run: ProfiledRun, found: FoundOperators) -> FoundOperators:
    gradients = run.session.query(_GRADIENTS_SQL, [found.operator_ids])
    return found._replace(ranges=[*found.ranges, *gradients])


def _without(found: FoundOperators, before: Mapping[int, Spans] | None = None) -> Effect:
    # What Python does between them goes too.
    return lambda change: (
        change.drop_operators(found.operator_ids).drop_host(found.spans).drop_host(dict(before or {}))
    )
