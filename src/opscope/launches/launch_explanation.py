"""How one launch of a CUDA kernel is parallel: told from its name, geometry, operator call and device.

`explain(launch)` gives graded sentences under fixed headings: what is independent, what a block computes,
whether the launched grid follows from the recorded shapes, waves on this device, memory, synchronization,
algorithm. The sentences are data, `launch_explanations.toml`; rules work out their numbers. A sentence whose
numbers are unknown is not said; a launch that its rule does not predict is said to be unexplained.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import msgspec

from opscope.data import packaged_toml
from opscope.hardware.occupancy import Limiter, Waves
from opscope.launches import elementwise, matrix_product, rows
from opscope.launches.facts import LaunchFacts, Prediction, extent_text
from opscope.model.origin import Grade
from opscope.text_enum import TextEnum
from opscope.units import counted, format_bytes, format_fraction

_RULES: Mapping[str, Callable[[LaunchFacts], Prediction]] = {
    rule.__name__: rule
    for rule in (
        elementwise.vectorized, elementwise.unrolled, elementwise.strided, elementwise.several_outputs,
        elementwise.program, matrix_product.tiled_product, matrix_product.product, matrix_product.dot_product,
        matrix_product.convolution, rows.reduction, rows.warp_softmax, rows.block_softmax,
        rows.spatial_softmax, rows.layer_norm, rows.column_sums, rows.batch_norm, rows.group_norm,
        rows.attention, rows.attention_parts,
    )
}  # fmt: skip


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


class Statement(msgspec.Struct, frozen=True):
    heading: Heading
    text: str
    grade: Grade


class LaunchExplanation(msgspec.Struct, frozen=True):
    family: str | None  # of the kernel; None if no rule knows it: then only its geometry is told
    statements: tuple[Statement, ...]  # by heading, in the order of Heading
    # Whether a documented configuration gives the recorded launch; None if none is predicted
    is_predicted: bool | None = None
    waves: Waves | None = None  # None without device limits

    def under(self, heading: Heading) -> tuple[Statement, ...]:
        return tuple(statement for statement in self.statements if statement.heading is heading)


def explain(launch: LaunchFacts) -> LaunchExplanation | None:
    operator = "" if launch.call is None else launch.call.name
    entry = _entry_of(launch.kernel.function or "", launch.kernel.family, operator)
    statements, is_predicted = list[Statement](), None
    if entry is not None:
        predicted = _RULES[entry["rule"]](launch) if "rule" in entry else Prediction()
        values = {
            "threads": launch.thread_count,
            "block": None if launch.block is None else extent_text(launch.block),
            "width": None if launch.block is None else launch.block[0],
            "height": None if launch.block is None else launch.block[1],
            "blocks": launch.block_count,
            "sm_count": launch.sm_count,
            "functor": launch.kernel.functor,
            "moved": format_bytes(launch.size_bytes) if launch.size_bytes else None,
            "sides": _COPY_SIDES.get(launch.kernel.copy_direction or ""),
            **entry.get("values", {}),
            **entry.get("values_of", {}).get(launch.function_name, {}),
            **predicted.values,
        }
        grade = entry.get("grade", Grade.NAME_PATTERN)
        for heading in Heading:
            for item in entry.get(heading.value, ()):
                statements += _said(heading, item, values, grade)
        if launch.grid is not None and predicted.expected:
            found = [one for one in predicted.expected if one.matches(launch)]
            is_predicted, expected = bool(found), (found or predicted.expected)[0]
            launched = f"grid {extent_text(launch.grid)} of blocks of {extent_text(launch.block)} threads"
            text = f"Launched as {launched}, as predicted from the recording: {expected.formula}."
            if not found:
                grid = f"grid {extent_text(expected.grid)} ({expected.formula})"
                text = f"Not as predicted: launched as {launched}, but the recording predicts {grid}."
            statements.append(Statement(Heading.LAUNCH, text, Grade(entry.get("launch_grade", grade))))
    statements += _wave_statements(launch)
    registers, shared = launch.geometry.registers_per_thread, launch.geometry.shared_memory_bytes
    if registers:
        threads = launch.thread_count
        per_block = f" ({registers * threads:,} per block of {threads:,})" if threads else ""
        text = f"{registers} registers per thread{per_block}."
        statements.append(Statement(Heading.MEMORY, text, Grade.EXACT))
    if shared is not None:
        text = f"{shared:,} B of shared memory per block." if shared else "No shared memory."
        statements.append(Statement(Heading.MEMORY, text, Grade.EXACT))
    if not statements:
        return None
    order = list(Heading)
    statements.sort(key=lambda one: order.index(one.heading))  # stable: a family's own order stays
    name = None if entry is None else entry["family"]
    return LaunchExplanation(name, tuple(statements), is_predicted, launch.waves)


def read_explanations() -> Mapping[str, Any]:
    return packaged_toml(__package__, "launch_explanations.toml")


@cache
def _entry_of(function: str, family: str | None, operator: str) -> Mapping[str, Any] | None:
    """By function name where the source is known, else by the family that the name was decoded to."""
    entries: list[dict[str, Any]] = read_explanations()["kernels"]
    for entry in entries:
        is_named = re.fullmatch(entry.get("functions", ".*"), function.rpartition("::")[2])
        is_meant = is_named and entry.get("within", "") in function and entry.get("operator", "") in operator
        if is_meant and "decoded" not in entry:
            return entry
    return next((entry for entry in entries if entry.get("decoded", "") == family), None)


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


def _said(heading: Heading, item: Any, values: Mapping[str, Any], grade: str) -> Iterator[Statement]:
    """The sentence with its values; nothing where one is unknown or a condition does not hold."""
    given = {"text": item} if isinstance(item, str) else item
    for condition in given["if"].split(" and ") if "if" in given else ():
        name = condition.removeprefix("not ")
        if bool(values.get(name)) == (name != condition):
            return
    template = given["text"]
    template = read_explanations()["shared"][template[1:]] if template.startswith("@") else template
    stated = given.get("grade", grade)
    for member in values.get(given["each"], ()) if "each" in given else ({},):
        if (text := _worded(template, {**values, **member})) is not None:
            yield Statement(heading, text, Grade(values.get(stated, stated)))


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
    names = {Limiter.BLOCKS: "blocks per multiprocessor", Limiter.SHARED_MEMORY: "shared memory"}
    limit = " and ".join(names.get(limiter, str(limiter)) for limiter in held.limiters)
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
