"""Advice on the optimizer: kernels per tensor, several passes over its state, loops over tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from opscope.advice.profiled_run import Advice, ProfiledRun, finds, listed
from opscope.advice.rules import Rule
from opscope.analysis.step_model import GraphChange, as_extents
from opscope.units import counted

_FUSED = ("aten::_fused_",)
_FOREACH = ("aten::_foreach_",)
# With a fused form for CUDA; Adagrad's is for CPUs. Source: torch/optim, PyTorch 2.11.
_HAVE_FUSED = ("Adam", "AdamW", "SGD")
_FOREACH_CALLS = "{}\n# of lists of tensors, in place of the loop"
_FLAT = """\
values = torch.cat([one.flatten() for one in tensors])   # the loop's operations once, on all of them
# a penalty on the squares of all weights needs no loop either: weight_decay of the optimizer"""

Rows = Sequence[Mapping[str, Any]]


@finds
def per_tensor_optimizer(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    rows = [row for row in _fusible(run) if not row["name"].startswith(_FUSED + _FOREACH)]
    if run.per_step(_sum(rows, "launches")) < rule.threshold("least_launches"):
        return
    fused = run.book.rules["advice.foreach_optimizer"].threshold("fused_share")
    device_ns = _sum(rows, "device_ns")
    yield Advice(
        f"{_optimizer(rows)} launches {run.times(_sum(rows, 'launches'), 'kernel')}, tensor by tensor: "
        f"{run.device_time(device_ns)}.",
        _evidence(run, rows),
        _effect(run, rows, fused, rule),
        f"a fused optimizer needs about {counted(rule.threshold('fused_launches'), 'launch')} "
        "and passes over its state once: a third of the device time, as measured for Adam",
        change=_change(rows, rule),
    )


@finds
def foreach_optimizer(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    rows = [row for row in _fusible(run) if row["name"].startswith(_FOREACH)]
    device_ns = _sum(rows, "device_ns")
    is_on_path = bool(rows) and run.step is not None and run.step.is_host_bound
    if run.is_minor(device_ns, rule) and not is_on_path:
        return
    fused_ns = device_ns * rule.threshold("fused_share")
    yield Advice(
        f"{_optimizer(rows)} passes over parameters and states in {len(rows)} foreach operators, "
        f"{run.times(_sum(rows, 'launches'), 'launch')}: {run.device_time(device_ns)}.",
        _evidence(run, rows),
        _effect(run, rows, rule.threshold("fused_share"), rule),
        f"fused, each state is read and written once: about {run.time(fused_ns)}",
        change=_change(rows, rule),
    )


@finds
def per_tensor_loop(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    least, shapes, most = map(rule.threshold, ("least_launches", "least_shapes", "most_names"))
    loops = run.records("tensor_loops") if run.has_steps else []
    rows = [one for one in loops if one["launches"] >= least and one["shapes"] >= shapes]
    rows = [one for one in rows if len(one["names"]) <= most]
    if not rows:
        return
    names = list(dict.fromkeys(name for row in rows for name in row["names"]))
    launches, host_ns = _sum(rows, "launches"), sum(row["end_ns"] - row["start_ns"] for row in rows)
    # One launch takes some dozens of tensors.
    gone = 1 - rule.threshold("launches_left")
    stems = (name.removeprefix("aten::").removeprefix("linalg_vector_") for name in names)

    def effect(change: GraphChange) -> object:
        spans = as_extents([(row["thread_id"], row["start_ns"], row["end_ns"]) for row in rows])
        return change.merge_operators(_ids(rows), 1.0).drop_host(spans, gone)

    yield Advice(
        f"{listed(names)} run {run.times(launches, 'time')} in loops over tensors of "
        f"{counted(max(row['shapes'] for row in rows), 'shape')}: "
        f"{run.device_time(_sum(rows, 'device_ns'))}, and {run.time(host_ns)} on the host as recorded.",
        run.evidence(_sum(rows, "device_ns"), launches=launches, operators=names, host_ns=host_ns),
        effect,
        change=_FLAT
        if "aten::sum" in names
        else _FOREACH_CALLS.format(", ".join(f"torch._foreach_{stem}" for stem in stems)),
        # What Python does between the operators goes too, and the lists have to be made.
        is_sure=False,
    )


def _fusible(run: ProfiledRun) -> Rows:
    return [row for row in run.records("optimizer") if _name_of(row["optimizer"]) in _HAVE_FUSED]


def _sum(rows: Rows, column: str) -> int:
    return sum(row[column] for row in rows)


def _ids(rows: Rows) -> list[int]:
    return [one for row in rows for one in row["operator_ids"]]


def _effect(run: ProfiledRun, rows: Rows, share: float, rule: Rule) -> Callable[[GraphChange], object]:
    """With all but a few of their launches the same share of the optimizer's time on the host goes."""
    gone = max(0.0, run.per_step(_sum(rows, "launches")) - rule.threshold("fused_launches"))
    all_launches = run.per_step(_sum(run.records("optimizer"), "launches"))
    ranges = {row["optimizer"]: row["ranges"] for row in rows}

    def effect(change: GraphChange) -> object:
        extents = as_extents([tuple(one.values()) for found in ranges.values() for one in found])
        return change.merge_operators(_ids(rows), share).drop_host(extents, gone / all_launches)

    return effect


def _optimizer(rows: Rows) -> str:
    """`Optimizer.step#AdamW.step` is AdamW."""
    return listed(list(dict.fromkeys(_name_of(row["optimizer"]) for row in rows)))


def _name_of(range_name: str) -> str:
    return range_name.partition("#")[2].partition(".")[0] or "The optimizer"


def _change(rows: Rows, rule: Rule) -> str | None:
    name = _name_of(rows[0]["optimizer"])
    return rule.change.replace("AdamW", name) if rule.change and name.isidentifier() else rule.change


def _evidence(run: ProfiledRun, rows: Rows) -> dict[str, Any]:
    operators = list(dict.fromkeys(row["name"] for row in rows))
    return run.evidence(_sum(rows, "device_ns"), launches=_sum(rows, "launches"), operators=operators)
