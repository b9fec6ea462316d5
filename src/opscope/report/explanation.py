"""Explanation → Document: one name, from the operator down to the lines of its kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from opscope.analysis.explanation import ExplainedKernel, Explanation, Subject
from opscope.analysis.provenance import KernelFacts, NativeFunctionUse
from opscope.model.origin import Grade, SourceLocation
from opscope.model.queries import grouped
from opscope.provenance.categories import category_title
from opscope.provenance.sources import is_unit
from opscope.report import document as doc
from opscope.report.operators import geometry_table, operator_table
from opscope.report.provenance import (
    entry_fact,
    function_facts,
    implementation_facts,
    kernel_facts,
    kernel_meaning,
    launch_blocks,
    location_text,
    release_text,
)
from opscope.units import (
    UNKNOWN,
    counted,
    format_count,
    format_duration,
    format_fraction,
    format_share,
)

_NATIVE = "aten/src/ATen/native/"
_FOLDER_CAPTION: doc.Text = (doc.Code(_NATIVE), " is left out before the files.")


def operator_functions(
    functions: Sequence[NativeFunctionUse], recorded: Sequence[str], most: int | None
) -> tuple[doc.Table, int]:
    """One row per operator, a recording's first, internal ones last; and the number of rows in full."""
    by_operator = grouped((function.name, function) for function in functions)
    rank = {name: index for index, name in enumerate(recorded)}
    names = sorted(by_operator, key=lambda name: (rank.get(name, len(rank)), "::_" in name, name))
    # Variants that only write into a given tensor say the least.
    rows = [
        (
            len(by_operator[name]),
            min(by_operator[name], key=lambda one: (one.location is None, "out" in one.tags)),
        )
        for name in names[:most]
    ]
    shown = doc.table(
        rows,
        doc.identifier("Operator", lambda row: row[1].name),
        doc.number("Overloads", lambda row: str(row[0]), spare=2),
        doc.words(
            "Function", lambda row: doc.Code(row[1].cuda_function) if row[1].cuda_function else UNKNOWN
        ),
        *_place_fields("Defined in", lambda row: row[1].location),
        caption=_FOLDER_CAPTION,
    )
    return shown, len(names)


def file_functions(
    functions: Sequence[NativeFunctionUse], file: str, recorded: Sequence[str], most: int | None
) -> tuple[doc.Table, int]:
    """One row per place in a file and the functions it serves; and the number of rows in full."""
    served = grouped(
        (place, function)
        for function in functions
        for place in dict.fromkeys((function.location, function.stub_location))
        if place is not None and is_unit(place.file, (file,))
    )
    known = set(recorded)
    places = sorted(
        served,
        key=lambda place: (known.isdisjoint(one.name for one in served[place]), place.file, place.line or 0),
    )
    shown = doc.table(
        places[:most],
        *_place_fields("Place", lambda place: place),
        doc.words(
            "Serves",
            lambda place: doc.joined(map(doc.Code, map(_overload_name, served[place])), most=3),
        ),
        caption=_FOLDER_CAPTION,
    )
    return shown, len(places)


def _place_fields(title: str, place: Callable[[Any], SourceLocation | None]) -> tuple[doc.Field, doc.Field]:
    """Where something is defined, below the folder that the caption names, and how well that is known."""

    def shown(found: SourceLocation) -> doc.Text:
        name = str(found).removeprefix(_NATIVE)
        return doc.Code(name) if found.url is None else doc.Link(name, found.url)

    return doc.words(title, place, shown), doc.words(
        "Known from", place, lambda found: str(found.grade), spare=1
    )


SourceReader = Callable[[SourceLocation], "list[str] | None"]


_KERNELS, _ROWS = 6, 40  # in detail, and of a table, unless all are asked for


def explanation_document(
    explanation: Explanation,
    read_source: SourceReader | None = None,
    *,
    is_full: bool = False,
) -> doc.Document:
    subject, uses = explanation.subject, explanation.kernels
    is_one = subject in (Subject.OPERATOR, Subject.KERNEL)
    kernels, rows = (None, None) if is_full else (_KERNELS, _ROWS)
    title = explanation.name + (f".{explanation.overload}" if explanation.overload else "")
    if subject is Subject.KERNEL and len(uses) == 1:
        title = uses[0].facts.title
    nodes = explanation.derivatives
    backward = doc.Section(
        "Backward",
        (),
        tuple(doc.Section(one.name, (doc.FactList(tuple(function_facts(one))),)) for one in nodes),
    )
    shown = doc.sections(
        _chain_section(explanation) if is_one else None,
        _trace_section(explanation),
        _kernel_section(explanation, kernels) if is_one else _kernel_table_section(explanation, rows),
        None if is_one else _function_table_section(explanation, rows),
        backward if nodes else None,
        None if read_source is None else _source_section(explanation, read_source),
    )
    return doc.Document(title, (_opening(explanation),), shown)


def _opening(explanation: Explanation) -> doc.FactList:
    """What it is, what it costs in the trace, where it is written; then what that rests on."""
    version, summary, uses = explanation.torch_version, explanation.summary, explanation.kernels
    release = release_text(version, explanation.torch_version_grade, explanation.torch_version_reason)
    if summary is None and explanation.torch_version_grade is not Grade.NEIGHBOR_VERSION:
        release = version or "not recognized"
    written: doc.Text | None = "unknown" if explanation.subject is Subject.OPERATOR else None
    if explanation.subject in (Subject.OPERATOR, Subject.KERNEL):
        used = [one.facts.location for one in uses]
        places = (*(one.location for one in explanation.functions), *used)
        written = next((location_text(one) for one in places if one is not None), written)
    is_near = any(one.line_grade is Grade.NEIGHBOR_VERSION for one in explanation.locations)
    longest: doc.Text | None = None
    if uses and explanation.subject is not Subject.KERNEL:
        name = doc.Code(uses[0].facts.title)
        longest = name if len(uses) == 1 else (name, f" and {len(uses) - 1} more")
    return doc.facts(
        ("What", _what(explanation)),
        ("In this trace", _cost(explanation) if summary is not None else None),
        ("Written in", written),
        ("≈", "a line of another release, which may be a few lines off" if is_near else None),
        ("Kernels", longest),
        ("PyTorch release", release),
        *(("Trace", doc.Code(trace)) for trace in (summary.traces[:2] if summary is not None else ())),
    )


def _cost(explanation: Explanation) -> str:
    if not explanation.is_recorded:
        return "not recorded"
    operators = explanation.operators
    if not operators:
        totals = [use.total for use in explanation.kernels if use.total is not None]
        ns, calls = sum(one.total_ns for one in totals), sum(one.calls for one in totals)
        return f"{format_duration(ns)} of device time in {counted(calls, 'launch')}"
    called = counted(sum(one.calls for one in operators), "call")
    if explanation.summary is None or not explanation.summary.has_device:
        return f"{called}, {format_duration(sum(one.self_cpu_ns for one in operators))} of CPU time"
    device_ns = sum(one.self_device_ns for one in operators)
    share = format_share(device_ns, explanation.summary.device_time_ns)
    return f"{called}, {format_duration(device_ns)} of device time ({share})"


_KINDS = {
    "backward": "autograd node",
    "triton": "Triton kernel launched by compiled code",
    "range": "recorded range, not a dispatcher operator",
}


def _what(explanation: Explanation) -> doc.Text:
    subject, uses = explanation.subject, explanation.kernels
    if subject is Subject.CATEGORY:
        return f"category: {category_title(explanation.name)}"
    if subject is Subject.FILE:
        files = [place.file for place in explanation.locations if is_unit(place.file, (explanation.name,))]
        places = list(dict.fromkeys(files))
        count = f"{format_count(len(explanation.functions))} native functions"
        if len(places) == 1:
            return ("source file ", doc.Code(places[0], is_whole=True), f" with {count}")
        return f"{len(places)} source files of that name, with {count}" if places else "source file"
    if subject is Subject.KERNEL:
        meanings = {meaning for use in uses if (meaning := kernel_meaning(use.facts)) is not None}
        described = "kernel" if len(uses) == 1 else f"{len(uses)} kernels of one function"
        return f"{described}: {meanings.pop()}" if len(meanings) == 1 else described
    kinds = {function.kind for function in explanation.functions}
    kind = kinds.pop() if len(kinds) == 1 else ""
    known = explanation.operators or explanation.functions
    category = known[0].category if known else None
    described = _KINDS.get(kind, f"{kind} operator".strip())
    return described + (f": {category_title(category)}" if category else "")


def _chain_section(explanation: Explanation) -> doc.Section:
    """The operator's native functions, those that are implemented alike together."""
    groups: dict[object, list[NativeFunctionUse]] = {}
    for one in explanation.functions:
        key = (one.kind, one.dispatch_key, one.cuda_function, one.location, one.stub, one.stub_location)
        groups.setdefault(key if one.cuda_function else id(one), []).append(one)
    parts = []
    for group in groups.values():
        first = group[0]
        # What is no dispatcher operator has no entry; that is said once, on top.
        entries = () if first.kind in _KINDS else map(entry_fact, group)
        known = (*entries, *implementation_facts(first))
        if first.kind == "backward":
            known = tuple(function_facts(first))
        if known:
            parts.append(doc.Section(", ".join(map(_overload_name, group)), (doc.FactList(known),)))
    title = "From the operator to its source"
    return doc.Section(title, parts[0].blocks) if len(parts) == 1 else doc.Section(title, (), tuple(parts))


def _overload_name(function: NativeFunctionUse) -> str:
    return function.name + (f".{function.overload}" if function.overload else "")


def _trace_section(explanation: Explanation) -> doc.Section | None:
    subject, operators = explanation.subject, explanation.operators
    if explanation.summary is None or (subject is Subject.KERNEL and explanation.is_recorded):
        return None
    if not operators:
        return doc.Section("In this trace", (doc.Paragraph("The trace holds none of it."),))
    called = [
        (doc.Code(name), f" ×{format_count(calls)}, {format_duration(total_ns)}")
        for operator in (operators if subject is Subject.OPERATOR else ())
        for name, calls, total_ns in operator.called_operators
    ]
    return doc.Section(
        "In this trace",
        doc.blocks(
            operator_table(explanation.summary, operators),
            doc.Paragraph("It called, with device time below them:") if called else None,
            doc.BulletList(tuple(called)),
        ),
    )


def _kernel_section(explanation: Explanation, most: int | None) -> doc.Section:
    uses = explanation.kernels
    if explanation.subject is Subject.KERNEL and len(uses) == 1:
        return doc.Section("On the GPU", _kernel_blocks(uses[0], explanation, most))
    shown = uses[:most]
    left_out = f"The {len(shown)} longest of {len(uses)} kernels." if len(shown) < len(uses) else ""
    details = (doc.Section(one.facts.title, _kernel_blocks(one, explanation, most)) for one in shown)
    return doc.Section("On the GPU", doc.blocks(doc.Paragraph(left_out)), tuple(details))


def _kernel_blocks(use: ExplainedKernel, explanation: Explanation, most: int | None) -> tuple[doc.Block, ...]:
    title = None if explanation.subject is Subject.KERNEL else use.facts.title
    known, total = kernel_facts(use.facts, title=title), use.total
    if total is None:
        return (doc.FactList(tuple(known)),)
    by: list[doc.Text] = [
        (doc.Code(operator) if operator else "no operator", f" ×{part.calls:,}")
        for operator, part in use.operators
    ]
    if unattributed := total.calls - sum(part.calls for _, part in use.operators):
        by.append(f"no recorded operator ×{unattributed:,}")
    share, launches = format_fraction(total.fraction), counted(total.calls, "launch")
    time = f"{format_duration(total.total_ns)} in {launches} ({share} of all device time)"
    geometries = geometry_table(total.geometries[:most])
    summary = explanation.summary
    launched = () if summary is None else launch_blocks(summary, explanation.owner, use.facts.name)
    return doc.blocks(
        doc.FactList((("Time", time), ("Launched by", doc.joined(by)), *known)), geometries, *launched
    )


def _kernel_table_section(explanation: Explanation, most: int | None) -> doc.Section:
    uses = explanation.kernels[:most]
    titles = distinct_titles([use.facts for use in uses])

    def places(use: ExplainedKernel) -> doc.Text:
        units = use.facts.units
        if not units:
            return use.facts.library or UNKNOWN
        return doc.Code(units[0].removeprefix(_NATIVE)) if len(units) == 1 else f"{len(units)} files"

    is_shortened = any(unit.startswith(_NATIVE) for use in uses for unit in use.facts.units)
    kernels = doc.table(
        [(title, use) for title, use in zip(titles, uses, strict=True) if use.total is not None],
        doc.identifier("Kernel", lambda row: row[0]),
        doc.number("Calls", lambda row: format_count(row[1].total.calls)),
        doc.number("Time", lambda row: format_duration(row[1].total.total_ns)),
        doc.number("Share", lambda row: format_fraction(row[1].total.fraction)),
        doc.words("Comes from", lambda row: places(row[1])),
        caption=_FOLDER_CAPTION if is_shortened else None,
    )
    return doc.Section("On the GPU", (kernels, *doc.blocks(_rest(len(explanation.kernels), most))))


def distinct_titles(kernels: Sequence[KernelFacts]) -> list[doc.Code]:
    """A title for each kernel; where several have the same one, their names."""
    titles = [(facts.title, facts.name) for facts in kernels]
    counts = Counter(title for title, _ in titles)
    return [doc.Code(title if counts[title] == 1 else name) for title, name in titles]


def _function_table_section(explanation: Explanation, most: int | None) -> doc.Section | None:
    if not explanation.functions:
        return None
    recorded = [operator.name for operator in explanation.operators]
    if explanation.subject is Subject.FILE:
        shown, count = file_functions(explanation.functions, explanation.name, recorded, most)
    else:
        shown, count = operator_functions(explanation.functions, recorded, most)
    return doc.Section("Native functions", doc.blocks(shown, _rest(count, most)))


def _rest(count: int, most: int | None) -> doc.Paragraph | None:
    more = 0 if most is None else count - most
    return doc.Paragraph(f"{more:,} more; --full lists all.") if more > 0 else None


def _source_section(explanation: Explanation, read_source: SourceReader) -> doc.Section:
    parts = []
    for location in explanation.locations:
        lines, url = read_source(location), location.url
        told = doc.blocks(
            doc.Paragraph("Its source is not on this machine." if lines is None else location_text(location)),
            None if lines is None else doc.CodeBlock("\n".join(lines), "cpp"),
            None if url is None else doc.Paragraph(doc.Link(url, url)),
        )
        parts.append(doc.Section(str(location), told))
    return doc.Section("Source", (), tuple(parts))
