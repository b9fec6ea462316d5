"""What a kernel's name says: one frozen record of optional fields, each with the grade of its evidence.

Readers of names hand over two mappings of fields, those stated by a documented grammar and those inferred
from an observed one; the record is put together here. Names that generators write are read by
`grammars.toml`: a pattern for each, whose groups are fields.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from opscope.data import packaged_toml
from opscope.model.origin import Grade
from opscope.provenance.kernel_names.cxx_name import CxxName, last_part
from opscope.provenance.kernel_names.vocabulary import (
    CATEGORY_OF_FAMILY,
    LETTERS,
    direction_of,
    element_type,
    family_by_rules,
)


@dataclasses.dataclass(frozen=True)
class DecodedKernel:
    """A kernel's name taken apart. Fields are None (or empty) where the name does not tell.

    Element types have the short names of `element_types`. `grades` holds the evidence of each field that is
    not None or empty, except `name`.
    """

    name: str  # as recorded
    function: str | None = None  # qualified, without template arguments
    template_arguments: tuple[str, ...] = ()  # as printed
    library: str | None = None  # or generator, as the name itself says: `aten`, `nccl`, `triton`, `cub`, …
    family: str | None = None  # a name of `families.toml`
    variant: str | None = None  # form of its family: `vectorized`, `unrolled`, `strided`
    direction: str | None = None  # `forward` or `backward`
    architecture: str | None = None  # it was compiled for, `sm90`
    operand_type: str | None = None  # of the elements it reads, if all are of one
    multiply_type: str | None = None  # it multiplies in, where that differs from the operand's
    accumulator_type: str | None = None
    output_type: str | None = None
    layout: str | None = None  # as the grammar writes it, `tn`, `nhwc`
    tile: str | None = None  # of a thread block, `128x128x32` (M, N, K), or `128x128`
    mma_shape: str | None = None  # of one matrix instruction, `16x8x16`
    stages: int | None = None  # of the pipeline
    cluster: str | None = None  # of thread blocks, `2x1` or `2x1x1`
    split_k: bool | None = None  # work on K is split over thread blocks
    tensor_core: bool | None = None  # it uses tensor cores
    vector_width: int | None = None  # elements of one load
    output_vector_width: int | None = None  # outputs of one thread
    alignment: int | None = None  # of its operands, in elements
    head_dimension: int | None = None  # the largest it handles
    functor: str | None = None  # given to a generic kernel, or the function that owns the lambda
    operation: str | None = None  # that functor in one word, `gelu`, `add`, `sum`
    epilogue: str | None = None  # fused to its end, `bias`, `relu`
    fused_operators: tuple[str, ...] = ()  # in a generated name, as far as they can be told apart
    fused_operators_may_be_cut: bool | None = None  # the generator drops names past a number that is reached
    collective: str | None = None  # NCCL's name, `AllReduce`
    copy_direction: str | None = None  # `host_to_device`, `device_to_device`, `peer_to_peer`, …
    host_memory: str | None = None  # `pageable` or `pinned`, of a copy from or to the host
    grades: Mapping[str, Grade] = dataclasses.field(default_factory=dict, compare=False)

    @property
    def category(self) -> str | None:
        return None if self.family is None else CATEGORY_OF_FAMILY[self.family]

    @property
    def title(self) -> str:
        """`vectorized_elementwise_kernel<… GeluCUDAKernelImpl …>`; the name itself where it has no parts."""
        return title_of(self.name, self.function, self.template_arguments, self.functor)


_WRAPPERS = frozenset(("Kernel", "Kernel2", "device_kernel", "kernel"))  # templates of CUTLASS


def title_of(name: str, function: str | None, arguments: Sequence[str], functor: str | None) -> str:
    """The function without its namespaces, and the functor without its; of CUTLASS's wrapper what it wraps.

    `gelu` of `at::native::gelu`; `cutlass_80_gemm_…` of `cutlass::Kernel2<cutlass_80_gemm_…>`. A title stands
    for a name and is not one: the full name is always kept beside it.
    """
    if function is None:
        return name
    last, first, applied = last_part(function), arguments[0] if arguments else "", last_part(functor or "")
    is_wrapper = last in _WRAPPERS and "cutlass" in f"{function}<{first}"
    title = (is_wrapper and last_part(first.partition("<")[0])) or last
    return f"{title}<… {applied} …>" if applied else title


class Reading(msgspec.Struct):
    """What one grammar reads from a name: fields of DecodedKernel by grade. None values are dropped."""

    # Fields of a documented grammar (or source code), graded NAME_PATTERN
    stated: dict[str, Any] = msgspec.field(default_factory=dict)
    # Fields of an undocumented, observed pattern, graded INFERRED
    inferred: dict[str, Any] = msgspec.field(default_factory=dict)


def integer(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


def decoded(name: str, cxx: CxxName, reading: Reading | None) -> DecodedKernel:
    reading = reading or Reading()
    values: dict[str, Any] = {}
    grades: dict[str, Grade] = {}
    for read, grade in (
        ({"function": cxx.function, "template_arguments": cxx.template_arguments}, Grade.NAME_PATTERN),
        (reading.inferred, Grade.INFERRED),
        (reading.stated, Grade.NAME_PATTERN),
    ):
        known = {key: value for key, value in read.items() if value is not None and value != ()}
        values.update(known)
        grades.update(dict.fromkeys(known, grade))
    return DecodedKernel(name, grades=grades, **values)


_FIELDS = frozenset(one.name for one in dataclasses.fields(DecodedKernel))
_NUMBERS = frozenset(("stages", "alignment", "vector_width", "head_dimension"))
_FLAGS = frozenset(("tensor_core", "split_k"))


class Found(msgspec.Struct):
    fields: dict[str, Any]
    groups: Mapping[str, str | None]  # of the pattern
    stated: frozenset[str]  # fields of a documented grammar

    def reading(self, **further: Any) -> Reading:
        """All fields, those given here too, by what the grammar is worth."""
        known = {**self.fields, **further}
        stated = {name: value for name, value in known.items() if name in self.stated}
        return Reading(stated, {name: value for name, value in known.items() if name not in self.stated})


class _Grammar(msgspec.Struct):
    match: Callable[[str], re.Match[str] | None]
    set: dict[str, Any]
    stated: frozenset[str]
    parts: list[tuple[str, str, re.Pattern[str]]]  # field, group, pattern
    choices: list[tuple[str, re.Pattern[str], Any]]  # field, pattern, value
    maps: dict[str, Mapping[str, str]]


def find_grammar(name: str, text: str) -> Found | None:
    grammar = _grammar(name)
    match = grammar.match(text)
    if match is None:
        return None
    groups = match.groupdict()
    found = dict(grammar.set)
    for group, value in groups.items():
        _put(found, group, value, grammar)
    for group, within, pattern in grammar.parts:
        part = pattern.search(groups[within] or "")
        _put(found, group, part and part[part.lastindex or 0], grammar)
    for field, pattern, value in grammar.choices:
        if field not in found and pattern.search(text):
            found[field] = value
    return Found(found, groups, grammar.stated)


def read_grammar(name: str, text: str) -> Reading | None:
    """What a grammar reads from a text; None if that is not of it."""
    found = find_grammar(name, text)
    return None if found is None else found.reading()


def read_by_rules(section: str, text: str, library: str | None) -> Reading | None:
    """What the words of a function say by a section of `family_rules.toml`; None if nothing."""
    family = family_by_rules(section, text)
    if family is None:
        return None
    return Reading({"library": library}, {"family": family, "direction": direction_of(text)})


def _put(found: dict[str, Any], group: str, value: str | None, grammar: _Grammar) -> None:
    """Keep what a group holds, if it is of a field: as the value it stands for."""
    field = group.rstrip("0123456789")
    if value is None or field not in _FIELDS:
        return
    known = grammar.maps.get(group, grammar.maps.get(field))
    kept: Any = value
    if field in _FLAGS:
        kept = True
    elif field in _NUMBERS:
        kept = int(value) or None
    elif known is not None and group != field and group not in grammar.maps:  # mapped once together
        kept = f"{found.pop(field)}x{value}" if field in found else value
        kept = known.get(kept, kept if kept == value else None)
    elif known is not None:
        kept = f"{known['prefix']}{value.lower()}" if "prefix" in known else known.get(value, known.get("*"))
    elif field.endswith("_type"):
        kept = element_type(value)
    elif group != field and group[-1] != "1":
        kept = f"{found[field]}x{value}" if found.get(field) else None
    if kept is not None:
        found[field] = kept


@cache
def _grammar(name: str) -> _Grammar:
    document = packaged_toml(__package__, "grammars.toml")
    entry, named = document[name], {**document["maps"], "letters": LETTERS}
    stated = entry.get("stated", "")
    parts = [
        (field, ["rest", part] if isinstance(part, str) else part)
        for field, part in entry.get("parts", {}).items()
    ]
    # Of a pattern of several lines, blanks do not count.
    pattern = re.compile(entry["pattern"], re.VERBOSE if "\n" in entry["pattern"] else 0)
    return _Grammar(
        pattern.match if pattern.pattern.startswith("\\A") else pattern.search,
        entry.get("set", {}),
        _FIELDS if stated == "all" else frozenset(stated.split()),
        [(field, within, re.compile(pattern)) for field, (within, pattern) in parts],
        [
            (field, re.compile(pattern), value)
            for field, choices in entry.get("choices", {}).items()
            for pattern, value in choices
        ],
        {field: named[one] if isinstance(one, str) else one for field, one in entry.get("maps", {}).items()},
    )
