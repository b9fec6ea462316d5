"""Explanation → Document: one name, from the operator down to the lines of its kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from opscope._version import __version__
from opscope.analysis.explanation import Explanation, KernelUse, Subject, is_file
from opscope.analysis.provenance import NativeFunctionUse
from opscope.analysis.totals import LaunchGeometry, OperatorTotal
from opscope.model.location import SourceLocation
from opscope.provenance.categories import category_title
from opscope.report.analysis import kernel_record, operator_record
from opscope.report.document import (
    Block,
    BulletList,
    Code,
    CodeBlock,
    Column,
    Document,
    FactList,
    Inline,
    Link,
    Paragraph,
    Section,
    Table,
    Text,
    numeric,
)
from opscope.report.kernel_section import kernel_facts, kernel_meaning
from opscope.report.kernel_title import distinct_titles, kernel_title
from opscope.report.launch_account import account_blocks, account_records
from opscope.report.provenance import (
    decoded_record,
    entry_fact,
    function_facts,
    implementation_facts,
    kernel_source_record,
    location_record,
    location_text,
    native_function_record,
    release_text,
)
from opscope.units import format_count, format_duration, format_extent, format_fraction

__all__ = [
    "EXPLANATION_SCHEMA_VERSION",
    "FOLDER_CAPTION",
    "SourceReader",
    "below_folder",
    "explanation_document",
    "explanation_json",
    "file_functions",
    "operator_functions",
]


_NATIVE = "aten/src/ATen/native/"
FOLDER_CAPTION: Text = (Code(_NATIVE), " is left out before the files.")
_SHOWN_NAMES = 3


def operator_functions(
    functions: Sequence[NativeFunctionUse], recorded: Sequence[str], most: int
) -> tuple[Table, int]:
    """One row per operator: those of a recording first, in its order; then by name, internal ones last.

    Args:
        functions: Overloads in any order.
        recorded: Names of a recording's operators.
        most: Rows to show.

    Returns:
        The table and the number of rows it would have in full.
    """
    by_operator: dict[str, list[NativeFunctionUse]] = {}
    for function in functions:
        by_operator.setdefault(function.name, []).append(function)
    rank = {name: index for index, name in enumerate(recorded)}
    names = sorted(by_operator, key=lambda name: (rank.get(name, len(rank)), "::_" in name, name))
    rows = tuple(_operator_row(name, by_operator[name]) for name in names[:most])
    columns = (
        Column("Operator"),
        numeric("Overloads"),
        Column("Function"),
        Column("Defined in"),
        Column("Known from"),
    )
    return Table(columns, rows, FOLDER_CAPTION), len(names)


def _operator_row(name: str, overloads: Sequence[NativeFunctionUse]) -> tuple[Text, ...]:
    # Variants that only write into a given tensor say the least.
    main = min(overloads, key=lambda one: (one.location is None, "out" in one.tags))
    return (
        Code(name),
        f"{len(overloads)}",
        Code(main.cuda_function) if main.cuda_function else "–",
        *_place(main.location),
    )


def file_functions(
    functions: Sequence[NativeFunctionUse], file: str, recorded: Sequence[str], most: int
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
    rows = tuple((*_place(place), _names(served[place])) for place in places[:most])
    columns = (Column("Place"), Column("Known from"), Column("Serves"))
    return Table(columns, rows, FOLDER_CAPTION), len(places)


def _names(functions: Sequence[NativeFunctionUse]) -> Text:
    names = [one.name + (f".{one.overload}" if one.overload else "") for one in functions]
    parts: list[Inline] = []
    for name in names[:_SHOWN_NAMES]:
        parts += [", " if parts else "", Code(name)]
    more = len(names) - _SHOWN_NAMES
    return (*parts, f" and {more} more" if more > 0 else "")


def below_folder(path: str) -> str:
    """The path as tables under `FOLDER_CAPTION` show it."""
    return path.removeprefix(_NATIVE)


def _place(location: SourceLocation | None) -> tuple[Text, Text]:
    if location is None:
        return "–", "–"
    name = below_folder(str(location))
    return Code(name) if location.url is None else Link(name, location.url), str(location.grade)


SourceReader = Callable[[SourceLocation], "list[str] | None"]
_KERNELS_IN_DETAIL = 6
_TABLE_ROWS = 40


def explanation_document(explanation: Explanation, read_source: SourceReader | None = None) -> Document:
    """The explanation for readers.

    Args:
        explanation: What is known.
        read_source: Gives the lines at a location, or None where they are not at hand; None to show no
            source.
    """
    is_one = explanation.subject in (Subject.OPERATOR, Subject.KERNEL)
    sections = [
        *(_chain_sections(explanation) if is_one else ()),
        *_trace_sections(explanation),
        *(_kernel_sections(explanation) if is_one else _kernel_table_sections(explanation)),
        *(() if is_one else _function_table_sections(explanation)),
        *_backward_sections(explanation),
        *_source_sections(explanation, read_source),
    ]
    return Document(_title(explanation), (_opening(explanation),), tuple(sections))


def _title(explanation: Explanation) -> str:
    if explanation.subject is Subject.KERNEL and len(explanation.kernels) == 1:
        return kernel_title(explanation.kernels[0].facts)
    return explanation.name + (f".{explanation.overload}" if explanation.overload else "")


def _opening(explanation: Explanation) -> FactList:
    facts: list[tuple[str, Text]] = [("What", _what(explanation))]
    version, grade = explanation.torch_version, explanation.torch_version_grade
    if explanation.summary is None:
        facts.append(("PyTorch release", version or "not recognized"))
        return FactList(tuple(facts))
    facts.append(("PyTorch release", release_text(version, grade, explanation.torch_version_reason)))
    facts.extend(("Trace", Code(trace)) for trace in explanation.summary.traces)
    if not explanation.is_recorded:
        facts.append(("In this trace", "not recorded"))
    return FactList(tuple(facts))


_KINDS = {
    "backward": "node of autograd",
    "triton": "Triton kernel launched by compiled code",
    "range": "recorded range, no dispatcher operator",
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


def _what_kernel(uses: Sequence[KernelUse]) -> str:
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
    if len(sections) == 1:
        return [Section(title, sections[0].blocks)]
    return [Section(title, (), tuple(sections))]


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
    columns = (
        Column("Operator"),
        *map(numeric, ("Calls", "Self device", "Share", "Total device", "Launches")),
    )
    rows = tuple(_explanation_operator_row(operator) for operator in explanation.operators)
    blocks: list[Block] = [Table(columns, rows)]
    called = [
        (Code(name), f" ×{format_count(calls)}, {format_duration(total_ns)}")
        for operator in explanation.operators
        for name, calls, total_ns in operator.called_operators
    ]
    if called and explanation.subject is Subject.OPERATOR:
        blocks += [Paragraph("It called, with device time below them:"), BulletList(tuple(called))]
    return [Section("In this trace", tuple(blocks))]


def _absence(explanation: Explanation) -> Text:
    subject = explanation.subject
    if subject is Subject.OPERATOR:
        release = f"PyTorch {explanation.torch_version}" if explanation.torch_version else "PyTorch"
        return f"This trace holds no call of it. What is said above is how {release} serves one."
    if subject is Subject.KERNEL:
        return "This trace holds no launch of it."
    whose = "of this category" if subject is Subject.CATEGORY else "of this file"
    return f"This trace holds no call of an operator {whose}."


def _explanation_operator_row(operator: OperatorTotal) -> tuple[Text, ...]:
    return (
        Code(operator.name),
        format_count(operator.calls),
        format_duration(operator.self_device_ns),
        format_fraction(operator.self_device_fraction),
        format_duration(operator.total_device_ns),
        format_count(operator.kernel_launches),
    )


def _kernel_sections(explanation: Explanation) -> list[Section]:
    uses = explanation.kernels
    if not uses:
        return []
    shown = uses[:_KERNELS_IN_DETAIL]
    blocks: tuple[Block, ...] = ()
    if len(uses) > len(shown):
        blocks = (Paragraph(f"The {len(shown)} longest of {len(uses)} kernels."),)
    if explanation.subject is Subject.KERNEL and len(uses) == 1:
        return [Section("On the GPU", _kernel_blocks(uses[0], explanation))]
    sections = tuple(Section(kernel_title(use.facts), _kernel_blocks(use, explanation)) for use in shown)
    return [Section("On the GPU", blocks, sections)]


def _kernel_blocks(use: KernelUse, explanation: Explanation) -> tuple[Block, ...]:
    title = None if explanation.subject is Subject.KERNEL else kernel_title(use.facts)
    blocks: list[Block] = [FactList((*_use_facts(use), *kernel_facts(use.facts, title=title)))]
    if use.total is not None and use.total.geometries:
        blocks.append(_geometry_table(use.total.geometries))
    if use.total is not None and explanation.summary is not None:
        blocks.extend(account_blocks(explanation.summary, explanation.owner, use.facts.name))
    return tuple(blocks)


def _use_facts(use: KernelUse) -> list[tuple[str, Text]]:
    total = use.total
    if total is None:
        return []
    share = format_fraction(total.fraction)
    text = f"{format_duration(total.total_ns)} in {total.calls:,} launches ({share} of all device time)"
    facts: list[tuple[str, Text]] = [("Time", text)]
    by: list[Inline] = []
    for operator, part in use.operators:
        by += [", " if by else "", Code(operator) if operator else "no operator", f" ×{part.calls:,}"]
    unattributed = total.calls - sum(part.calls for _, part in use.operators)
    if unattributed:
        by.append(f"{', ' if by else ''}no recorded operator ×{unattributed:,}")
    return [*facts, ("Launched by", tuple(by))]


def _geometry_table(geometries: tuple[LaunchGeometry, ...]) -> Table:
    columns = tuple(map(numeric, ("Grid", "Block", "Calls", "Time", "Registers/thread", "Shared memory")))
    rows = tuple(
        (
            format_extent(one.grid),
            format_extent(one.block),
            format_count(one.calls),
            format_duration(one.total_ns),
            format_count(one.registers_per_thread),
            "–" if one.shared_memory_bytes is None else f"{one.shared_memory_bytes:,} B",
        )
        for one in geometries[:_KERNELS_IN_DETAIL]
    )
    return Table(columns, rows)


def _kernel_table_sections(explanation: Explanation) -> list[Section]:
    uses = [(use, use.total) for use in explanation.kernels[:_TABLE_ROWS]]
    if not uses:
        return []
    titles = distinct_titles([use.facts for use, _ in uses])
    rows = tuple(
        (
            title,
            format_count(total.calls),
            format_duration(total.total_ns),
            format_fraction(total.fraction),
            _places(use),
        )
        for title, (use, total) in zip(titles, uses, strict=True)
        if total is not None
    )
    columns = (Column("Kernel"), *map(numeric, ("Calls", "Time", "Share")), Column("Comes from"))
    caption = FOLDER_CAPTION if any(_is_shortened(use) for use, _ in uses) else None
    return [Section("On the GPU", (Table(columns, rows, caption), *_rest(len(explanation.kernels))))]


def _is_shortened(use: KernelUse) -> bool:
    return any(below_folder(unit) != unit for unit in use.facts.units)


def _places(use: KernelUse) -> Text:
    units = use.facts.units
    if not units:
        return use.facts.library or "–"
    return Code(below_folder(units[0])) if len(units) == 1 else f"{len(units)} files"


def _function_table_sections(explanation: Explanation) -> list[Section]:
    if not explanation.functions:
        return []
    recorded = [operator.name for operator in explanation.operators]
    if explanation.subject is Subject.FILE:
        table, row_count = file_functions(explanation.functions, explanation.name, recorded, _TABLE_ROWS)
    else:
        table, row_count = operator_functions(explanation.functions, recorded, _TABLE_ROWS)
    return [Section("Native functions", (table, *_rest(row_count)))]


def _rest(row_count: int) -> tuple[Block, ...]:
    more = row_count - _TABLE_ROWS
    return (Paragraph(f"{more:,} more; --json lists all."),) if more > 0 else ()


def _backward_sections(explanation: Explanation) -> list[Section]:
    nodes = explanation.derivatives
    sections = tuple(Section(one.name, (FactList(tuple(function_facts(one))),)) for one in nodes)
    return [Section("Backward", (), sections)] if sections else []


def _source_sections(explanation: Explanation, read_source: SourceReader | None) -> list[Section]:
    if read_source is None:
        return []
    sections = []
    for location in explanation.locations:
        lines = read_source(location)
        blocks: tuple[Block, ...] = (Paragraph("Its lines are not on this machine."),)
        if lines is not None:
            blocks = (Paragraph(location_text(location)), CodeBlock("\n".join(lines), "cpp"))
        sections.append(Section(str(location), blocks))
    return [Section("Source", (), tuple(sections))] if sections else []


EXPLANATION_SCHEMA_VERSION = 1


def explanation_json(explanation: Explanation, read_source: SourceReader | None = None) -> dict[str, Any]:
    """The explanation as JSON values; with `sources` if a reader of source lines is given."""
    summary = explanation.summary
    document = {
        "schema_version": EXPLANATION_SCHEMA_VERSION,
        "opscope_version": __version__,
        "name": explanation.name,
        "overload": explanation.overload,
        "subject": explanation.subject,
        "torch_version": explanation.torch_version,
        "torch_version_grade": explanation.torch_version_grade,
        "torch_version_reason": explanation.torch_version_reason,
        "is_recorded": None if summary is None else explanation.is_recorded,
        "native_functions": [native_function_record(function) for function in explanation.functions],
        "derivatives": [native_function_record(function) for function in explanation.derivatives],
        "operators": [
            operator_record(summary, operator) for operator in explanation.operators if summary is not None
        ],
        "kernels": [_kernel(use, explanation) for use in explanation.kernels],
    }
    if read_source is not None:
        document["sources"] = [
            {**(location_record(location) or {}), "lines": read_source(location)}
            for location in explanation.locations
        ]
    return document


def _kernel(use: KernelUse, explanation: Explanation) -> dict[str, Any]:
    record: dict[str, Any]
    if use.total is None:
        record = {
            "name": use.facts.name,
            "decoded": decoded_record(use.facts),
            "source": kernel_source_record(use.facts),
        }
    else:
        record = kernel_record(use.total)
    summary = explanation.summary
    return {
        **record,
        "launched_by": [
            {"operator": operator, "calls": part.calls, "total_ns": part.total_ns}
            for operator, part in use.operators
        ],
        "parallelism": (
            [] if summary is None else account_records(summary, explanation.owner, use.facts.name)
        ),
    }
