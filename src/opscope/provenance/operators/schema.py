"""Function schemas, and native functions and backward nodes as an operator table holds them.

A schema such as `add.out(Tensor self, Tensor other, *, Scalar alpha=1, Tensor(a!) out) -> Tensor(a!)` is read
and written exactly; its signature is what variants of one function share.

Source: aten/src/ATen/native/README.md, section "func"; torchgen/model.py, `FunctionSchema`;
torchgen/api/native.py (C++ types).
"""

from __future__ import annotations

import re
from enum import Enum
from functools import cached_property, lru_cache
from typing import Protocol

import msgspec
from msgspec.structs import replace

from opscope.provenance.packaged import lazy_pattern

_ANNOTATION = lazy_pattern(r"\(([^()]*)\)")
_DUNDER = lazy_pattern(r"__([^_]+)__")
# `__iadd__` is in place, but `__index__` would not be.
_IN_PLACE_DUNDERS = frozenset(
    f"__i{name}__"
    for name in ("add", "sub", "mul", "div", "mod", "pow", "lshift", "rshift", "and", "xor", "or")
)
_TENSOR_OPTIONS = (
    ("dtype", "ScalarType"),
    ("layout", "Layout"),
    ("device", "Device"),
    ("pin_memory", "bool"),
)
_FUNCTIONAL = "_functional"


class Kind(str, Enum):
    """What a function does with its arguments. A closed set."""

    FUNCTIONAL = "functional"
    INPLACE = "inplace"
    OUT = "out"
    MUTABLE = "mutable"
    SCRATCH = "scratch"


class OperatorName(msgspec.Struct, frozen=True):
    """`add_.Tensor`: a name without namespace, and an overload, empty for the default one."""

    name: str
    overload: str = ""

    def __str__(self) -> str:
        return f"{self.name}.{self.overload}" if self.overload else self.name

    @classmethod
    def parse(cls, text: str) -> OperatorName:
        """The name before the first dot and the overload after it."""
        name, _, overload = text.strip().partition(".")
        return cls(name, overload)

    @property
    def is_inplace(self) -> bool:
        """It changes `self`: `add_`, `__iadd__`."""
        return self.name in _IN_PLACE_DUNDERS or (not _DUNDER.fullmatch(self.name) and self.name[-1:] == "_")

    @property
    def out_of_place(self) -> str:
        """The name of its variant that changes nothing: `add` for `add_` and for `add`."""
        if not self.is_inplace:
            return self.name
        return f"__{self.name[3:]}" if _DUNDER.fullmatch(self.name) else self.name[:-1]

    @property
    def base(self) -> str:
        """What all variants are called: neither in place nor `_functional`."""
        return self.out_of_place.removesuffix(_FUNCTIONAL)

    @property
    def unambiguous(self) -> str:
        """Name and overload as one identifier: `add__Tensor`."""
        return f"{self.name}_{self.overload}" if self.overload else self.name


class Return(msgspec.Struct, frozen=True):
    """One result: its type without annotation, its alias annotation (`a!`), its name."""

    type: str
    annotation: str | None = None
    name: str | None = None

    @property
    def is_written(self) -> bool:
        """It aliases memory that the function writes."""
        return self.annotation is not None and "!" in self.annotation

    def __str__(self) -> str:
        text = _annotated(self.type, self.annotation)
        return f"{text} {self.name}" if self.name else text


class Argument(Return, frozen=True):
    """One parameter; its name is never None."""

    name: str = ""
    default: str | None = None

    def __str__(self) -> str:
        return super().__str__() + ("" if self.default is None else f"={self.default}")


class Schema(msgspec.Struct, frozen=True, dict=True):
    """One function: `keyword_only` are arguments behind `*` that are not written, `out` those that are."""

    name: OperatorName
    positional: tuple[Argument, ...]
    keyword_only: tuple[Argument, ...]
    out: tuple[Argument, ...]
    returns: tuple[Return, ...]

    def __str__(self) -> str:
        parts = [str(argument) for argument in self.positional]
        behind = [str(argument) for argument in (*self.keyword_only, *self.out)]
        parts += ["*", *behind] if behind else []
        returns = ", ".join(str(one) for one in self.returns)
        return f"{self.name}({', '.join(parts)}) -> {returns if len(self.returns) == 1 else f'({returns})'}"

    @property
    def inputs(self) -> tuple[Argument, ...]:
        """All arguments but `out`, in order."""
        return (*self.positional, *self.keyword_only)

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """All arguments in the order in which they are recorded."""
        return (*self.positional, *self.keyword_only, *self.out)

    @cached_property
    def kind(self) -> Kind:
        """What it does with its arguments."""
        if self.name.is_inplace:
            return Kind.INPLACE
        if self.out:
            is_scratch = any(argument.name.startswith("_scratch_") for argument in self.out)
            return Kind.SCRATCH if is_scratch else Kind.OUT
        written = (a for a in self.positional if a.name != "self" and a.is_written)
        return Kind.MUTABLE if any(written) else Kind.FUNCTIONAL

    @property
    def has_symbolic_sizes(self) -> bool:
        """It takes a SymInt, so its implementations may be named `…_symint`."""
        return any("SymInt" in argument.type for argument in self.arguments)

    @cached_property
    def signature(self) -> tuple[object, ...]:
        """What in-place, out and functional variants of one function share; hashable, for comparison only."""
        # `bernoulli.p` looks like a variant of `bernoulli_.float`, but has its own kernel.
        name = "bernoulli.p" if str(self.name) == "bernoulli.p" else self.name.base
        positional, keyword = (
            tuple((one.type, one.name) for one in arguments)
            for arguments in (self.positional, self.without_tensor_options)
        )
        return (name, (positional, keyword), tuple(one.type for one in self.functional_returns()))

    @property
    def without_tensor_options(self) -> tuple[Argument, ...]:
        """Keyword-only arguments less dtype, layout, device and pin_memory where all four are there."""
        options = self.keyword_only
        for start in range(len(options) - 3):
            four = options[start : start + 4]
            if all(
                (a.name, a.type.removesuffix("?")) == b for a, b in zip(four, _TENSOR_OPTIONS, strict=True)
            ):
                return (*options[:start], *options[start + 4 :])
        return options

    def functional_returns(self) -> tuple[Return, ...]:
        """Results of a variant that changes nothing: its results, then what it would have written."""
        own = tuple(Return(one.type, None, one.name) for one in self.returns)
        mine = [a for a in self.positional if a.name == "self"]
        others = [a for a in self.positional if a.name != "self"]
        returned = {one.annotation for one in self.returns}
        written = (a for a in (*mine, *self.out, *others) if a.is_written and a.annotation not in returned)
        return (*own, *(Return(a.type, None, f"{a.name}_out") for a in written))


def parse_schema(text: str) -> Schema:
    """The schema a line of text states, without namespace."""
    head, arrow, tail = text.rpartition(" -> ")
    name, opened, inside = head.partition("(")
    if not (arrow and opened and inside.endswith(")") and name):
        raise ValueError(f"not a function schema: {text!r}")
    parts = [part for part in inside[:-1].split(", ") if part]
    star = parts.index("*") if "*" in parts else len(parts)
    keyword = tuple(_argument(part) for part in parts[star + 1 :])
    returns = []
    for part in (tail[1:-1] if tail.startswith("(") and tail.endswith(")") else tail).split(", "):
        if part:
            named, annotation = _without_annotation(part)
            kind, _, result = named.partition(" ")
            returns.append(Return(kind, annotation, result or None))
    return Schema(
        OperatorName.parse(name),
        tuple(_argument(part) for part in parts[:star]),
        tuple(argument for argument in keyword if not argument.is_written),
        tuple(argument for argument in keyword if argument.is_written),
        tuple(returns),
    )


def plain(argument: Argument) -> Argument:
    """The argument without its alias annotation."""
    return replace(argument, annotation=None)


def _argument(text: str) -> Argument:
    declared, has_default, default = text.partition("=")
    typed, _, name = declared.rpartition(" ")
    if not (typed and name):
        raise ValueError(f"not an argument: {text!r}")
    kind, annotation = _without_annotation(typed)
    return Argument(kind, annotation, name, default if has_default else None)


def _without_annotation(text: str) -> tuple[str, str | None]:
    found = _ANNOTATION.search(text)
    if found is None:
        return text, None
    return text[: found.start()] + text[found.end() :], found.group(1)


def _annotated(kind: str, annotation: str | None) -> str:
    if annotation is None:
        return kind
    bare = re.match(r"\w+", kind)
    cut = bare.end() if bare else len(kind)
    return f"{kind[:cut]}({annotation}){kind[cut:]}"


class NativeFunction(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One entry of native_functions.yaml, or one that torchgen derives from such an entry."""

    name: str  # with namespace, e.g. `aten::_softmax`.
    overload: str  # empty for the default one
    schema: str  # as the yaml writes it, without namespace
    dispatch: dict[str, str]  # dispatch key → function that is registered for it, defaults filled in
    structured: bool = False  # the functions are written as structured kernels
    # Entry whose structured kernel serves this one, e.g. `_softmax.out`.
    structured_delegate: str | None = None
    autogen: tuple[str, ...] = ()  # variants that are generated from this entry
    tags: tuple[str, ...] = ()  # in alphabetical order
    variants: tuple[str, ...] = ("function",)  # `function`, `method`
    python_module: str | None = None  # `nn`, `linalg`, …, or None
    ufunc: bool = False  # its CPU and CUDA functions are generated from a scalar function
    generated: bool = False  # it is not in the yaml: torchgen derives it
    # Its C++ interface is written by hand and mostly bypasses the dispatcher
    has_manual_binding: bool = False
    yaml_line: int = 0  # from 1; of the entry it is derived from where `generated`

    @property
    def qualified_name(self) -> str:
        """Name and overload, e.g. `aten::add.Tensor`."""
        return str(OperatorName(self.name, self.overload))


class Derivative(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One node of the backward graph."""

    node: str  # its name, e.g. `SoftmaxBackward0`.
    # Functions that record it, e.g. `aten::_softmax`; the one with the formulas first.
    forward: tuple[str, ...] = ()
    # Differentiable inputs (`mat1`, or `self, other` for a joint one) → C++ formula in the yaml
    formulas: dict[str, str] = {}
    # Operators that the formulas call, by name, e.g. `aten::_softmax_backward_data`.
    functions: tuple[str, ...] = ()
    # C++ functions of autograd's own that the formulas call; these call operators in turn
    helpers: tuple[str, ...] = ()
    dispatch_key: str = "Default"  # `Default`, or the autograd key it is for
    yaml_line: int = 0  # in derivatives.yaml, from 1; 0 if it has none
    # For a list operator without own formulas, the function whose formulas it applies to each tensor, with
    # that function's argument names
    reference: str | None = None
    description: str | None = None  # what a node without formulas does


@lru_cache(maxsize=8192)
def _parsed(schema: str) -> Schema:
    return parse_schema(schema)


class Declared(Protocol):
    """Whatever a schema is declared for."""

    @property
    def schema(self) -> str:
        """As the yaml writes it, without namespace."""


def schema_of(entry: Declared) -> Schema:
    """The parsed schema of an entry."""
    return _parsed(entry.schema)
