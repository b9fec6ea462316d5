"""Explanation → Document: one name, from the operator down to the lines of its kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from opscope.analysis.explanation import ExplainedKernel, Explanation, Subject, is_file
from opscope.analysis.kernel_titles import kernel_title
from opscope.analysis.provenance import KernelFacts, NativeFunctionUse
from opscope.launches.facts import LaunchGeometry
from opscope.model.evidence import Grade
from opscope.model.location import SourceLocation
from opscope.provenance.categories import category_title
from opscope.report.document import (
    Block,
    BulletList,
    Code,
    CodeBlock,
    Document,
    FactList,
    Field,
    Inline,
    Link,
    Meaning,
    Paragraph,
    Section,
    Table,
    Text,
    facts,
    identifier,
    joined,
    number,
    table,
    words,
)
from opscope.report.kernel_section import kernel_facts, kernel_meaning, launch_blocks
from opscope.report.provenance import (
    entry_fact,
    function_facts,
    implementation_facts,
    location_text,
    release_text,
)
from opscope.units import (
    UNKNOWN,
    counted,
    format_bytes_exactly,
    format_count,
    format_duration,
    format_extent,
    format_fraction,
    format_share,
)

_NATIVE = "aten/src/ATen/native/"
_FOLDER_CAPTION: Text = (Code(_NATIVE), " is left out before the files.")
_SHOWN_NAMES = 3


def operator_functions(
    functions: Sequence[NativeFunctionUse], recorded: Sequence[str], most: int | None
) -> tuple[Table, int]:
    """One row per operator: those of a recording first, in its order; then by name, internal ones last.

    Returns:
        The table and the number of rows it would have in full.
    """
    by_operator: dict[str, list[NativeFunctionUse]] = {}
    for function in functions:
        by_operator.setdefault(function.name, []).append(function)
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
    shown = table(
        rows,
        identifier("Operator", lambda row: row[1].name),
        number("Overloads", lambda row: str(row[0]), spare=2),
        words("Function", lambda row: Code(row[1].cuda_function) if row[1].cuda_function else UNKNOWN),
        *_place_fields("Defined in", lambda row: row[1].location),
        caption=_FOLDER_CAPTION,
    )
    return shown, len(names)


def file_functions(
    functions: Sequence[NativeFunctionUse], file: str, recorded: Sequence[str], most: int | None
) -> tuple[Table, int]:
    """One row per place in a file and the native functions it serves: a recording's first, then in order.

    Args:
        functions: Those that lie in the file or launch through it.
        file: The file's name or path.
        recorded: Names of a recording's operators.
        most: Rows to show.

    Returns:
        The table and the number of rows it would have in full.
    """
    served: dict[SourceLocation, list[NativeFunctionUse]] = {}
    for function in functions:
        for place in dict.fromkeys((function.location, function.stub_location)):
            if place is not None and is_file(place.file, file):
                served.setdefault(place, []).append(function)
    known = set(recorded)
    places = sorted(
        served,
        key=lambda place: (
            known.isdisjoint(one.name for one in served[place]),
            place.file,
            place.line or 0,
        ),
    )
    shown = table(
        places[:most],
        *_place_fields("Place", lambda place: place),
        words(
            "Serves", lambda place: joined(map(Code, map(_overload_name, served[place])), most=_SHOWN_NAMES)
        ),
        caption=_FOLDER_CAPTION,
    )
    return shown, len(places)


def _place_fields(title: str, place: Callable[[Any], SourceLocation | None]) -> tuple[Field, Field]:
    """Where something is defined, below the folder that the caption names, and how well that is known."""
    return (
        words(
            title,
            place,
            lambda found: (
                Code(below_folder(str(found)))
                if found.url is None
                else Link(below_folder(str(found)), found.url)
            ),
        ),
        words("Known from", place, lambda found: str(found.grade), spare=1),
    )


def below_folder(path: str) -> str:
    """The path as tables under `_FOLDER_CAPTION` show it."""
    return path.removeprefix(_NATIVE)


SourceReader = Callable[[SourceLocation], "list[str] | None"]


class _Most(NamedTuple):
    """Kernels in detail, and rows of a table; all for None."""

    kernels: int | None
    rows: int | None


_USUAL, _ALL = _Most(6, 40), _Most(None, None)


def explanation_document(
    explanation: Explanation, read_source: SourceReader | None = None, *, is_full: bool = False
) -> Document:
    """The explanation for readers.

    Args:
        explanation: What is known.
        read_source: Gives the lines at a location, or None where they are not at hand; None to show no
            source.
        is_full: Show every kernel and every row.
    """
    most = _ALL if is_full else _USUAL
    is_one = explanation.subject in (Subject.OPERATOR, Subject.KERNEL)
    sections = [
        *(_chain_sections(explanation) if is_one else ()),
        *_trace_sections(explanation),
        *(_kernel_sections(explanation, most) if is_one else _kernel_table_sections(explanation, most)),
        *(() if is_one else _function_table_sections(explanation, most)),
        *_backward_sections(explanation),
        *_source_sections(explanation, read_source),
    ]
    return Document(_title(explanation), (_opening(explanation),), tuple(sections))


def _title(explanation: Explanation) -> str:
    if explanation.subject is Subject.KERNEL and len(explanation.kernels) == 1:
        return kernel_title(explanation.kernels[0].facts)
    return explanation.name + (f".{explanation.overload}" if explanation.overload else "")


def _opening(explanation: Explanation) -> FactList:
    """What it is, what it costs in the trace, where it is written; then what that rests on."""
    version, summary = explanation.torch_version, explanation.summary
    release = release_text(version, explanation.torch_version_grade, explanation.torch_version_reason)
    if summary is None and explanation.torch_version_grade is not Grade.NEIGHBOR_VERSION:
        release = version or "not recognized"
    return facts(
        ("What", _what(explanation)),
        ("In this trace", _cost(explanation) if summary is not None else None),
        ("Written in", _written_in(explanation)),
        ("Kernels", _longest_kernel(explanation)),
        ("PyTorch release", release),
        *(("Trace", Code(trace)) for trace in (summary.traces[:_TRACES] if summary is not None else ())),
    )


_TRACES = 2


def _cost(explanation: Explanation) -> str:
    if not explanation.is_recorded:
        return "not recorded"
    operators = explanation.operators
    if not operators:
        totals = [use.total for use in explanation.kernels if use.total is not None]
        ns, calls = sum(one.total_ns for one in totals), sum(one.calls for one in totals)
        return f"{format_duration(ns)} of device time in {counted(calls, 'launch')}"
    called = counted(sum(one.calls for one in operators), "call")
    device_ns = sum(one.self_device_ns for one in operators)
    if explanation.summary is None or not explanation.summary.has_device:
        return f"{called}, {format_duration(sum(one.self_cpu_ns for one in operators))} of CPU time"
    share = format_share(device_ns, explanation.summary.device_time_ns)
    return f"{called}, {format_duration(device_ns)} of device time ({share})"


def _written_in(explanation: Explanation) -> Text | None:
    """Where what serves it begins."""
    if explanation.subject not in (Subject.OPERATOR, Subject.KERNEL):
        return None
    place = _beginning(explanation)
    return None if place is None else location_text(place)


def _beginning(explanation: Explanation) -> SourceLocation | None:
    used = [one.facts.location for one in explanation.kernels]
    places = [one.location for one in explanation.functions]
    return next((one for one in (*places, *used) if one is not None), None)


def _longest_kernel(explanation: Explanation) -> Text | None:
    uses = explanation.kernels
    if not uses or explanation.subject is Subject.KERNEL:
        return None
    title = Code(kernel_title(uses[0].facts))
    return title if len(uses) == 1 else (title, f" and {len(uses) - 1} more")


_KINDS = {
    "backward": "autograd node",
    "triton": "Triton kernel launched by compiled code",
    "range": "recorded range, not a dispatcher operator",
}


def _what(explanation: Explanation) -> Text:
    subject = explanation.subject
    if subject is Subject.CATEGORY:
        return f"category: {category_title(explanation.name)}"
    if subject is Subject.FILE:
        return _what_file(explanation)
    if subject is Subject.KERNEL:
        return _what_kernel(explanation.kernels)
    kinds = {function.kind for function in explanation.functions}
    kind = kinds.pop() if len(kinds) == 1 else ""
    described = _KINDS.get(kind, f"{kind} operator".strip())
    known = explanation.operators or explanation.functions
    category = known[0].category if known else None
    return described + (f": {category_title(category)}" if category else "")


def _what_file(explanation: Explanation) -> Text:
    places = dict.fromkeys(
        place.file for place in explanation.locations if is_file(place.file, explanation.name)
    )
    count = f"{format_count(len(explanation.functions))} native functions"
    if len(places) == 1:
        return ("source file ", Code(next(iter(places)), is_whole=True), f" with {count}")
    return f"{len(places)} source files of that name, with {count}" if places else "source file"


def _what_kernel(uses: Sequence[ExplainedKernel]) -> str:
    meanings = {meaning for use in uses if (meaning := kernel_meaning(use.facts)) is not None}
    described = "kernel" if len(uses) == 1 else f"{len(uses)} kernels of one function"
    return f"{described}: {meanings.pop()}" if len(meanings) == 1 else described


def _chain_sections(explanation: Explanation) -> list[Section]:
    """The operator's native functions, those that are implemented alike together."""
    groups = [(group, _group_facts(group)) for group in _groups(explanation.functions)]
    sections = [
        Section(", ".join(map(_overload_name, group)), (FactList(facts),)) for group, facts in groups if facts
    ]
    if not sections:
        return []
    title = "From the operator to its source"
    meaning = _source_meaning(explanation)
    if len(sections) == 1:
        return [Section(title, (*sections[0].blocks, *meaning))]
    return [Section(title, meaning, tuple(sections))]


def _source_meaning(explanation: Explanation) -> tuple[Meaning, ...]:
    place = _beginning(explanation)
    if place is None:
        return (Meaning("No source file of it is known."),)
    text = location_text(place)
    return (Meaning(("Start reading at ", *(text if isinstance(text, tuple) else (text,)), ".")),)


def _groups(functions: Sequence[NativeFunctionUse]) -> list[list[NativeFunctionUse]]:
    groups: dict[object, list[NativeFunctionUse]] = {}
    for one in functions:
        key = (one.kind, one.dispatch_key, one.cuda_function, one.location, one.stub, one.stub_location)
        groups.setdefault(key if one.cuda_function else id(one), []).append(one)
    return list(groups.values())


def _overload_name(function: NativeFunctionUse) -> str:
    return function.name + (f".{function.overload}" if function.overload else "")


def _group_facts(group: Sequence[NativeFunctionUse]) -> tuple[tuple[str, Text], ...]:
    first = group[0]
    if first.kind == "backward":
        return tuple(function_facts(first))
    # What is no dispatcher operator has no entry; that is said once, on top.
    entries = () if first.kind in _KINDS else map(entry_fact, group)
    return (*entries, *implementation_facts(first))


def _trace_sections(explanation: Explanation) -> list[Section]:
    if explanation.summary is None or (explanation.subject is Subject.KERNEL and explanation.is_recorded):
        return []
    if not explanation.operators:
        return [Section("In this trace", (Paragraph(_absence(explanation)),))]
    operators = table(
        explanation.operators,
        identifier("Operator", "name"),
        number("Calls", "calls"),
        number("Self device", "self_device_ns"),
        number("Share", "self_device_fraction"),
        number("Total device", "total_device_ns"),
        number("Launches", "kernel_launches"),
    )
    called = [
        (Code(name), f" ×{format_count(calls)}, {format_duration(total_ns)}")
        for operator in explanation.operators
        for name, calls, total_ns in operator.called_operators
    ]
    blocks: list[Block] = [operators]
    if called and explanation.subject is Subject.OPERATOR:
        blocks += [Paragraph("It called, with device time below them:"), BulletList(tuple(called))]
    calls = sum(one.calls for one in explanation.operators)
    each_ns = sum(one.total_device_ns for one in explanation.operators) / calls
    if each_ns:
        blocks.append(Meaning(f"A call takes {format_duration(each_ns)} of device time on average."))
    return [Section("In this trace", tuple(blocks))]


def _absence(explanation: Explanation) -> Text:
    subject = explanation.subject
    if subject is Subject.OPERATOR:
        release = f"PyTorch {explanation.torch_version}" if explanation.torch_version else "PyTorch"
        return f"This trace holds no call of it. The above is how {release} implements it."
    if subject is Subject.KERNEL:
        return "This trace holds no launch of it."
    whose = "of this category" if subject is Subject.CATEGORY else "of this file"
    return f"This trace holds no call of an operator {whose}."


def _kernel_sections(explanation: Explanation, most: _Most) -> list[Section]:
    uses = explanation.kernels
    if not uses:
        return []
    shown = uses[: most.kernels]
    blocks: tuple[Block, ...] = ()
    if len(uses) > len(shown):
        blocks = (Paragraph(f"The {len(shown)} longest of {len(uses)} kernels."),)
    meaning = _kernels_meaning(explanation)
    if explanation.subject is Subject.KERNEL and len(uses) == 1:
        return [Section("On the GPU", (*_kernel_blocks(uses[0], explanation, most), *meaning))]
    sections = tuple(
        Section(kernel_title(use.facts), _kernel_blocks(use, explanation, most)) for use in shown
    )
    return [Section("On the GPU", (*blocks, *meaning), sections)]


def _kernels_meaning(explanation: Explanation) -> tuple[Meaning, ...]:
    """Which kernel the time goes to."""
    totals = [(use, use.total) for use in explanation.kernels if use.total is not None]
    whole_ns = sum(total.total_ns for _, total in totals)
    if not whole_ns:
        return ()
    use, longest = max(totals, key=lambda pair: pair[1].total_ns)
    each = f"{format_duration(longest.total_ns / longest.calls)} a launch"
    title = Code(kernel_title(use.facts))
    if len(totals) == 1:
        return (Meaning((title, f" takes {each} on average.")),)
    share = format_share(longest.total_ns, whole_ns)
    return (Meaning((title, f" takes {share} of these kernels' time, {each} on average.")),)


def _kernel_blocks(use: ExplainedKernel, explanation: Explanation, most: _Most) -> tuple[Block, ...]:
    title = None if explanation.subject is Subject.KERNEL else kernel_title(use.facts)
    blocks: list[Block] = [FactList((*_use_facts(use), *kernel_facts(use.facts, title=title)))]
    if use.total is not None and use.total.geometries:
        blocks.append(_geometry_table(use.total.geometries[: most.kernels]))
    if use.total is not None and explanation.summary is not None:
        blocks.extend(launch_blocks(explanation.summary, explanation.owner, use.facts.name))
    return tuple(blocks)


def _use_facts(use: ExplainedKernel) -> list[tuple[str, Text]]:
    total = use.total
    if total is None:
        return []
    share = format_fraction(total.fraction)
    launches = counted(total.calls, "launch")
    text = f"{format_duration(total.total_ns)} in {launches} ({share} of all device time)"
    by: list[Inline] = []
    for operator, part in use.operators:
        by += [", " if by else "", Code(operator) if operator else "no operator", f" ×{part.calls:,}"]
    unattributed = total.calls - sum(part.calls for _, part in use.operators)
    if unattributed:
        by.append(f"{', ' if by else ''}no recorded operator ×{unattributed:,}")
    return [("Time", text), ("Launched by", tuple(by))]


def _geometry_table(geometries: tuple[LaunchGeometry, ...]) -> Table:
    return table(
        geometries,
        number("Grid", "grid", format_extent),
        number("Block", "block", format_extent),
        number("Calls", "calls"),
        number("Time", "total_ns"),
        number("Registers/thread", "registers_per_thread"),
        number("Shared memory", "shared_memory_bytes", format_bytes_exactly),
    )


def _kernel_table_sections(explanation: Explanation, most: _Most) -> list[Section]:
    uses = explanation.kernels[: most.rows]
    if not uses:
        return []
    titles = distinct_titles([use.facts for use in uses])
    rows = [(title, use) for title, use in zip(titles, uses, strict=True) if use.total is not None]
    is_shortened = any(below_folder(unit) != unit for use in uses for unit in use.facts.units)
    kernels = table(
        rows,
        identifier("Kernel", lambda row: row[0]),
        number("Calls", lambda row: format_count(row[1].total.calls)),
        number("Time", lambda row: format_duration(row[1].total.total_ns)),
        number("Share", lambda row: format_fraction(row[1].total.fraction)),
        words("Comes from", lambda row: _places(row[1])),
        caption=_FOLDER_CAPTION if is_shortened else None,
    )
    rest = _rest(len(explanation.kernels), most)
    return [Section("On the GPU", (kernels, *rest, *_kernels_meaning(explanation)))]


def distinct_titles(kernels: Sequence[KernelFacts]) -> list[Code]:
    """A title for each kernel; where several have the same one, their names."""
    titles = [kernel_title(facts) for facts in kernels]
    counts = Counter(titles)
    return [
        Code(title if counts[title] == 1 else facts.name)
        for title, facts in zip(titles, kernels, strict=True)
    ]


def _places(use: ExplainedKernel) -> Text:
    units = use.facts.units
    if not units:
        return use.facts.library or UNKNOWN
    return Code(below_folder(units[0])) if len(units) == 1 else f"{len(units)} files"


def _function_table_sections(explanation: Explanation, most: _Most) -> list[Section]:
    if not explanation.functions:
        return []
    recorded = [operator.name for operator in explanation.operators]
    if explanation.subject is Subject.FILE:
        table, row_count = file_functions(explanation.functions, explanation.name, recorded, most.rows)
    else:
        table, row_count = operator_functions(explanation.functions, recorded, most.rows)
    used = len(set(recorded) & {one.name for one in explanation.functions})
    meaning = (Meaning(f"The trace calls {used} of these operators."),) if recorded else ()
    return [Section("Native functions", (table, *_rest(row_count, most), *meaning))]


def _rest(row_count: int, most: _Most) -> tuple[Block, ...]:
    more = 0 if most.rows is None else row_count - most.rows
    return (Paragraph(f"{more:,} more; --full lists all."),) if more > 0 else ()


def _backward_sections(explanation: Explanation) -> list[Section]:
    nodes = explanation.derivatives
    sections = tuple(Section(one.name, (FactList(tuple(function_facts(one))),)) for one in nodes)
    meaning = Meaning(("Gradients come from ", *joined(Code(one.name) for one in nodes), "."))
    return [Section("Backward", (meaning,), sections)] if sections else []


def _source_sections(explanation: Explanation, read_source: SourceReader | None) -> list[Section]:
    if read_source is None:
        return []
    sections = []
    for location in explanation.locations:
        lines = read_source(location)
        blocks: tuple[Block, ...] = (Paragraph("Its source is not on this machine."),)
        if lines is not None:
            blocks = (Paragraph(location_text(location)), CodeBlock("\n".join(lines), "cpp"))
        if location.url is not None:
            blocks = (*blocks, Paragraph(Link(location.url, location.url)))
        sections.append(Section(str(location), blocks))
    return [Section("Source", (), tuple(sections))] if sections else []
