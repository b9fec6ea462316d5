"""Which overload a recorded call reached: by its recorded name, else by what was recorded of its arguments.

Kineto records one item per argument of the schema; for calls of the TorchScript interpreter, its whole stack,
so that the arguments are the last ones. An overload is ruled out by items that it cannot have left. What that
leaves open is narrowed by what it leaves in practice (defined tensors, no named ones): such an answer is
graded as inferred.

Source: torch/csrc/profiler/collection.cpp, `InputOutputEncoder::push`; `parseArgData` of
torch/csrc/autograd/profiler_kineto.cpp; `Dispatcher::callBoxed`; before PyTorch 1.12
torch/csrc/profiler/util.cpp, `inputTypes`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from functools import lru_cache, partial

import msgspec

from opscope.model.evidence import Grade, weakest
from opscope.provenance.operators.table import (
    Argument,
    NativeFunction,
    OperatorTable,
    Schema,
    packaged_table,
    packaged_versions,
    parse_schema,
)
from opscope.provenance.packaged import lazy_pattern

_NOTHING = ""  # None, an undefined, nested or symbolic tensor, text, a device, a list too long to record
_TENSOR = "a tensor"  # recorded as the C++ name of its element type
_SCALAR, _SCALAR_LIST, _TENSOR_LIST = "Scalar", "ScalarList", "TensorList"
# As PyTorch before 1.12 recorded them.
_INT, _DOUBLE, _BOOL, _COMPLEX, _LIST = "Int", "Double", "Bool", "ComplexDouble", "GenericList"

_TAGS = frozenset((_NOTHING, _SCALAR, _SCALAR_LIST, _TENSOR_LIST, _INT, _DOUBLE, _BOOL, _COMPLEX, _LIST))
_INTEGERS = frozenset((_SCALAR, _INT))
# What each schema type leaves in practice; a type that is not listed leaves nothing.
_LEAVES: dict[str, frozenset[str]] = {
    "Tensor": frozenset((_TENSOR,)),
    "Tensor[]": frozenset((_TENSOR_LIST, _LIST)),
    "Tensor?[]": frozenset((_NOTHING, _TENSOR_LIST, _SCALAR_LIST, _LIST)),
    "Scalar": frozenset((_SCALAR, _INT, _DOUBLE, _BOOL, _COMPLEX)),
    "int": _INTEGERS,
    "SymInt": _INTEGERS,
    "ScalarType": _INTEGERS,
    "Layout": _INTEGERS,
    "MemoryFormat": _INTEGERS,
    "QScheme": _INTEGERS,
    "DeviceIndex": _INTEGERS,
    "float": frozenset((_SCALAR, _DOUBLE)),
    "SymFloat": frozenset((_SCALAR, _DOUBLE)),
    "bool": frozenset((_SCALAR, _BOOL)),
    "SymBool": frozenset((_SCALAR, _BOOL)),
    "Dimname": frozenset(),
    "Dimname[]": frozenset(),
}
_SIZED_LIST = lazy_pattern(r"\w+\[\d+\]")
_LISTS_LEAVE = frozenset((_SCALAR_LIST, _LIST, _NOTHING))
# Besides: tensors without elements or with symbolic ones, names of dimensions.
_MAY_LEAVE_NOTHING = ("Tensor", "Tensor[]", "SymInt", "SymFloat", "SymBool", "Dimname", "Dimname[]")


class InputRecord(str, Enum):
    """What a trace's `Input type` lists hold. A closed set."""

    UNKNOWN = "unknown"
    ARGUMENTS = "arguments"
    STACK = "stack"


class Resolved(msgspec.Struct, frozen=True):
    entry: NativeFunction | None  # the one it must be; None if several are possible or none is known
    grade: Grade | None  # of the answer; None if nothing is known of the name
    # All that are possible, with `entry` if it is known. Facts they share hold in any case.
    candidates: tuple[NativeFunction, ...]


_UNKNOWN = Resolved(None, None, ())


def resolve(
    table: OperatorTable,
    name: str,
    overload: str | None = None,
    input_types: Sequence[str] | None = None,
    record: InputRecord = InputRecord.UNKNOWN,
) -> Resolved:
    """The native function that a recorded call reached, as far as the record says.

    `overload` is empty for the default overload, and None if overloads were not recorded.
    """
    base, dot, suffix = name.partition(".")
    recorded = suffix if dot and overload is None else overload
    return _resolved(table, base, recorded, tuple(input_types or ()), record)


@lru_cache(maxsize=65536)
def _resolved(
    table: OperatorTable, name: str, overload: str | None, input_types: tuple[str, ...], record: InputRecord
) -> Resolved:
    if overload is not None:
        entry = table.entry(name, overload)
        return _UNKNOWN if entry is None else Resolved(entry, table.grade, (entry,))
    # The overloads that leave such a record in practice (or else at all), and those that may leave it.
    likely = possible = known = table.overloads(name)
    if input_types and (len(known) != 1 or table.grade is Grade.NEIGHBOR_VERSION):
        fits = _leaves_end if record is InputRecord.STACK else leaves
        possible = tuple(entry for entry in known if fits(entry, input_types, may=True))
        likely = tuple(entry for entry in possible if fits(entry, input_types)) or possible
        if record is InputRecord.UNKNOWN:
            ends = tuple(entry for entry in known if entry not in likely and _leaves_end(entry, input_types))
            likely, possible = (*likely, *ends), (*possible, *ends)
    if len(likely) == 1:
        grade = table.grade if len(possible) == 1 else weakest((table.grade, Grade.INFERRED))
        return Resolved(likely[0], grade, likely)
    if not likely and table.grade is Grade.NEIGHBOR_VERSION:
        likely = known  # the function has other arguments in that release
    return Resolved(None, table.grade if likely else None, likely)


def input_record(table: OperatorTable, calls: Iterable[tuple[str, Sequence[str] | None]]) -> InputRecord:
    """What the `Input type` lists of a trace hold, from its distinct (name, input types).

    The whole stack, if there is a list that is none of an operator's, but ends in one.
    """
    for name, input_types in calls:
        known, items = table.overloads(name.partition(".")[0]), tuple(input_types or ())
        if any(leaves(entry, items, may=True) for entry in known):
            continue
        if any(_leaves_end(entry, items) for entry in known):
            return InputRecord.STACK
    return InputRecord.ARGUMENTS


def leaves(entry: NativeFunction, items: tuple[str, ...], *, may: bool = False) -> bool:
    """A record is what the entry leaves in practice, or may leave at all."""
    arguments = parse_schema(entry.schema).arguments
    return len(arguments) == len(items) and _are_left(arguments, items, may=may)


def leaves_fewer(entry: NativeFunction, items: tuple[str, ...]) -> bool:
    """A record is what the entry left before it had its last arguments, which have defaults."""
    arguments = parse_schema(entry.schema).arguments
    added = arguments[len(items) :]
    is_older = bool(items and added) and all(one.default is not None for one in added)
    return is_older and _are_left(arguments[: len(items)], items, may=True)


def _are_left(arguments: Sequence[Argument], items: tuple[str, ...], *, may: bool) -> bool:
    records_lists = not may and _SCALAR_LIST in items
    return all(
        (item if item in _TAGS else _TENSOR) in _left_by(argument.type, may)
        # No item of a list of that type, which is too short to be left out where lists are recorded.
        and not (records_lists and item == _NOTHING and _SIZED_LIST.fullmatch(argument.type))
        for argument, item in zip(arguments, items, strict=True)
    )


def _leaves_end(entry: NativeFunction, items: tuple[str, ...], *, may: bool = False) -> bool:
    """A record that ends in what the entry leaves."""
    count = len(parse_schema(entry.schema).arguments)
    return 0 < count <= len(items) and leaves(entry, items[len(items) - count :], may=may)


@lru_cache(maxsize=1024)
def _left_by(kind: str, may: bool) -> frozenset[str]:
    """The classes of items that an argument of this type leaves, in practice or at all."""
    base = re.sub(r"\[\d+\]", "[]", kind.removesuffix("?"))
    leaves = _LEAVES.get(base, _LISTS_LEAVE if base.endswith("[]") else frozenset((_NOTHING,)))
    return leaves | {_NOTHING} if kind.endswith("?") or (may and base in _MAY_LEAVE_NOTHING) else leaves


@lru_cache(maxsize=65536)
def signature(name: str, overload: str | None, kinds: tuple[str, ...]) -> Schema | None:
    """The schema that a recorded call fits: what its arguments are called, which of them it writes.

    Releases differ little in this, so that no release need be known: of the packaged ones the newest counts
    that has an overload with just such arguments; None if none has. `overload` is as in `resolve`.
    """

    def known() -> Iterator[NativeFunction]:
        tables = filter(None, map(packaged_table, packaged_versions()[::-1]))
        return (one for table in tables for one in table.overloads(name))

    if overload is not None:
        named = (parse_schema(one.schema) for one in known() if one.overload == overload)
        return next((schema for schema in named if len(schema.arguments) == len(kinds)), None)
    for fits in (leaves, partial(leaves, may=True), leaves_fewer):
        if (found := next((one for one in known() if fits(one, kinds)), None)) is not None:
            return parse_schema(found.schema)
    return None
