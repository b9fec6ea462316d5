"""The chain from an operator to its source, for readers: each link with how well it is known."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from opscope.analysis.accuracy import UNKNOWN as UNGRADED
from opscope.analysis.provenance import NativeFunctionUse
from opscope.analysis.summary import Summary
from opscope.analysis.totals import OperatorTotal
from opscope.model.evidence import Grade
from opscope.model.location import SourceLocation
from opscope.report.document import (
    Block,
    Code,
    Inline,
    Link,
    Meaning,
    Paragraph,
    Text,
    blocks,
    facts,
    inlines,
    joined,
    number,
    table,
    words,
)
from opscope.units import format_count, format_fraction

_UNKNOWN = "unknown"
_CALLED = 4


def operator_chain_facts(operator: OperatorTotal, *, has_device: bool) -> list[tuple[str, Text]]:
    """Native function, its dispatch, and the file of the device code; unknown is said."""
    label = "CUDA source file" if has_device else "Source file"
    if not operator.native_functions:
        return [("Native function", _UNKNOWN), (label, _UNKNOWN)]
    first, *others = operator.native_functions
    source = operator.source
    facts = function_facts(first, said=source)
    if others:
        overloads = (
            "some that the trace does not tell"
            if one.overload is None
            else one.overload or "the default overload"
            for one in others
        )
        facts.append(("Other overloads", ", ".join(dict.fromkeys(overloads))))
    if operator.called_operators:
        parts: list[Inline] = []
        for name, calls, _ in operator.called_operators[:_CALLED]:
            parts += [", " if parts else "", Code(name), f" ×{format_count(calls)}"]
        rest = len(operator.called_operators) - _CALLED
        facts.append(("Called operators", (*parts, f" and {rest} more" if rest > 0 else "")))
    facts.append((label, _UNKNOWN if source is None else location_text(source)))
    return facts


def function_facts(
    function: NativeFunctionUse, *, said: SourceLocation | None = None
) -> list[tuple[str, Text]]:
    if function.kind != "backward":
        return [entry_fact(function), *implementation_facts(function, said=said)]
    details = function.details
    if not details.get("forward"):
        return [("Native function", "an autograd node; its forward operator is unknown")]
    known = (*joined(map(Code, details["forward"])), graded(function.overload_grade))
    facts: list[tuple[str, Text]] = [("Backward of", known)]
    for name, formula in (details.get("formulas") or {}).items():
        facts.append((f"Gradient of {name}", Code(formula, is_whole=True)))
    line, url = details.get("derivatives_line"), details.get("yaml_url")
    return [*facts, ("Defined in", Link(f"derivatives.yaml:{line}", url))] if line and url else facts


def entry_fact(function: NativeFunctionUse) -> tuple[str, Text]:
    candidates = function.details.get("candidates")
    if candidates:
        names = ", ".join(candidate or "the default one" for candidate in candidates)
        text: tuple[Inline, ...] = (Code(function.name), f"; the trace does not tell which overload: {names}")
        return "Native function", (*text, graded(function.overload_grade))
    if function.schema is None:
        return "Native function", _OUTSIDE.get(function.kind, _UNKNOWN)
    text = (Code(function.schema, is_whole=True),)
    if function.yaml_line is not None:
        place = f"native_functions.yaml:{function.yaml_line}"
        url = function.details.get("yaml_url")
        text += (" in ", Link(place, url) if url else Code(place))
    return "Native function", (*text, graded(function.overload_grade))


def implementation_facts(
    function: NativeFunctionUse, *, said: SourceLocation | None = None
) -> list[tuple[str, Text]]:
    """What serves calls of a native function on the device, down to where it launches; arguments as above."""
    facts: list[tuple[str, Text]] = []
    dispatch: list[Inline] = []
    if function.structured_delegate:
        dispatch += ["structured, by ", Code(function.structured_delegate)]
    if function.dispatch_key:
        separator = "; " if dispatch else ""
        dispatch += [f"{separator}{function.dispatch_key} → ", Code(function.cuda_function or _UNKNOWN)]
    if dispatch:
        facts.append(("Dispatch", tuple(dispatch)))
    if function.location is not None and function.location != said:
        facts.append(("Implemented in", location_text(function.location)))
    elif function.location is None and function.kind == "generated":
        facts.append(("Implemented in", "code that is generated when PyTorch is built"))
    # What the recording process's dispatcher said: code that replaced PyTorch's, or serves a custom one.
    registration = function.details.get("registration") or {}
    label = "Overridden by" if registration.get("overrides") else "Registered"
    for key, registered in (registration.get("kernels") or {}).items():
        code = Code(registered or "code of unknown place")
        facts.append((label, (f"{key} → ", code, graded(Grade.EXACT))))
    launchers = function.details.get("launchers") or []
    place = function.stub_location
    if place is None:
        return [*facts, ("May launch through", joined(map(Code, launchers)))] if launchers else facts
    parts: tuple[Inline, ...] = () if place == said else inlines(location_text(place))
    if function.stub is not None:
        parts = (Code(function.stub), " → " if parts else "", *parts)
    elif len(launchers) == 1:
        parts = (Code(launchers[0]), " in " if parts else "", *parts)
    return [*facts, ("Launches through", parts)] if parts else facts


def location_text(location: SourceLocation) -> Text:
    """File and line, linked where there is an address, with their grades."""
    name: Inline = Code(str(location)) if location.url is None else Link(str(location), location.url)
    if location.line is None or location.line_grade == location.file_grade:
        return (name, graded(location.file_grade))
    return (name, f" (file: {location.file_grade}, line: {location.line_grade})")


def graded(grade: Grade | None) -> str:
    """A grade in brackets, to stand behind what it grades."""
    return "" if grade is None else f" ({grade})"


def release_text(version: str | None, grade: Grade | None, reason: str | None) -> str:
    """The PyTorch release that answers are for, and how it was found."""
    if version is None:
        return "not recognized" + (f": {reason}" if reason else "")
    return version + (f" ({grade}: {reason})" if reason and grade is not None else graded(grade))


def accuracy_blocks(summary: Summary, *, is_full: bool) -> tuple[Block, ...]:
    """Which share of the device time something is known of, in full by grade; nothing if not measured."""
    accuracy, meaning = summary.accuracy, None
    if accuracy is None:
        return ()
    if accuracy.aten_operator_file_fraction is not None:
        known = format_fraction(accuracy.aten_operator_file_fraction)
        meaning = Meaning(
            f"Times are exact; the source file is known for {known} of the time of PyTorch's operators."
        )
    release = release_text(summary.torch_version, summary.torch_version_grade, summary.torch_version_reason)
    if not is_full:
        units = ", ".join(
            f"{format_fraction(share)} {grade}" for grade, share in accuracy.by_grade["kernel_unit"].items()
        )
        operators = (
            f"{format_fraction(accuracy.aten_operator_entry_fraction)} of their time with a yaml entry, "
            f"{format_fraction(accuracy.aten_operator_file_fraction)} with a file, "
            f"{format_fraction(accuracy.aten_operator_line_fraction)} with a line"
        )
        if accuracy.aten_operator_entry_fraction is None:
            operators = "none with device time"
        shown = facts(
            ("PyTorch release", release),
            ("ATen operators", operators),
            ("PyTorch's kernels", f"translation unit: {units or 'none recorded'}"),
            ("Kernel names", f"{format_fraction(accuracy.family_fraction)} of device time with a family"),
        )
        return blocks(shown, meaning)
    figures = (
        ("Attributed to an operator", accuracy.attributed_fraction),
        ("ATen operators with a yaml entry", accuracy.aten_operator_entry_fraction),
        ("… with the file of their function", accuracy.aten_operator_file_fraction),
        ("… and the line", accuracy.aten_operator_line_fraction),
        ("PyTorch's kernels with a translation unit", accuracy.aten_kernel_unit_fraction),
        ("… with exactly one", accuracy.aten_kernel_single_unit_fraction),
        ("Kernel names with a family", accuracy.family_fraction),
    )
    meanings = "; ".join(f"{grade}: {grade.meaning}" for grade in Grade)

    def share_of(item: tuple[str, Mapping[str, float]], *, grade: str) -> str:
        return format_fraction(item[1].get(grade))

    return blocks(
        Paragraph("Shares of device time, of what each line names. How they are measured: docs/accuracy.md."),
        facts(("PyTorch release", release), *((label, format_fraction(share)) for label, share in figures)),
        table(
            [item for item in accuracy.by_grade.items() if item[1]],
            words("Fact", lambda item: item[0].replace("_", " ").capitalize()),
            *(number(grade, partial(share_of, grade=grade)) for grade in (*map(str, Grade), UNGRADED)),
        ),
        Paragraph(f"Grades: {meanings}."),
        meaning,
    )


_OUTSIDE = {
    "triton": "a Triton kernel launched by compiled code",
    "custom": "a custom operator: no entry in native_functions.yaml",
    "range": "a recorded range, not a dispatcher operator",
    "native": "no entry in the native_functions.yaml at hand",
}
