"""What is known of one kernel, as blocks of a report and JSON: its name, its launches, what to improve."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import Any

from opscope.analysis.counter_commands import OperatorImprovement
from opscope.analysis.launch_quality import ExplainedLaunch
from opscope.analysis.provenance import KernelFacts
from opscope.analysis.summary import Summary
from opscope.launches.launch_explanation import Heading
from opscope.model.evidence import Grade
from opscope.provenance.kernel_names.vocabulary import FAMILIES
from opscope.report import document as doc
from opscope.report.provenance import graded, location_text

_MEANINGS = {family.name: family.meaning for family in FAMILIES}
_UNITS = 4
_LONG_ARGUMENT = 48  # characters; longer template arguments get a line of their own


def kernel_meaning(facts: KernelFacts) -> str | None:
    """What kernels of its family do; None if its family is not known."""
    return _MEANINGS.get(facts.family or "")


def kernel_facts(facts: KernelFacts, *, title: str | None = None) -> list[tuple[str, doc.Text]]:
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
    named = [(name, value) for name, value in facts.template_arguments if name]
    long = [(f"… {name}", doc.Code(value)) for name, value in named if len(value) > _LONG_ARGUMENT]
    short = [
        doc.Code(value if name is None else f"{name}={value}")
        for name, value in facts.template_arguments
        if not name or len(value) <= _LONG_ARGUMENT
    ]
    known = doc.facts(
        ("Name", None if title == facts.name else doc.Code(facts.name, is_whole=True)),
        ("Does", meaning and (meaning, graded(Grade(family) if family else None))),
        ("By its name", "; ".join(stated)),
        ("Translation unit", units and (doc.Code(", ".join(units[:_UNITS])), more, graded(facts.unit_grade))),
        ("Registered by", None if facts.binary is None else doc.Code(facts.binary)),
        ("Source", None if place is None else location_text(place)),
        ("Template", location_text(template) if template and template != facts.location else None),
        # A text: one argument alone is no name to shorten.
        ("Template arguments", ("", *doc.joined(short)) if short else None),
    )
    return [*known.facts, *long, *_computed(facts), *_launched(facts)]


_INDEX = re.compile(r"(?<![^.])\d+(?![^.])")
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
            counts = Counter(_INDEX.sub("*", name) or "the model itself" for name in code.modules)
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
    launches = explained_launches(summary, operator, kernel)
    if not launches:
        return ()
    first = launches[0]
    opening: list[doc.Inline] = ["How it parallelizes"]
    if names_kernel:
        known = next((one.facts for one in summary.kernels if one.name == kernel), None)
        opening += [", ", doc.Code(kernel if known is None else known.title)]
    if first.shapes:
        opening += [", called with shapes ", doc.Code(first.shapes)]
    facts: list[tuple[str, doc.Text]] = []
    for heading in Heading:
        # A grade that several sentences in a row share is said once, after the last.
        runs = groupby(first.explanation.under(heading), attrgetter("grade"))
        said = [f"{' '.join(one.text for one in run)} ({grade})" for grade, run in runs]
        facts += [(_TITLES[heading], " ".join(said))] if said else []
    return (doc.Paragraph((*opening, ":")), doc.FactList(tuple(facts)))


def explained_launches(summary: Summary, operator: str | None, kernel: str) -> tuple[ExplainedLaunch, ...]:
    """A kernel's longest launch configurations under an operator, explained; empty if nothing is known."""
    return summary.accounts.get((operator, kernel)) or summary.accounts.get((None, kernel)) or ()


_OPEN = "not in the recording; hardware counters show it"


def improvement_blocks(found: OperatorImprovement) -> list[doc.Block]:
    """What is known by topic, and the ncu command for what is not."""
    facts: list[tuple[str, doc.Text]] = [
        (str(one.topic).capitalize(), one.known) for one in found.topics if one.known is not None
    ]
    still_open = [str(one.topic) for one in found.topics if one.known is None and one.needs_counters]
    if still_open:
        facts.append((", ".join(still_open).capitalize(), _OPEN))
    blocks: list[doc.Block] = [
        doc.Paragraph(("Room for improvement, ", doc.Code(found.kernel), ":")),
        doc.FactList(tuple(facts)),
    ]
    if found.command is not None:
        blocks += [
            doc.Paragraph(
                "To read what only counters show, for its longest launch (counted from the start of the "
                "recording):"
            ),
            doc.CodeBlock(found.command, "bash"),
        ]
    return blocks
