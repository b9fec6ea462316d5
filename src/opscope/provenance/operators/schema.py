"""Function schemas: `add.out(Tensor self, Tensor other, *, Scalar alpha=1, Tensor(a!) out) -> Tensor(a!)`.

Source: aten/src/ATen/native/README.md, section "func"; torchgen/model.py, `FunctionSchema`.
"""

from __future__ import annotations

from enum import Enum
from functools import cached_property, lru_cache

import msgspec

from opscope.provenance.packaged import lazy_pattern

_ANNOTATION = lazy_pattern(r"\(([^()]*)\)")
_DUNDER = lazy_pattern(r"__([^_]+)__")
# `__iadd__` is in place, but `__index__` would not be.
_IN_PLACE_DUNDERS = frozenset(
    f"__i{name}__"
    for name in ("add", "sub", "mul", "div", "mod", "pow", "lshift", "rshift", "and", "xor", "or")
)


class Kind(str, Enum):
    """What a function does with its arguments. A closed set."""

    FUNCTIONAL = "functional"
    INPLACE = "inplace"
    OUT = "out"
    MUTABLE = "mutable"
    SCRATCH = "scratch"


def is_inplace(name: str) -> bool:
    """A function of this name, without namespace and overload, changes `self`: `add_`, `__iadd__`."""
    return name in _IN_PLACE_DUNDERS or (not _DUNDER.fullmatch(name) and name[-1:] == "_")


def out_of_place(name: str) -> str:
    """The name of the variant that changes nothing: `add` for `add_` and for `add`."""
    if not is_inplace(name):
        return name
    return f"__{name[3:]}" if _DUNDER.fullmatch(name) else name[:-1]


class Argument(msgspec.Struct, frozen=True):
    """One parameter; its type has no annotation of what it aliases."""

    type: str
    name: str
    default: str | None = None
    is_written: bool = False  # the function writes its memory


class Schema(msgspec.Struct, frozen=True, dict=True):
    """One function: `keyword_only` are arguments behind `*` that are not written, `out` those that are."""

    name: str  # without overload
    positional: tuple[Argument, ...]
    keyword_only: tuple[Argument, ...]
    out: tuple[Argument, ...]

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """All arguments in the order in which they are recorded."""
        return (*self.positional, *self.keyword_only, *self.out)

    @cached_property
    def kind(self) -> Kind:
        if is_inplace(self.name):
            return Kind.INPLACE
        if self.out:
            is_scratch = any(argument.name.startswith("_scratch_") for argument in self.out)
            return Kind.SCRATCH if is_scratch else Kind.OUT
        is_mutable = any(one.is_written for one in self.positional if one.name != "self")
        return Kind.MUTABLE if is_mutable else Kind.FUNCTIONAL


@lru_cache(maxsize=8192)
def parse_schema(text: str) -> Schema:
    """The schema a line of text states, without namespace."""
    head, arrow, _ = text.rpartition(" -> ")
    name, opened, inside = head.partition("(")
    if not (arrow and opened and inside.endswith(")") and name):
        raise ValueError(f"not a function schema: {text!r}")
    parts = [part for part in inside[:-1].split(", ") if part]
    star = parts.index("*") if "*" in parts else len(parts)
    keyword = [_argument(part) for part in parts[star + 1 :]]
    return Schema(
        name.partition(".")[0],
        tuple(map(_argument, parts[:star])),
        tuple(one for one in keyword if not one.is_written),
        tuple(one for one in keyword if one.is_written),
    )


def _argument(text: str) -> Argument:
    declared, has_default, default = text.partition("=")
    typed, _, name = declared.rpartition(" ")
    if not (typed and name):
        raise ValueError(f"not an argument: {text!r}")
    found = _ANNOTATION.search(typed)
    is_written = found is not None and "!" in found[1]
    kind = typed if found is None else typed[: found.start()] + typed[found.end() :]
    return Argument(kind, name, default if has_default else None, is_written)
