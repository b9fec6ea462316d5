"""Advice on copies between host and device."""

from __future__ import annotations

from collections.abc import Iterator
from operator import methodcaller

from opscope.advice.profiled_run import Advice, ProfiledRun, finds
from opscope.advice.rules import Rule
from opscope.analysis.totals import KernelTotal
from opscope.model.finding import OPEN
from opscope.model.queries import grouped, sql
from opscope.units import counted, format_byte_rate, format_bytes, format_fraction

# Operators that only pass a copy on; who asked for it stands above them.
PASSING = frozenset(("aten::clone", "aten::contiguous", "aten::_to_copy", "aten::to", "aten::copy_"))
_DIRECTIONS = {"host_to_device": "from host to device", "device_to_host": "from device to host"}


@finds
def pageable_copy(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    # Of programs of PyTorch one in 57 lost a tenth of its step by it.
    names = [kernel.name for kernel in run.summary.kernels if _field(kernel, "host_memory") == "pageable"]
    if run.summary.is_of_torch or not names:
        return
    values = [names, rule.threshold("least_copies")]
    ((calls, total_ns, size_bytes),) = run.session.query(sql(__package__, "repeated_copies"), values)
    if run.is_minor(total_ns, rule) or not calls:
        return
    yield Advice(
        f"{counted(calls, 'copy')} of {format_bytes(size_bytes)} in all to or from pageable host "
        f"memory take {run.device_time(total_ns)}.",
        run.evidence(total_ns, calls=calls, copied_bytes=size_bytes, kernels=names),
    )


@finds
def page_faults(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    for way in ("HtoD", "DtoH"):
        moved = [one for one in run.summary.kernels if one.name.startswith(f"Memcpy Unified {way}")]
        totals = [(one.calls, one.total_ns, one.size_bytes or 0) for one in moved]
        if moved and way == "HtoD":  # those that come while a kernel runs
            totals = run.session.query(sql(__package__, "page_faults"))
        calls, total_ns, size_bytes = map(sum, zip(*totals, strict=True)) if totals else (0, 0, 0)
        is_paged = (
            calls >= rule.threshold("least_copies") and size_bytes < rule.threshold("most_bytes") * calls
        )
        if is_paged and not run.is_minor(total_ns, rule):
            copies, size = counted(calls, "copy"), format_bytes(size_bytes / calls)
            told = f"{copies} of {size} bring pages of managed memory back as the host touches them"
            if way == "HtoD":
                told = f"{copies} of {size} bring pages of managed memory to the device as kernels touch them"
            yield Advice(
                f"{told}; they take {run.device_time(total_ns)}.",
                run.evidence(total_ns, calls=calls, copied_bytes=size_bytes),
                applicability=OPEN,
            )
            return


@finds
def host_copies(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    groups = grouped(
        ((direction, _field(kernel, "host_memory") or "unknown"), kernel)
        for kernel in run.summary.kernels
        if (direction := _field(kernel, "copy_direction")) in _DIRECTIONS
    )
    # A program without PyTorch has no step beside whose kernels they could run.
    if not run.summary.is_of_torch:
        return
    exposed_ns = sum(one.exposed_copy_ns for one in run.summary.timeline.in_use)
    path = () if run.step is None else run.step.path
    for (direction, memory), copies in groups.items():
        calls, total_ns = (sum(getattr(one, name) for one in copies) for name in ("calls", "total_ns"))
        names, size_bytes = [one.name for one in copies], sum(one.size_bytes or 0 for one in copies)
        on_path = sum(part.fraction for part in path if part.kind == "copy" and part.name in names)
        exposed = min(exposed_ns, total_ns) / run.window_ns if run.window_ns else 0.0
        if not total_ns or max(on_path, exposed) < rule.threshold("least_fraction"):
            continue
        rate = size_bytes / total_ns * 1e9 if size_bytes else None
        part = f"{format_fraction(on_path)} of the critical path"
        if on_path < exposed:
            part = f"{format_fraction(exposed)} of the time exposed"
        if rate is not None:
            part += f", {format_bytes(size_bytes / calls)} each at {format_byte_rate(rate)}"
        yield Advice(
            f"{run.times(calls, 'copy')} {_DIRECTIONS[direction]} ({memory} memory) take "
            f"{run.device_time(total_ns)}, {part}.",
            run.evidence(
                total_ns,
                calls=calls,
                direction=direction,
                host_memory=None if memory == "unknown" else memory,
                copied_bytes=size_bytes or None,
                reached_bytes_per_s=rate,
                critical_path_fraction=on_path,
                exposed_fraction=exposed,
                kernels=names,
            ),
            methodcaller("run_beside", names),
            is_sure=False,  # nothing shows whether the next step's input is there early enough
        )


def _field(kernel: KernelTotal, name: str) -> str | None:
    return None if kernel.facts is None else kernel.facts.fields.get(name)
