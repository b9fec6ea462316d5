"""Where in the program device time comes from: a tree of modules, and the lines that launched most.

Modules that play one part (the layers of a stack) share a row; their sums are exact, and every one alone is
in the JSON. What was not recorded is no section; `recording_hint` says once how to record it.
"""

from __future__ import annotations

import re
from collections import Counter
from operator import attrgetter

import msgspec
from msgspec.structs import asdict, replace

from opscope.analysis.program.places import LineKind, ModuleTotal
from opscope.analysis.summary import Summary
from opscope.report import document as doc
from opscope.report.operators import time_name, whole_ns
from opscope.units import format_duration, format_share

_INDEX = re.compile(r"(?<![^.])\d+(?![^.])")
_INDENT = "· "
_KIND_NOTES = {
    LineKind.FUNCTION: "Of a function marked “def” only the first line is known, not which one launched.",
    LineKind.RUNNING: "A function marked “running” had begun before the recording, and stood at that line.",
}
_KIND_MARKS = {LineKind.EXECUTED: "", LineKind.FUNCTION: " def", LineKind.RUNNING: " running"}


class _Part(msgspec.Struct, frozen=True):
    """Modules that play one part: `total` sums them; `key` is their path with classes and `*` for indices."""

    key: tuple[str, ...]
    modules: int
    total: ModuleTotal


def program_sections(summary: Summary, top: int | None) -> tuple[doc.Section, ...]:
    program = summary.program
    return doc.sections(
        doc.Section("By module", module_blocks(summary, top)) if program.module_ns else None,
        doc.Section("By source line", _line_blocks(summary, top)) if program.line_ns else None,
    )


def recording_hint(summary: Summary) -> doc.Paragraph | None:
    """How to record what is missing; None where both are there, or no device time is."""
    program = summary.program
    if not (summary.has_device and summary.is_of_torch) or (program.has_modules and program.has_stacks):
        return None
    return doc.Paragraph(
        (
            "Device time by nn.Module and by source line is not known: the recording has no Python stacks. ",
            doc.Code("opscope run --record stack --record modules SCRIPT"),
            " records them.",
        )
        if not program.has_stacks
        else (
            "Device time by nn.Module is not known: no calls of modules were recorded. ",
            doc.Code("opscope run --record modules SCRIPT"),
            " records them.",
        )
    )


def module_blocks(summary: Summary, top: int | None) -> tuple[doc.Block, ...]:
    """The modules as a tree, those of one part in one row, the longest parts."""
    parts = _parts(summary.program.modules)
    what = "device" if summary.has_device else "cpu"
    time_ns = attrgetter(f"total.total_{what}_ns")
    parts.sort(key=lambda part: (-time_ns(part), len(part.key)))
    # A part has no more time than the one around it, so what is cut off has nothing listed inside.
    kept = {part.key for part in parts[: None if top is None else 2 * top]}
    # Each before what is inside, the longest first.
    rank = {part.key: index for index, part in enumerate(parts)}
    parts.sort(key=lambda part: [rank[part.key[: length + 1]] for length in range(len(part.key))])
    shown = [part for part in parts if part.key in kept]
    caption = _rest(summary, summary.program.module_ns, "in no module")
    if len(shown) < len(parts):
        caption = f"The {len(shown)} of {len(parts)} parts with the most {_time_of(summary)}. {caption}"

    def name(part: _Part) -> doc.Text:
        count = f" ×{part.modules}" if part.modules > 1 else ""
        return (_INDENT * (len(part.key) - 1), doc.Code(part.key[-1]), count)

    rows = doc.table(
        shown,
        doc.words("Module", name),
        doc.number("Calls", "total.calls"),
        doc.number("Device time" if summary.has_device else "CPU time", f"total.total_{what}_ns"),
        doc.number("Share", lambda part: _share(summary, time_ns(part))),
        doc.number("Self", f"total.self_{what}_ns"),
        doc.number("Forward", "total.forward_ns"),
        doc.number("Backward", "total.backward_ns"),
        doc.number("Launches", "total.kernel_launches"),
        caption=caption,
    )
    own: Counter[str] = Counter()
    for one in summary.program.modules:
        own[one.class_name] += getattr(one, f"self_{what}_ns")
    if not own.total():
        return (rows,)
    first, ns = own.most_common(1)[0]
    share = _share(summary, ns)
    return rows, doc.Meaning(
        (doc.Code(first), f" modules take the most self time: {share} of {time_name(summary)}.")
    )


def _parts(modules: tuple[ModuleTotal, ...]) -> list[_Part]:
    parts: dict[tuple[str, ...], _Part] = {}
    around: list[tuple[ModuleTotal, tuple[str, ...]]] = []
    for module in modules:
        del around[module.depth :]
        above, key = around[-1] if around else (None, ())
        segment = module.path if above is None else module.path[len(above.path) + 1 :]
        # Its attribute with `*` for an index; its class where that is unknown.
        role = f"{_INDEX.sub('*', segment)}: {module.class_name}"
        if re.fullmatch(rf"{re.escape(module.class_name)}_\d+", segment):
            role = module.class_name
        key = (*key, role)
        around.append((module, key))
        count, total = 1, module
        if known := parts.get(key):
            added = [
                field for field, value in asdict(module).items() if type(value) is int and field != "depth"
            ]
            sums = {field: getattr(known.total, field) + getattr(module, field) for field in added}
            count, total = known.modules + 1, replace(known.total, **sums)
        parts[key] = _Part(key, count, total)
    return list(parts.values())


def _line_blocks(summary: Summary, top: int | None) -> tuple[doc.Block, ...]:
    lines = summary.program.lines
    shown = lines[:top]
    caption = _rest(summary, summary.program.line_ns, "under no line of the program")
    if len(shown) < len(lines):
        caption = f"The first {len(shown)} of {len(lines)} lines. {caption}"
    notes = [note for kind, note in _KIND_NOTES.items() if any(line.kind is kind for line in shown)]
    rows = doc.table(
        shown,
        doc.words("Line", lambda line: (doc.Code(f"{line.file}:{line.line}"), _KIND_MARKS[line.kind])),
        doc.identifier("Function", "function"),
        doc.number("Calls", "calls"),
        doc.number("Device time", "self_device_ns"),
        doc.number("Share", lambda line: _share(summary, line.self_device_ns)),
        doc.number("Forward", "forward_ns"),
        doc.number("Backward", "backward_ns"),
        doc.number("Launches", "kernel_launches"),
        caption=" ".join([caption, *notes]),
    )
    if not lines:
        return (rows,)
    share = format_share(lines[0].self_device_ns, summary.device_time_ns)
    place = doc.Code(f"{lines[0].file}:{lines[0].line}")
    return rows, doc.Meaning((place, f" launches the most: {share} of device time."))


def _rest(summary: Summary, charged_ns: int, where: str) -> str:
    rest_ns = whole_ns(summary) - charged_ns
    if not rest_ns:
        return f"All {_time_of(summary)}."
    return f"{format_duration(rest_ns)} ({_share(summary, rest_ns)}) of all {_time_of(summary)} is {where}."


def _time_of(summary: Summary) -> str:
    return "device time" if summary.has_device else "CPU time of operators"


def _share(summary: Summary, time_ns: int) -> str:
    return format_share(time_ns, whole_ns(summary))
