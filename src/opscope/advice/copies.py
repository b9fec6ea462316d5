"""Advice on copies: from pageable host memory, between layouts, between element types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from opscope.advice.case import Advice, Case
from opscope.advice.rule_book import Rule
from opscope.advice.rule_functions import RuleFunction
from opscope.advice.step_time import Saving
from opscope.advice.wording import counted, listed, of_device, per_step, period
from opscope.analysis.cost.arguments import parse_arguments
from opscope.analysis.totals import KernelTotal
from opscope.units import format_byte_rate, format_bytes

__all__ = ["RULES"]

# Operators that only pass a copy on; who asked for it stands above them.
_PASSING = frozenset(("aten::clone", "aten::contiguous", "aten::_to_copy", "aten::to", "aten::copy_"))
# Smaller copies spend their time on starting.
_TELLING_BYTES = 1 << 20


def pageable_copy(case: Case, rule: Rule) -> Iterator[Advice]:
    """Copies whose host memory is not pinned."""
    copies = [kernel for kernel in case.summary.kernels if _host_memory(kernel) == "pageable"]
    total_ns = sum(kernel.total_ns for kernel in copies)
    if case.share(total_ns) < rule.threshold("least_fraction"):
        return
    size_bytes = sum(kernel.size_bytes or 0 for kernel in copies)
    rate, whose = _pinned_rate(case, rule)
    after_ns = min(float(total_ns), size_bytes / rate * 1e9) if size_bytes else None
    calls = sum(kernel.calls for kernel in copies)
    yield Advice(
        f"{counted(calls, 'copy', 'copies')} of {format_bytes(size_bytes)} in all to or from pageable host "
        f"memory take {of_device(case, total_ns)} ({per_step(case, total_ns)}).",
        {
            "device_fraction": case.share(total_ns),
            "device_ns": total_ns,
            "calls": calls,
            "copied_bytes": size_bytes,
            "kernels": [kernel.name for kernel in copies],
        },
        None if after_ns is None else _copy_saving(case, total_ns - after_ns),
        f"the same bytes at {format_byte_rate(rate)}, {whose}; the host waits for such copies, so that both "
        "sides gain",
    )


def layout_conversion(case: Case, rule: Rule) -> Iterator[Advice]:
    """Kernels that only turn channel orders."""
    kernels = [
        k for k in case.summary.kernels if k.facts is not None and k.facts.family == "layout_transform"
    ]
    total_ns = sum(kernel.total_ns for kernel in kernels)
    if case.share(total_ns) < rule.threshold("least_fraction"):
        return
    calls = sum(kernel.calls for kernel in kernels)
    names = {kernel.name for kernel in kernels}
    operators = [
        one.name for one in case.summary.operators if any(kernel.name in names for kernel in one.kernels)
    ]
    yield Advice(
        f"{counted(case.per_step(calls), 'kernel')}"
        f" {period(case)} only turn tensors between channel orders, in "
        f"{listed(operators, 3) or 'no recorded operator'}: {of_device(case, total_ns)} "
        f"({per_step(case, total_ns)}).",
        {
            "device_fraction": case.share(total_ns),
            "device_ns": total_ns,
            "calls": calls,
            "operators": operators,
            "kernels": [kernel.name for kernel in kernels[:5]],
        },
        Saving(device_ns=case.per_step(total_ns)),
        "the time of these kernels; the convolutions' own launches stay",
    )


def layout_copies(case: Case, rule: Rule) -> Iterator[Advice]:
    """Strided copies of unchanged type."""
    rows = [row for row in case.records("copies") if row["is_strided"] and not _is_cast(row)]
    attended = (part for one in case.attention for part in one.parts if part.name in _PASSING)
    attended_ns = sum(part.device_ns for part in attended)
    yield from _copies_advice(case, rule, rows, "only reorder memory", attended_ns)


def repeated_casts(case: Case, rule: Rule) -> Iterator[Advice]:
    """Copies that change the element type."""
    rows = [row for row in case.records("copies") if _is_cast(row)]
    yield from _copies_advice(case, rule, rows, "only change the element type")


RULES: Mapping[str, RuleFunction] = {
    "advice.pageable_copy": pageable_copy,
    "advice.layout_conversion": layout_conversion,
    "advice.layout_copies": layout_copies,
    "advice.repeated_casts": repeated_casts,
}


def _copies_advice(
    case: Case, rule: Rule, rows: Sequence[dict[str, Any]], what: str, attended_ns: int = 0
) -> Iterator[Advice]:
    """Advice on copies, of which `attended_ns` lie around composed attention."""
    total_ns = sum(row["device_ns"] for row in rows)
    if case.share(total_ns) < rule.threshold("least_fraction"):
        return
    calls = sum(row["calls"] for row in rows)
    host_ns = sum(row["host_ns"] for row in rows) * case.unrecorded_share
    askers = _askers(rows)
    shared = (
        f"; {per_step(case, attended_ns)} of them one attention kernel would spare too" if attended_ns else ""
    )
    yield Advice(
        f"{counted(case.per_step(calls), 'copy', 'copies')}"
        f" {period(case)} {what}: {of_device(case, total_ns)} "
        f"({per_step(case, total_ns)}), asked for by {listed(askers, 3)}.",
        {
            "device_fraction": case.share(total_ns),
            "device_ns": total_ns,
            "calls": calls,
            "operators": askers,
            "shapes": [row["shapes"] for row in rows[:3] if row["shapes"]],
        },
        Saving(case.per_step(total_ns), case.per_step(calls), case.per_step(host_ns)),
        f"at most: {per_step(case, total_ns)} of copies on the device and {per_step(case, host_ns)} on the "
        f"host, if every one goes{shared}",
    )


def _copy_saving(case: Case, saved_ns: float) -> Saving:
    saved = case.per_step(saved_ns)
    return Saving(device_ns=saved, host_ns=saved)


def _askers(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The operators above the copies, most device time first."""
    time_ns: dict[str, int] = {}
    for row in rows:
        above = [row["parent"], row["grandparent"], row["ancestor"]]
        known = [name for name in above if name is not None]
        asker = next((name for name in known if name not in _PASSING), (known or [row["name"]])[-1])
        time_ns[asker] = time_ns.get(asker, 0) + row["device_ns"]
    return sorted(time_ns, key=lambda name: (-time_ns[name], name))


def _is_cast(row: Mapping[str, Any]) -> bool:
    call = parse_arguments(row["name"], shapes=row["shapes"], types=row["types"])
    target, source = call.tensor(0), call.tensor(1)
    if target is None or source is None or target.type_name is None or source.type_name is None:
        return False
    return target.type_name != source.type_name


def _host_memory(kernel: KernelTotal) -> str | None:
    return None if kernel.facts is None else kernel.facts.fields.get("host_memory")


def _pinned_rate(case: Case, rule: Rule) -> tuple[float, str]:
    """Bytes per second of pinned copies: this run's own where it has telling ones."""
    own = [
        kernel
        for kernel in case.summary.kernels
        if _host_memory(kernel) == "pinned"
        and kernel.size_bytes
        and kernel.size_bytes >= _TELLING_BYTES * kernel.calls
    ]
    if own:
        size_bytes = sum(kernel.size_bytes or 0 for kernel in own)
        return size_bytes / sum(
            kernel.total_ns for kernel in own
        ) * 1e9, "the rate of this run's pinned copies"
    generation = (case.capability or (0, 0))[0]
    name = "pinned_bytes_per_s" + {8: "_8", 9: "_9"}.get(min(generation, 9), "")
    return rule.threshold(name), "what pinned memory reaches on the bus of this GPU's generation"
