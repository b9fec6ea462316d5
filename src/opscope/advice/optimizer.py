"""Advice on the optimizer: kernels per tensor, several passes over its state, gradients filled with zeros."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from opscope.advice.case import Advice, Case
from opscope.advice.rule_book import Rule
from opscope.advice.rule_functions import RuleFunction
from opscope.advice.step_time import Saving
from opscope.advice.wording import counted, listed, of_device, per_step, period

__all__ = ["RULES"]

_FUSED = ("aten::_fused_",)
_FOREACH = ("aten::_foreach_",)


def per_tensor_optimizer(case: Case, rule: Rule) -> Iterator[Advice]:
    """Optimizer steps that work on one parameter at a time."""
    rows = [row for row in _phase(case, "step") if not row["name"].startswith(_FUSED + _FOREACH)]
    launches = sum(row["launches"] for row in rows)
    if case.per_step(launches) < rule.threshold("least_launches"):
        return
    fused = case.book.rules["advice.foreach_optimizer"].threshold("fused_share")
    device_ns = sum(row["device_ns"] for row in rows)
    yield Advice(
        f"{_optimizer(rows)} launches {counted(case.per_step(launches), 'kernel')} {period(case)}, tensor by "
        f"tensor: {of_device(case, device_ns)} ({per_step(case, device_ns)}).",
        _evidence(case, rows),
        _saving(case, rows, device_ns * (1 - fused), rule),
        f"a fused optimizer needs about {counted(rule.threshold('fused_launches'), 'launch', 'launches')} "
        "and passes over its state once: a third of the device time, as of Adam",
        change=_change(rows, rule),
    )


def foreach_optimizer(case: Case, rule: Rule) -> Iterator[Advice]:
    """Optimizer steps that pass over all parameters once per operation."""
    rows = [row for row in _phase(case, "step") if row["name"].startswith(_FOREACH)]
    device_ns = sum(row["device_ns"] for row in rows)
    if case.share(device_ns) < rule.threshold("least_fraction"):
        return
    launches = sum(row["launches"] for row in rows)
    fused_ns = device_ns * rule.threshold("fused_share")
    yield Advice(
        f"{_optimizer(rows)} passes over parameters and states in {len(rows)} foreach operators, "
        f"{counted(case.per_step(launches), 'launch', 'launches')}"
        f" {period(case)}: {of_device(case, device_ns)} "
        f"({per_step(case, device_ns)}).",
        _evidence(case, rows),
        _saving(case, rows, device_ns - fused_ns, rule),
        f"fused, each state is read and written once: about {per_step(case, fused_ns)}",
        change=_change(rows, rule),
    )


def zero_grad_fill(case: Case, rule: Rule) -> Iterator[Advice]:
    """Gradients that are filled instead of dropped."""
    rows = _phase(case, "zero_grad")
    launches = sum(row["launches"] for row in rows)
    if case.per_step(launches) < rule.threshold("least_launches"):
        return
    device_ns = sum(row["device_ns"] for row in rows)
    yield Advice(
        f"zero_grad fills gradients by {counted(case.per_step(launches), 'launch', 'launches')}"
        f" {period(case)}: "
        f"{of_device(case, device_ns)} ({per_step(case, device_ns)}).",
        _evidence(case, rows),
        Saving(
            case.per_step(device_ns),
            case.per_step(launches),
            case.per_step(sum(row["host_ns"] for row in rows) * case.unrecorded_share),
        ),
        "the fills, on the device and on the host",
    )


RULES: Mapping[str, RuleFunction] = {
    "advice.per_tensor_optimizer": per_tensor_optimizer,
    "advice.foreach_optimizer": foreach_optimizer,
    "advice.zero_grad_fill": zero_grad_fill,
}


def _phase(case: Case, phase: str) -> list[dict[str, Any]]:
    return [row for row in case.records("optimizer") if row["phase"] == phase]


def _saving(case: Case, rows: Sequence[Mapping[str, Any]], device_ns: float, rule: Rule) -> Saving:
    """With all but a few of their launches the same share of the optimizer's time on the host goes."""
    launches = case.per_step(sum(row["launches"] for row in rows))
    gone = max(0.0, launches - rule.threshold("fused_launches"))
    ranges_ns = sum({row["optimizer"]: row["range_ns"] for row in rows}.values())
    all_launches = sum(row["launches"] for row in _phase(case, "step"))
    host_ns = case.per_step(ranges_ns) * gone / case.per_step(all_launches) * case.unrecorded_share
    return Saving(case.per_step(device_ns), gone, host_ns)


def _optimizer(rows: Sequence[Mapping[str, Any]]) -> str:
    """`Optimizer.step#AdamW.step` is AdamW."""
    names = dict.fromkeys(_name_of(row["optimizer"]) for row in rows)
    return listed(list(names))


def _name_of(range_name: str) -> str:
    return range_name.partition("#")[2].partition(".")[0] or "The optimizer"


def _change(rows: Sequence[Mapping[str, Any]], rule: Rule) -> str | None:
    name = _name_of(rows[0]["optimizer"])
    if rule.change is None or not name.isidentifier():
        return rule.change
    return rule.change.replace("AdamW", name)


def _evidence(case: Case, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    device_ns = sum(row["device_ns"] for row in rows)
    return {
        "device_fraction": case.share(device_ns),
        "device_ns": device_ns,
        "launches": sum(row["launches"] for row in rows),
        "operators": list(dict.fromkeys(row["name"] for row in rows)),
    }
