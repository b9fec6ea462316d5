"""Advice on copies: from pageable host memory, between layouts, between element types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from opscope.advice.profiled_run import Advice, ProfiledRun, counted, finds, listed
from opscope.advice.rules import Rule
from opscope.analysis.step_model import GraphChange
from opscope.analysis.totals import KernelTotal
from opscope.operators.arguments import parse_arguments
from opscope.units import format_byte_rate, format_bytes

# Operators that only pass a copy on; who asked for it stands above them.
_PASSING = frozenset(("aten::clone", "aten::contiguous", "aten::_to_copy", "aten::to", "aten::copy_"))
# Smaller copies spend their time on starting.
_TELLING_BYTES = 1 << 20


@finds
def pageable_copy(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    """Copies whose host memory is not pinned."""
    copies = [kernel for kernel in run.summary.kernels if _host_memory(kernel) == "pageable"]
    total_ns = sum(kernel.total_ns for kernel in copies)
    if run.is_minor(total_ns, rule):
        return
    size_bytes = sum(kernel.size_bytes or 0 for kernel in copies)
    rate, whose = _pinned_rate(run, rule)
    uploads = [kernel.name for kernel in copies if _is_upload(kernel)]
    factor = min(1.0, size_bytes / rate * 1e9 / total_ns) if total_ns else 1.0

    def effect(change: GraphChange) -> object:
        # What comes back to the host is waited for, pinned or not.
        change.scale_kernels([kernel.name for kernel in copies], factor)
        return change.free_copies(uploads)

    calls = sum(kernel.calls for kernel in copies)
    yield Advice(
        f"{counted(calls, 'copy', 'copies')} of {format_bytes(size_bytes)} in all to or from pageable host "
        f"memory take {run.device_time(total_ns)}.",
        run.evidence(
            total_ns, calls=calls, copied_bytes=size_bytes, kernels=[kernel.name for kernel in copies]
        ),
        effect if size_bytes else None,
        f"the same bytes at {format_byte_rate(rate)}, {whose}; the host waits for none to the device",
    )


@finds
def layout_conversion(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    """Kernels that only turn channel orders."""
    kernels = [k for k in run.summary.kernels if k.facts is not None and k.facts.family == "layout_transform"]
    total_ns = sum(kernel.total_ns for kernel in kernels)
    if run.is_minor(total_ns, rule):
        return
    calls = sum(kernel.calls for kernel in kernels)
    names = {kernel.name for kernel in kernels}
    operators = [one.name for one in run.summary.operators if any(k.name in names for k in one.kernels)]
    yield Advice(
        f"{run.times(calls, 'kernel')} only turn tensors between channel orders, in "
        f"{listed(operators, 3) or 'no recorded operator'}: {run.device_time(total_ns)}.",
        run.evidence(
            total_ns, calls=calls, operators=operators, kernels=[kernel.name for kernel in kernels[:5]]
        ),
        lambda change: change.drop_kernels([kernel.name for kernel in kernels]),
    )


@finds
def layout_copies(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    """Strided copies of unchanged type."""
    rows = [row for row in run.records("copies") if row["is_strided"] and not _is_cast(row)]
    attended = (part for one in run.attention for part in one.parts if part.name in _PASSING)
    attended_ns = sum(part.device_ns for part in attended)
    shared = f"; {run.time(attended_ns)} of them one attention kernel would spare too" if attended_ns else ""
    yield from _copies(run, rule, rows, "only reorder memory", shared)


@finds
def repeated_casts(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    """Copies that change the element type."""
    rows = [row for row in run.records("copies") if _is_cast(row)]
    yield from _copies(run, rule, rows, "only change the element type")


def _copies(
    run: ProfiledRun, rule: Rule, rows: Sequence[Mapping[str, Any]], what: str, shared: str = ""
) -> Iterator[Advice]:
    total_ns = sum(row["device_ns"] for row in rows)
    if run.is_minor(total_ns, rule):
        return
    calls = sum(row["calls"] for row in rows)
    host_ns = sum(row["host_ns"] for row in rows)
    askers = _askers(rows)
    yield Advice(
        f"{run.times(calls, 'copy', 'copies')} {what}: {run.device_time(total_ns)}, asked for by "
        f"{listed(askers, 3)}.",
        run.evidence(
            total_ns,
            calls=calls,
            operators=askers,
            shapes=[row["shapes"] for row in rows[:3] if row["shapes"]],
        ),
        lambda change: _without(change, rows),
        f"at most: {run.time(total_ns)} of copies on the device and "
        f"{run.time(host_ns * run.unrecorded_share)} on the host, if every one goes{shared}",
    )


def _without(change: GraphChange, rows: Sequence[Mapping[str, Any]]) -> GraphChange:
    """No copy, and none of the operators that only pass it on."""
    change.drop_operators([one for row in rows for one in row["operator_ids"]], with_host=False)
    return change.drop_host(change.model.extents([one for row in rows for one in row["outer_ids"]]))


def _askers(rows: Sequence[Mapping[str, Any]]) -> list[str]:
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
    types = [tensor.type_name if tensor else None for tensor in (call.tensor("self"), call.tensor("src"))]
    return None not in types and types[0] != types[1]


def _host_memory(kernel: KernelTotal) -> str | None:
    return None if kernel.facts is None else kernel.facts.fields.get("host_memory")


def _is_upload(kernel: KernelTotal) -> bool:
    return kernel.facts is not None and kernel.facts.fields.get("copy_direction") == "host_to_device"


def _pinned_rate(run: ProfiledRun, rule: Rule) -> tuple[float, str]:
    """Bytes per second of pinned copies: this run's own where it has telling ones."""
    own = [
        (kernel.size_bytes, kernel.total_ns)
        for kernel in run.summary.kernels
        if _host_memory(kernel) == "pinned"
        and kernel.size_bytes
        and kernel.size_bytes >= _TELLING_BYTES * kernel.calls
    ]
    if own:
        rate = sum(size_bytes for size_bytes, _ in own) / sum(total_ns for _, total_ns in own) * 1e9
        return rate, "the rate of this run's pinned copies"
    generation = (run.capability or (0, 0))[0]
    name = "pinned_bytes_per_s" + {8: "_8", 9: "_9"}.get(min(generation, 9), "")
    return rule.threshold(name), "what pinned memory reaches on the bus of this GPU's generation"
