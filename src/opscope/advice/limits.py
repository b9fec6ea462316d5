"""Advice that bounds all other: kernels that are at the device's limit cannot be gained from."""

from __future__ import annotations

from collections.abc import Iterator

from opscope.advice.case import Advice, Case
from opscope.advice.rule_book import Rule
from opscope.advice.wording import counted, of_device, per_step
from opscope.analysis.efficiency import Bound
from opscope.units import format_fraction

__all__ = ["at_limit"]


def at_limit(case: Case, rule: Rule) -> Iterator[Advice]:
    """A few kernels near the limit that take most of the time; asked only beside other advice."""
    near = [
        (name, roofline)
        for (operator, name), roofline in case.summary.efficiency.kernels.items()
        if operator is None  # all launches of the kernel, whoever launched it
        and (roofline.fraction or 0.0) >= rule.threshold("least_roofline_fraction")
        and roofline.bound in (Bound.COMPUTE, Bound.MEMORY)
    ]
    near.sort(key=lambda item: (-item[1].device_ns, item[0]))
    near = near[: int(rule.threshold("most_kernels"))]
    total_ns = sum(roofline.device_ns for _, roofline in near)
    if case.share(total_ns) < rule.threshold("least_fraction"):
        return
    reached = sum((roofline.fraction or 0.0) * roofline.device_ns for _, roofline in near) / total_ns
    names = list(dict.fromkeys(name for name, _ in near))
    yield Advice(
        f"{of_device(case, total_ns)} ({per_step(case, total_ns)}) is in {counted(len(names), 'kernel')} "
        f"near the limit, at {format_fraction(reached)} of it: nothing to gain there at this level.",
        {
            "device_fraction": case.share(total_ns),
            "device_ns": total_ns,
            "roofline_fraction": reached,
            "kernels": names,
        },
    )
