"""What is known of an operator, a function or a kernel, down to its source; each link with its grade."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain, groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from opscope.analysis.launch_quality import ExplainedLaunch
from opscope.analysis.provenance import UNKNOWN as UNGRADED
from opscope.analysis.provenance import KernelFacts, NativeFunctionUse
from opscope.analysis.summary import Summary
from opscope.analysis.totals import OperatorTotal
from opscope.launches.launch_explanation import Heading
from opscope.model.origin import Grade, SourceLocation
from opscope.provenance.kernel_names.vocabulary import MEANING_OF_FAMILY
from opscope.report import document as doc
from opscope.report.names import INDEX
from opscope.units import format_count, format_fraction

if TYPE_CHECKING:
    from opscope.analysis.counters import OperatorImprovement

_UNKNOWN = "unknown"
_CALLED = 4


def operator_chain_facts(operator: OperatorTotal, *, has_device: bool) -> tuple[tuple[str, doc.Text], ...]:
    """Native function, its dispatch, and the file of the device code; unknown is said."""
    label, source = "CUDA source file" if has_device else "Source file", operator.source
    if not operator.native_functions:
        return (("Native function", _UNKNOWN), (label, _UNKNOWN))
    first, *others = operator.native_functions
    overloads = (
        "some that the trace does not tell"
        if one.overload is None
        else one.overload or "the default overload"
        for one in others
    )
    called = ((doc.Code(name), f" ×{format_count(calls)}") for name, calls, _ in operator.called_operators)
    return doc.facts(
        *function_facts(first, said=source),
        ("Other overloads", ", ".join(dict.fromkeys(overloads))),
        ("Called operators", doc.joined(called, most=_CALLED)),
        (label, _UNKNOWN if source is None else location_text(source)),
    ).facts


def function_facts(
    function: NativeFunctionUse, *, said: SourceLocation | None = None
) -> tuple[tuple[str, doc.Text], ...]:
    if function.kind != "backward":
        return (entry_fact(function), *implementation_facts(function, said=said))
    details = function.details
    if not details.get("forward"):
        return (("Native function", "an autograd node; its forward operator is unknown"),)
    known = (*doc.joined(map(doc.Code, details["forward"])), graded(function.overload_grade))
    formulas = (details.get("formulas") or {}).items()
    line, url = details.get("derivatives_line"), details.get("yaml_url")
    return doc.facts(
        ("Backward of", known),
        *((f"Gradient of {name}", doc.Code(formula, is_whole=True)) for name, formula in formulas),
        ("Defined in", doc.Link(f"derivatives.yaml:{line}", url) if line and url else None),
    ).facts


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
) -> tuple[tuple[str, doc.Text], ...]:
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
    # What the recording process's dispatcher said: code that replaced PyTorch's, or serves a custom one.
    registration = function.details.get("registration") or {}
    label = "Overridden by" if registration.get("overrides") else "Registered"
    registered = (
        (label, (f"{key} → ", doc.Code(code or "code of unknown place"), graded(Grade.EXACT)))
        for key, code in (registration.get("kernels") or {}).items()
    )
    launchers, place = function.details.get("launchers") or [], function.stub_location
    parts: tuple[doc.Inline, ...] = ()
    if place is not None:
        parts = () if place == said else doc.inlines(location_text(place))
        if function.stub is not None:
            parts = (doc.Code(function.stub), " → " if parts else "", *parts)
        elif len(launchers) == 1:
            parts = (doc.Code(launchers[0]), " in " if parts else "", *parts)
    return doc.facts(
        ("Dispatch", tuple(dispatch)),
        ("Implemented in", implemented),
        *registered,
        ("May launch through", doc.joined(map(doc.Code, launchers)) if place is None else None),
        ("Launches through", parts),
    ).facts


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


def accuracy_blocks(summary: Summary) -> tuple[doc.Block, ...]:
    """Which share of the device time something is known of, by grade; nothing if not measured."""
    accuracy = summary.accuracy
    if accuracy is None:
        return ()
    release = release_text(summary.torch_version, summary.torch_version_grade, summary.torch_version_reason)
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
    return doc.blocks(
        doc.Paragraph(
            "Shares of device time, of what each line names. How they are measured: docs/accuracy.md."
        ),
        doc.facts(
            ("PyTorch release", release), *((label, format_fraction(share)) for label, share in figures)
        ),
        doc.table(
            [one for one in (*map(str, Grade), UNGRADED) if one in {*chain(*accuracy.by_grade.values())}],
            doc.words("Grade", str),
            *(
                doc.number(fact.replace("_", " ").capitalize(), shares.get, format_fraction)
                for fact, shares in accuracy.by_grade.items()
                if shares
            ),
        ),
        doc.Paragraph(f"Grades: {meanings}."),
    )


_OUTSIDE = {
    "triton": "a Triton kernel launched by compiled code",
    "custom": "a custom operator: no entry in native_functions.yaml",
    "range": "a recorded range, not a dispatcher operator",
    "native": "no entry in the native_functions.yaml at hand",
}


_UNITS = 4
_LONG_ARGUMENT = 48  # characters; longer template arguments get a line of their own


def kernel_meaning(facts: KernelFacts) -> str | None:
    """What kernels of its family do; None if its family is not known."""
    return MEANING_OF_FAMILY.get(facts.family or "")


def kernel_facts(facts: KernelFacts, *, title: str | None = None) -> tuple[tuple[str, doc.Text], ...]:
    meaning, family, units = kernel_meaning(facts), facts.grades.get("family"), facts.units
    stated = []
    for grade in Grade:  # the fields its name states, one text for each grade
        fields = [name for name in _WORDS if name in facts.fields and facts.grades.get(name) == grade]
        if said := [word for name in fields if (word := _WORDS[name](facts.fields[name]))]:
            stated.append(f"{', '.join(said)}{graded(grade)}")
    more = f" and {len(units) - _UNITS} more" if len(units) > _UNITS else ""
    place, template = facts.location, facts.template
    # A file without a line or an address says no more than the unit.
    if place is not None and place.line is None and place.url is None and units == (place.file,):
        place = None
    long = [
        (f"… {name}", doc.Code(value))
        for name, value in facts.template_arguments
        if name and len(value) > _LONG_ARGUMENT
    ]
    short = [
        doc.Code(value if name is None else f"{name}={value}")
        for name, value in facts.template_arguments
        if not name or len(value) <= _LONG_ARGUMENT
    ]
    return doc.facts(
        ("Name", None if title == facts.name else doc.Code(facts.name, is_whole=True)),
        ("Does", meaning and (meaning, graded(Grade(family) if family else None))),
        ("By its name", "; ".join(stated)),
        ("Translation unit", units and (doc.Code(", ".join(units[:_UNITS])), more, graded(facts.unit_grade))),
        ("Registered by", None if facts.binary is None else doc.Code(facts.binary)),
        ("Source", None if place is None else location_text(place)),
        ("Template", location_text(template) if template and template != facts.location else None),
        # A text: one argument alone is no name to shorten.
        ("Template arguments", ("", *doc.joined(short)) if short else None),
        *long,
        *_computed(facts),
        *_launched(facts),
    ).facts


_MOST_MODULES = 8
_COMPILED = {"num_warps": "warps", "num_stages": "stages"}


def _launched(facts: KernelFacts) -> Iterator[tuple[str, doc.Text]]:
    for one in facts.triton.get("configurations", ()):
        parts = [str(one["kernel_kwargs"] or "")]
        parts += [f"{one[name]} {word}" for name, word in _COMPILED.items() if one[name]]
        yield "Compiled with", (", ".join(part for part in parts if part), graded(Grade.EXACT))
    counts = [
        f"{facts.triton[name]:g} {unit}"
        for name, unit in (("kernel_flop", "FLOP"), ("kernel_num_gb", "GB moved"))
        if name in facts.triton
    ]
    if counts:
        yield "By the compiler's count", f"{', '.join(counts)} a launch"


def _computed(facts: KernelFacts) -> Iterator[tuple[str, doc.Text]]:
    """What generated code stands for, by graph: operators, and lines of the program where they are known."""
    for code in facts.generated:
        where = f" of {code.graph}" if code.graph else ""
        if code.original_aten:
            yield f"Computes{where}", (doc.Code(", ".join(code.original_aten)), graded(Grade.EXACT))
        if code.modules:  # those of equal layers as one: `layers.*.norm ×12`
            counts = Counter(INDEX.sub("*", name) or "the model itself" for name in code.modules)
            names = [
                f"{name} ×{count}" if count > 1 else name for name, count in counts.most_common(_MOST_MODULES)
            ]
            names += [f"{len(counts) - len(names)} more"] if len(counts) > len(names) else []
            yield f"In modules{where}", (doc.Code(", ".join(names)), graded(Grade.EXACT))
        for place, text in code.program_lines:
            yield "For the line", (doc.Code(place), f": {text}" if text else "", graded(Grade.EXACT))


def _times(extent: Any) -> str:
    return str(extent).replace("x", "×")


_WORDS: dict[str, Callable[[Any], str]] = {
    "library": "from {}".format,
    "variant": str,
    "direction": str,
    "operation": "operation {}".format,
    "collective": str,
    "copy_direction": lambda value: str(value).replace("_", " "),
    "host_memory": "{} host memory".format,
    "architecture": "compiled for {}".format,
    "tensor_core": lambda value: "tensor cores" if value else "no tensor cores",
    "operand_type": "operands {}".format,
    "multiply_type": "multiplied as {}".format,
    "accumulator_type": "accumulated in {}".format,
    "output_type": "result {}".format,
    "layout": "layout {}".format,
    "tile": lambda value: f"tile {_times(value)}",
    "mma_shape": lambda value: f"matrix instruction {_times(value)}",
    "stages": "{} pipeline stages".format,
    "cluster": lambda value: f"cluster {_times(value)}",
    "split_k": lambda value: "split along K" if value else "not split along K",
    "vector_width": lambda value: f"{value} elements per load" if value > 1 else "1 element per load",
    "output_vector_width": lambda value: f"{value} outputs per thread" if value > 1 else "",
    "alignment": lambda value: f"aligned to {value} elements" if value > 1 else "any alignment",
    "head_dimension": "heads of up to {}".format,
    "epilogue": "epilogue {}".format,
    "fused_operators": lambda value: f"fuses {', '.join(map(str, value))}",
    "fused_operators_may_be_cut": lambda value: "and perhaps others" if value else "",
}


_TITLES = {
    Heading.PARALLEL_OVER: "Parallel over",
    Heading.BLOCK_COMPUTES: "One thread block",
    Heading.LAUNCH: "Launch",
    Heading.WAVES: "Waves",
    Heading.MEMORY: "Memory",
    Heading.SYNCHRONIZATION: "Synchronization",
    Heading.ALGORITHM: "Algorithm",
}


def launch_blocks(
    summary: Summary, operator: str | None, kernel: str, *, names_kernel: bool = False
) -> tuple[doc.Block, ...]:
    """The explanation of a kernel's longest launch under an operator; nothing where nothing is known."""
    first = next(iter(explained_launches(summary, operator, kernel)), None)
    if first is None:
        return ()
    opening: list[doc.Inline] = ["How it parallelizes"]
    if names_kernel:
        known = next((one.facts for one in summary.kernels if one.name == kernel), None)
        opening += [", ", doc.Code(kernel if known is None else known.title)]
    if first.shapes:
        opening += [", called with shapes ", doc.Code(first.shapes)]
    facts = []
    for heading in Heading:
        # A grade that several sentences in a row share is said once, after the last.
        runs = groupby(first.explanation.under(heading), attrgetter("grade"))
        said = (f"{' '.join(one.text for one in run)} ({grade})" for grade, run in runs)
        facts.append((_TITLES[heading], " ".join(said)))
    return (doc.Paragraph((*opening, ":")), doc.facts(*facts))


def explained_launches(summary: Summary, operator: str | None, kernel: str) -> tuple[ExplainedLaunch, ...]:
    """A kernel's longest launch configurations under an operator, explained; empty if nothing is known."""
    return summary.accounts.get((operator, kernel)) or summary.accounts.get((None, kernel)) or ()


_OPEN = "not in the recording; hardware counters show it"


def improvement_blocks(found: OperatorImprovement) -> tuple[doc.Block, ...]:
    """What is known by topic, and the command for what is not."""
    still_open = [str(one.topic) for one in found.topics if one.known is None and one.needs_counters]
    known = doc.facts(
        *((str(one.topic).capitalize(), one.known) for one in found.topics),
        (", ".join(still_open).capitalize(), _OPEN if still_open else None),
    )
    how = "To read what only counters show:"
    opening = doc.Paragraph(("Room for improvement, ", doc.Code(found.kernel), ":"))
    return opening, known, doc.Paragraph(how), doc.CodeBlock(found.command, "bash")
