"""How one launch of a CUDA kernel is parallel: told from its name, geometry, operator call and device.

`explain(launch)` gives graded sentences under fixed headings: what is independent, what a block computes,
whether the launched grid follows from the recorded shapes, waves on this device, memory, synchronization,
algorithm. The sentences are data, `launch_explanations.toml`; rules work out their numbers. A sentence whose
numbers are unknown is not said; a launch that its rule does not predict is said to be unexplained.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

import tomli

from opscope.hardware.occupancy import Limiter, Waves
from opscope.launches import (
    attention,
    elementwise,
    matrix_product,
    normalization,
    reduction,
    triton,
)
from opscope.launches.facts import LaunchFacts
from opscope.launches.prediction import (
    Expected,
    Prediction,
    Rule,
    extent_text,
)
from opscope.model.evidence import Grade
from opscope.text_enum import TextEnum
from opscope.units import counted, format_bytes, format_fraction

__all__ = [
    "Heading",
    "LaunchCheck",
    "LaunchExplanation",
    "LaunchFamily",
    "Sentence",
    "Statement",
    "all_families",
    "explain",
]

_RULES = {
    "attention": attention,
    "elementwise": elementwise,
    "matrix_product": matrix_product,
    "normalization": normalization,
    "reduction": reduction,
    "triton": triton,
}


class Heading(TextEnum):
    """What a statement is about; also the order of an explanation."""

    PARALLEL_OVER = "parallel_over"
    BLOCK_COMPUTES = "block_computes"
    LAUNCH = "launch"
    WAVES = "waves"
    MEMORY = "memory"
    SYNCHRONIZATION = "synchronization"
    ALGORITHM = "algorithm"


_COPY_SIDES = {
    "host_to_device": "from host to device",
    "device_to_host": "from device to host",
    "device_to_device": "within the device",
    "peer_to_peer": "between devices",
    "host_to_host": "within the host",
}
_ORDER = {heading: rank for rank, heading in enumerate(Heading)}


@dataclass(frozen=True)
class Statement:
    """One sentence, with the grade of its evidence."""

    heading: Heading
    text: str
    grade: Grade


@dataclass(frozen=True)
class LaunchCheck:
    """A recorded launch held against a rule: `matched` is what explains it, None if nothing does."""

    tried: tuple[Expected, ...]
    matched: Expected | None
    grade: Grade

    @property
    def is_explained(self) -> bool:
        """A documented configuration gives the recorded launch."""
        return self.matched is not None


@dataclass(frozen=True)
class LaunchExplanation:
    """How one launch of a kernel is parallel."""

    family: str | None  # of the kernel; None if no rule knows it: then only its geometry is told
    statements: tuple[Statement, ...]  # by heading, in the order of Heading
    launch_check: LaunchCheck | None = None  # None if the rule had not the numbers to predict a launch
    waves: Waves | None = field(default=None, compare=False)  # None without device limits

    def under(self, heading: Heading) -> tuple[Statement, ...]:
        """Statements of one heading."""
        return tuple(statement for statement in self.statements if statement.heading is heading)


@dataclass(frozen=True)
class Sentence:
    """A sentence with places for values, and when it is said: see the head of the file."""

    heading: Heading
    text: str
    grade: str
    conditions: tuple[str, ...] = ()
    each: str | None = None


@dataclass(frozen=True)
class LaunchFamily:
    """Kernels that are parallel alike: which they are, the rule that knows their numbers, what is said."""

    name: str
    functions: re.Pattern[str]
    within: str
    operator: str
    rule: Rule | None
    launch_grade: Grade
    sentences: tuple[Sentence, ...]
    values_of: Mapping[str, Mapping[str, Any]]

    def covers(self, launch: LaunchFacts) -> bool:
        """Whether a launch is of the family."""
        return (
            self.functions.fullmatch(launch.function_name) is not None
            and self.within in (launch.kernel.function or "")
            and self.operator in ("" if launch.call is None else launch.call.name)
        )


def explain(launch: LaunchFacts) -> LaunchExplanation | None:
    """The explanation of one launch; None if nothing can be said of it."""
    # By function name where the source is known, else by the family the name was decoded to.
    by_function, by_decoded = _families()
    family = next((family for family in by_function if family.covers(launch)), None)
    family = family or by_decoded.get(launch.kernel.family or "")
    statements: list[Statement] = []
    check = None
    if family is not None:
        predicted = family.rule(launch) if family.rule is not None else Prediction()
        check = _check(launch, predicted, family.launch_grade)
        values = {
            "threads": launch.thread_count,
            "blocks": launch.block_count,
            "sm_count": launch.sm_count,
            "functor": launch.kernel.functor,
            "moved": format_bytes(launch.size_bytes) if launch.size_bytes else None,
            "sides": _COPY_SIDES.get(launch.kernel.copy_direction or ""),
            "explained": check is not None and check.is_explained,
            **family.values_of.get(launch.function_name, {}),
            **predicted.values,
        }
        for sentence in family.sentences:
            statements += _said(sentence, values)
    if check is not None:
        statements.append(_launch_statement(launch, check))
    statements += _wave_statements(launch)
    statements += _resource_statements(launch)
    if not statements:
        return None
    statements.sort(key=lambda statement: _ORDER[statement.heading])  # stable: a family's own order stays
    name = None if family is None else family.name
    return LaunchExplanation(name, tuple(statements), check, launch.waves)


def all_families() -> tuple[LaunchFamily, ...]:
    """What the file of sentences holds: families by function name, then those that names are decoded to."""
    by_function, by_decoded = _families()
    return (*by_function, *by_decoded.values())


@cache
def _families() -> tuple[tuple[LaunchFamily, ...], dict[str, LaunchFamily]]:
    file = resources.files(__package__).joinpath("launch_explanations.toml")
    document = tomli.loads(file.read_text(encoding="utf-8"))
    entries = [(entry, _family(entry, document["shared"])) for entry in document["kernels"]]
    by_function = tuple(family for entry, family in entries if "decoded" not in entry)
    return by_function, {entry["decoded"]: family for entry, family in entries if "decoded" in entry}


def _family(entry: Mapping[str, Any], shared: Mapping[str, str]) -> LaunchFamily:
    grade = entry.get("grade", Grade.NAME_PATTERN.value)
    rule = None
    if "rule" in entry:
        module, _, function = entry["rule"].partition(".")
        rule = getattr(_RULES[module], function)
    sentences = []
    for heading in Heading:
        for item in entry.get(heading.value, ()):
            given = {"text": item} if isinstance(item, str) else item
            text = shared[given["text"][1:]] if given["text"].startswith("@") else given["text"]
            conditions = tuple(given["if"].split(" and ")) if "if" in given else ()
            sentences.append(
                Sentence(heading, text, given.get("grade", grade), conditions, given.get("each"))
            )
    return LaunchFamily(
        entry["family"],
        re.compile(entry.get("functions", ".*")),
        entry.get("within", ""),
        entry.get("operator", ""),
        rule,
        Grade(entry.get("launch_grade", grade)),
        tuple(sentences),
        entry.get("values_of", {}),
    )


def _check(launch: LaunchFacts, predicted: Prediction, grade: Grade) -> LaunchCheck | None:
    """The recorded grid and block held against what is expected; None if either side is unknown."""
    tried = tuple(predicted.expected)
    if launch.grid is None or not tried:
        return None
    matched = next((one for one in tried if one.matches(launch.grid, launch.block)), None)
    return LaunchCheck(tried, matched, grade)


class _Wording(string.Formatter):
    """Formats whole numbers as counts: `{rows:row}`, `{rows:independent}`, `{rows:every row}`."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if value is None:
            raise KeyError(format_spec)
        if not isinstance(value, int) or not format_spec[:1].isalpha():
            return str(super().format_field(value, format_spec))
        if format_spec == "independent":
            return "is the only one" if value == 1 else "are independent"
        if format_spec.startswith("every "):
            found = counted(value, format_spec.removeprefix("every "))
            return found if value == 1 else f"All {found}"
        return counted(value, format_spec)


_WORDING = _Wording()
_OPTIONAL = re.compile(r"\[([^\[\]]*)\]")


def _said(sentence: Sentence, values: Mapping[str, Any]) -> Iterator[Statement]:
    """The sentence with its values; nothing where one is unknown or a condition does not hold."""
    for condition in sentence.conditions:
        name = condition.removeprefix("not ")
        if bool(values.get(name)) == (name != condition):
            return
    for item in ({},) if sentence.each is None else values.get(sentence.each, ()):
        text = _worded(sentence.text, {**values, **item})
        if text is not None:
            grade = values.get(sentence.grade, sentence.grade)
            yield Statement(sentence.heading, text, Grade(grade))


def _worded(text: str, values: Mapping[str, Any]) -> str | None:
    """Text with its values, parts in brackets left out if theirs are unknown; None if others are."""
    try:
        parts = [
            (_worded(part, values) or "") if position % 2 else _WORDING.vformat(part, (), values)
            for position, part in enumerate(_OPTIONAL.split(text))  # every second is a part in brackets
        ]
    except KeyError:
        return None
    return "".join(parts)


def _launch_statement(launch: LaunchFacts, check: LaunchCheck) -> Statement:
    launched = f"grid {extent_text(launch.grid)} of blocks of {extent_text(launch.block)} threads"
    if check.matched is not None:
        configuration = f" ({check.matched.configuration})" if check.matched.configuration else ""
        reason = f"{check.matched.formula}{configuration}"
        text = f"Launched as {launched}, as predicted from the recording: {reason}."
    else:
        expected, parts = check.tried[0], []
        if expected.grid is not None and expected.grid[0]:
            parts.append(f"grid {extent_text(expected.grid)}")
        if expected.block is not None:
            parts.append(f"blocks of {extent_text(expected.block)} threads")
        predicted = f"{' of '.join(parts)} ({expected.formula})" if parts else expected.formula
        text = f"Not as predicted: launched as {launched}, but the recording predicts {predicted}."
    return Statement(Heading.LAUNCH, text, check.grade)


def _wave_statements(launch: LaunchFacts) -> Iterator[Statement]:
    """How the blocks meet the multiprocessors: facts of geometry and device, true of any kernel."""
    sm_count, blocks, filled = launch.sm_count, launch.block_count, launch.waves
    if not sm_count or not blocks:
        return
    if blocks < sm_count:
        text = f"{counted(blocks, 'block')} for {counted(sm_count, 'multiprocessor')}: "
        yield Statement(Heading.WAVES, f"{text}{sm_count - blocks} of them get no work.", Grade.EXACT)
    if filled is None:
        return
    held = filled.active
    limit = " and ".join(_limit(limiter) for limiter in held.limiters)
    slots = f"{sm_count} multiprocessors × {counted(held.blocks_per_sm, 'resident block')} (limit: {limit})"
    if filled.count <= 1:
        taken = format_fraction(filled.count)
        text = f"One wave: {blocks:,} of {filled.slots:,} slots, {slots}, are taken ({taken})."
    else:
        full, rest = divmod(blocks, filled.slots)
        last = f", {full} full and a last one of {format_fraction(filled.tail_fraction)}."
        text = f"{blocks:,} blocks over {filled.slots:,} slots, {slots}: {filled.count:.2f} waves"
        text += last if rest else ", all full."
    yield Statement(Heading.WAVES, text, Grade.EXACT)
    yield Statement(
        Heading.WAVES,
        f"A full multiprocessor holds {held.warps_per_sm} of {held.max_warps_per_sm} warps "
        f"({format_fraction(held.occupancy)} occupancy at most).",
        Grade.EXACT,
    )


def _limit(limiter: Limiter) -> str:
    name = str(limiter).replace("_", " ")
    return "blocks per multiprocessor" if limiter is Limiter.BLOCKS else name


def _resource_statements(launch: LaunchFacts) -> Iterator[Statement]:
    """Registers and shared memory as recorded."""
    registers, shared = launch.geometry.registers_per_thread, launch.geometry.shared_memory_bytes
    if registers:
        threads = launch.thread_count
        per_block = f" ({registers * threads:,} per block of {threads:,})" if threads else ""
        yield Statement(Heading.MEMORY, f"{registers} registers per thread{per_block}.", Grade.EXACT)
    if shared is not None:
        text = f"{shared:,} B of shared memory per block." if shared else "No shared memory."
        yield Statement(Heading.MEMORY, text, Grade.EXACT)
