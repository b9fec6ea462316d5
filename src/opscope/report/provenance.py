"""The chain from an operator to its source, for readers: each link with how well it is known."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from opscope.analysis.provenance import UNKNOWN as UNGRADED
from opscope.analysis.provenance import NativeFunctionUse
from opscope.analysis.summary import Summary
from opscope.analysis.totals import OperatorTotal
from opscope.model.evidence import Grade
from opscope.model.location import SourceLocation
from opscope.report import document as doc
from opscope.units import format_count, format_fraction

_UNKNOWN = "unknown"
_CALLED = 4


def operator_chain_facts(operator: OperatorTotal, *, has_device: bool) -> list[tuple[str, doc.Text]]:
    """Native function, its dispatch, and the file of the device code; unknown is said."""
    label = "CUDA source file" if has_device else "Source file"
    if not operator.native_functions:
        return [("Native function", _UNKNOWN), (label, _UNKNOWN)]
    first, *others = operator.native_functions
    source = operator.source
    told = function_facts(first, said=source)
    if others:
        overloads = (
            "some that the trace does not tell"
            if one.overload is None
            else one.overload or "the default overload"
            for one in others
        )
        told.append(("Other overloads", ", ".join(dict.fromkeys(overloads))))
    if operator.called_operators:
        called = (
            (doc.Code(name), f" ×{format_count(calls)}") for name, calls, _ in operator.called_operators
        )
        told.append(("Called operators", doc.joined(called, most=_CALLED)))
    told.append((label, _UNKNOWN if source is None else location_text(source)))
    return told


def function_facts(
    function: NativeFunctionUse, *, said: SourceLocation | None = None
) -> list[tuple[str, doc.Text]]:
    if function.kind != "backward":
        return [entry_fact(function), *implementation_facts(function, said=said)]
    details = function.details
    if not details.get("forward"):
        return [("Native function", "an autograd node; its forward operator is unknown")]
    known = (*doc.joined(map(doc.Code, details["forward"])), graded(function.overload_grade))
    told: list[tuple[str, doc.Text]] = [("Backward of", known)]
    for name, formula in (details.get("formulas") or {}).items():
        told.append((f"Gradient of {name}", doc.Code(formula, is_whole=True)))
    line, url = details.get("derivatives_line"), details.get("yaml_url")
    return [*told, ("Defined in", doc.Link(f"derivatives.yaml:{line}", url))] if line and url else told


def entry_fact(function: NativeFunctionUse) -> tuple[str, doc.Text]:
    candidates = function.details.get("candidates")
    if candidates:
        names = ", ".join(candidate or "the default one" for candidate in candidates)
        text: tuple[doc.Inline, ...] = (
            doc.Code(function.name),
            f"; the trace does not tell which overload: {names}",
        )
        return "Native function", (*text, graded(function.overload_grade))
    if function.schema is None:
        return "Native function", _OUTSIDE.get(function.kind, _UNKNOWN)
    text = (doc.Code(function.schema, is_whole=True),)
    if function.yaml_line is not None:
        place = f"native_functions.yaml:{function.yaml_line}"
        url = function.details.get("yaml_url")
        text += (" in ", doc.Link(place, url) if url else doc.Code(place))
    return "Native function", (*text, graded(function.overload_grade))


def implementation_facts(
    function: NativeFunctionUse, *, said: SourceLocation | None = None
) -> list[tuple[str, doc.Text]]:
    """What serves calls of a native function on the device, down to where it launches; arguments as above."""
    dispatch: list[doc.Inline] = []
    if function.structured_delegate:
        dispatch += ["structured, by ", doc.Code(function.structured_delegate)]
    if function.dispatch_key:
        separator = "; " if dispatch else ""
        dispatch += [f"{separator}{function.dispatch_key} → ", doc.Code(function.cuda_function or _UNKNOWN)]
    implemented: doc.Text | None = None
    if function.location is None and function.kind == "generated":
        implemented = "code that is generated when PyTorch is built"
    elif function.location is not None and function.location != said:
        implemented = location_text(function.location)
    told = [*doc.facts(("Dispatch", tuple(dispatch)), ("Implemented in", implemented)).facts]
    # What the recording process's dispatcher said: code that replaced PyTorch's, or serves a custom one.
    registration = function.details.get("registration") or {}
    label = "Overridden by" if registration.get("overrides") else "Registered"
    for key, registered in (registration.get("kernels") or {}).items():
        code = doc.Code(registered or "code of unknown place")
        told.append((label, (f"{key} → ", code, graded(Grade.EXACT))))
    launchers = function.details.get("launchers") or []
    place = function.stub_location
    if place is None:
        return [*told, ("May launch through", doc.joined(map(doc.Code, launchers)))] if launchers else told
    parts: tuple[doc.Inline, ...] = () if place == said else doc.inlines(location_text(place))
    if function.stub is not None:
        parts = (doc.Code(function.stub), " → " if parts else "", *parts)
    elif len(launchers) == 1:
        parts = (doc.Code(launchers[0]), " in " if parts else "", *parts)
    return [*told, ("Launches through", parts)] if parts else told


def location_text(location: SourceLocation) -> doc.Text:
    """File and line, linked where there is an address, with their grades: "≈" is the grade of its line."""
    text, of_file, of_line = str(location), location.file_grade, location.line_grade
    name: doc.Inline = doc.Code(text) if location.url is None else doc.Link(text, location.url)
    if of_line is Grade.NEIGHBOR_VERSION:
        return (name, "" if of_file is of_line else graded(of_file))
    if of_line in (None, of_file):
        return (name, graded(of_file))
    return (name, f" (file: {of_file}, line: {of_line})")


def graded(grade: Grade | None) -> str:
    """A grade in brackets, to stand behind what it grades."""
    return "" if grade is None else f" ({grade})"


def release_text(version: str | None, grade: Grade | None, reason: str | None) -> str:
    """The PyTorch release that answers are for, and how it was found."""
    if version is None:
        return "not recognized" + (f": {reason}" if reason else "")
    return version + (f" ({grade}: {reason})" if reason and grade is not None else graded(grade))


def accuracy_blocks(summary: Summary, *, is_full: bool) -> tuple[doc.Block, ...]:
    """Which share of the device time something is known of, in full by grade; nothing if not measured."""
    accuracy, meaning = summary.accuracy, None
    if accuracy is None:
        return ()
    if accuracy.aten_operator_file_fraction is not None:
        known = format_fraction(accuracy.aten_operator_file_fraction)
        meaning = doc.Meaning(
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
        shown = doc.facts(
            ("PyTorch release", release),
            ("ATen operators", operators),
            ("PyTorch's kernels", f"translation unit: {units or 'none recorded'}"),
            ("Kernel names", f"{format_fraction(accuracy.family_fraction)} of device time with a family"),
        )
        return doc.blocks(shown, meaning)
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

    return doc.blocks(
        doc.Paragraph(
            "Shares of device time, of what each line names. How they are measured: docs/accuracy.md."
        ),
        doc.facts(
            ("PyTorch release", release), *((label, format_fraction(share)) for label, share in figures)
        ),
        doc.table(
            [item for item in accuracy.by_grade.items() if item[1]],
            doc.words("Fact", lambda item: item[0].replace("_", " ").capitalize()),
            *(doc.number(grade, partial(share_of, grade=grade)) for grade in (*map(str, Grade), UNGRADED)),
        ),
        doc.Paragraph(f"Grades: {meanings}."),
        meaning,
    )


_OUTSIDE = {
    "triton": "a Triton kernel launched by compiled code",
    "custom": "a custom operator: no entry in native_functions.yaml",
    "range": "a recorded range, not a dispatcher operator",
    "native": "no entry in the native_functions.yaml at hand",
}
