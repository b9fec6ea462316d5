"""Native functions of one PyTorch release with their places, and backward nodes; which one a call reached.

A native function has its schema as text:
`add.out(Tensor self, Tensor other, *, Scalar alpha=1, Tensor(a!) out) -> Tensor(a!)`.

Which function serves an operator, and where it is defined, is worked out when a table is made
(`tools/torch_tables`); here it is looked up by name. `table_for` chooses the table that fits a trace: that of
its release, or a neighbor's.

Source: aten/src/ATen/native/README.md, section "func"; torchgen/model.py, `FunctionSchema`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, partial

import msgspec
from msgspec.structs import replace

from opscope.errors import InputError
from opscope.model.origin import Grade, weakest
from opscope.model.queries import grouped
from opscope.provenance.packaged import TableFormat, lazy_pattern
from opscope.provenance.torch_releases import nearest_release

_ANNOTATION = lazy_pattern(r"\(([^()]*)\)")
_DUNDER = lazy_pattern(r"__([^_]+)__")
# `__iadd__` is in place, but `__index__` would not be.
_IN_PLACE_DUNDERS = frozenset(
    f"__i{name}__"
    for name in ("add", "sub", "mul", "div", "mod", "pow", "lshift", "rshift", "and", "xor", "or")
)


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

    @property
    def is_inplace(self) -> bool:
        return is_inplace(self.name)


@lru_cache(maxsize=8192)
def parse_schema(text: str) -> Schema:
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


class Place(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a definition lies in a release, and from which evidence: of its file, and of its line.

    `release`: an index of that very release, or its binary; `compiled` and `bracket`: lines of checks in its
    libraries; `neighbor_version`: the index of another release.
    """

    file: str  # path in the repository
    file_from: str
    line: int | None = None
    last_line: int | None = None  # of a bracket, the last on which it may begin
    line_from: str | None = None
    about: int | None = None  # of a bracket: the nearest to the neighbor's line
    is_of_release: bool = True  # the lines are those at the commit of the release


class Registered(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A function registered for a dispatch stub, or what a function of C++ code launches."""

    name: str
    file: str  # in which it is registered, or defined
    function: str  # the name in the registration; "" if that is not a plain name
    place: Place | None


class Served(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The function that the dispatcher calls for an entry on a backend."""

    key: str  # dispatch key it is registered for: the backend, or a composite key
    function: str | None  # its C++ name; None if it is generated without a name of its own
    # `native`, written by hand for this backend; `ufunc`, generated for it from a scalar function;
    # `generated`, written by torchgen in terms of other operators; `composite_…`, for all backends
    kind: str
    overload: str  # of the entry that names it: the delegate's for a structured kernel
    header: str | None = None  # file in the repository that defines the scalar function of a `ufunc`
    place: Place | None = None
    # By dispatch stub it calls, what is registered for it on the backend
    stubs: dict[str, tuple[Registered, ...]] = {}
    # Functions it calls, of C++ code, that a `.cu` file defines and no other file does
    launchers: tuple[Registered, ...] = ()


class NativeFunction(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One entry of native_functions.yaml, or one that torchgen derives from such an entry."""

    name: str  # with namespace, e.g. `aten::_softmax`.
    overload: str  # empty for the default one
    schema: str  # as the yaml writes it, without namespace
    served: dict[str, Served] = {}  # by backend, `CUDA` and `CPU`; without those that nothing serves
    structured: bool = False  # the functions are written as structured kernels
    # Entry whose structured kernel serves this one, e.g. `_softmax.out`.
    structured_delegate: str | None = None
    autogen: tuple[str, ...] = ()  # variants that are generated from this entry
    tags: tuple[str, ...] = ()  # in alphabetical order
    generated: bool = False  # it is not in the yaml: torchgen derives it
    yaml_line: int = 0  # from 1; of the entry it is derived from where `generated`


class Derivative(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One node of the backward graph."""

    node: str  # its name, e.g. `SoftmaxBackward0`.
    # Functions that record it, e.g. `aten::_softmax`; the one with the formulas first.
    forward: tuple[str, ...] = ()
    # Differentiable inputs (`mat1`, or `self, other` for a joint one) → C++ formula in the yaml
    formulas: dict[str, str] = {}
    # Operators that the formulas call, by name, e.g. `aten::_softmax_backward_data`.
    functions: tuple[str, ...] = ()
    yaml_line: int = 0  # in derivatives.yaml, from 1; 0 if it has none
    description: str | None = None  # what a node without formulas does


# Nodes that no derivatives.yaml names, and what they do: they are written by hand in PyTorch's autograd.
# Source: torch/csrc/autograd/functions/{accumulate_grad,tensor,basic_ops,comm}.h;
# torch/_functorch/_aot_autograd/runtime_wrappers.py.
_SPECIAL_NODES = {
    "torch::autograd::AccumulateGrad": "adds the gradient of a leaf tensor to its .grad",
    "torch::autograd::CopyBackwards": "gradient of a copy between tensors",
    "torch::autograd::CopySlices": "gradient of an in-place operator on a view of its base",
    "torch::autograd::GraphRoot": "start of the backward pass: hands out the given gradients",
    "torch::autograd::UndefinedGrad": "passes undefined gradients on",
    "torch::autograd::UndefinedGradBackward": "passes undefined gradients on",
    "torch::autograd::Identity": "passes gradients on",
    "torch::autograd::Scatter": "splits a tensor over devices",
    "torch::autograd::Gather": "joins tensors of several devices",
    "CompiledFunctionBackward": "backward graph that torch.compile compiled",
}
EVALUATE = "autograd::engine::evaluate_function: "


class OperatorTable(msgspec.Struct, frozen=True, eq=False, dict=True, array_like=True):
    """Native functions and backward nodes of one build."""

    format_version: int
    version: str | None  # of PyTorch, e.g. `2.13.0`; None if unknown.
    git_version: str | None  # commit it was built from
    functions: tuple[NativeFunction, ...]  # declared ones in the order of the yaml, then generated ones
    derivatives: tuple[Derivative, ...] = ()  # in the order of the yaml
    neighbor_git_version: str | None = None  # commit of the release whose sources are indexed
    grade: Grade = Grade.RELEASE_INDEX  # what its facts are worth for the trace at hand

    def __repr__(self) -> str:
        return f"<OperatorTable {self.version or 'of unknown version'}, {len(self.functions)} functions>"

    @cached_property
    def _overloads(self) -> Mapping[str, tuple[NativeFunction, ...]]:
        by_name = grouped((entry.name, entry) for entry in self.functions)
        return {name: tuple(entries) for name, entries in by_name.items()}

    @cached_property
    def _nodes(self) -> dict[str, Derivative]:
        return {derivative.node: derivative for derivative in self.derivatives}

    def entry(self, name: str, overload: str = "") -> NativeFunction | None:
        return next((one for one in self.overloads(name) if one.overload == overload), None)

    def overloads(self, name: str) -> tuple[NativeFunction, ...]:
        """All native functions of a name; empty for an operator that no yaml entry describes."""
        return self._overloads.get(name, ())

    def derivative(self, node: str) -> Derivative | None:
        """A backward node by its name, with or without `autograd::engine::evaluate_function: `.

        None for the node of a user's own `autograd.Function`, and for one of another release.
        """
        name = node.removeprefix(EVALUATE)
        if name in self._nodes or name not in _SPECIAL_NODES:
            return self._nodes.get(name)
        forward = ("aten::copy_",) if name == "torch::autograd::CopyBackwards" else ()
        return Derivative(name, forward, description=_SPECIAL_NODES[name])

    def graded(self, grade: Grade) -> OperatorTable:
        """The same facts, worth this much; one table for each grade, as what is resolved is kept by table."""
        graded: dict[Grade, OperatorTable] = self.__dict__.setdefault("_graded", {self.grade: self})
        if grade not in graded:
            graded[grade] = replace(self, grade=grade)
        return graded[grade]


TABLE_FORMAT = TableFormat("an operator table", OperatorTable, 2, file="operators.msgpack.zst")
packaged_table, packaged_versions = TABLE_FORMAT.of_release, TABLE_FORMAT.releases


def table_for(version: str | None, *, recognized: str | None = None) -> OperatorTable:
    """The best table for a trace made by a version of PyTorch, graded for it.

    `recognized` is the release that answers for the trace's kernels.
    """
    exact = packaged_table(version)
    if exact is not None:
        return exact
    neighbor = packaged_table(recognized or nearest_release(version, packaged_versions()))
    if neighbor is None:
        raise InputError("no operator table is packaged", hint="Reinstall opscope")
    return neighbor.graded(Grade.NEIGHBOR_VERSION)


# Which overload a recorded call reached: by its recorded name, else by what was recorded of its arguments.
#
# Kineto records one item per argument of the schema. An overload is ruled out by items that it cannot have
# left. What that leaves open is narrowed by what it leaves in practice (defined tensors, no named ones): such
# an answer is graded as inferred. For calls of the TorchScript interpreter it records the whole stack, which
# is not read: their overloads are unknown.
#
# Source: torch/csrc/profiler/collection.cpp, `InputOutputEncoder::push`; `parseArgData` of
# torch/csrc/autograd/profiler_kineto.cpp; `Dispatcher::callBoxed`; before PyTorch 1.12
# torch/csrc/profiler/util.cpp, `inputTypes`.

_NOTHING = ""  # None, an undefined, nested or symbolic tensor, text, a device, a list too long to record
_TENSOR = "a tensor"  # recorded as the C++ name of its element type
_SCALAR, _SCALAR_LIST, _TENSOR_LIST = "Scalar", "ScalarList", "TensorList"
# As PyTorch before 1.12 recorded them.
_INT, _DOUBLE, _BOOL, _COMPLEX, _LIST = "Int", "Double", "Bool", "ComplexDouble", "GenericList"

_TAGS = frozenset((_NOTHING, _SCALAR, _SCALAR_LIST, _TENSOR_LIST, _INT, _DOUBLE, _BOOL, _COMPLEX, _LIST))
# What each schema type leaves in practice; a type that is not listed leaves nothing.
_LEAVES: dict[str, frozenset[str]] = {
    "Tensor": frozenset((_TENSOR,)),
    "Tensor[]": frozenset((_TENSOR_LIST, _LIST)),
    "Tensor?[]": frozenset((_NOTHING, _TENSOR_LIST, _SCALAR_LIST, _LIST)),
    "Scalar": frozenset((_SCALAR, _INT, _DOUBLE, _BOOL, _COMPLEX)),
    **dict.fromkeys(
        ("int", "SymInt", "ScalarType", "Layout", "MemoryFormat", "QScheme", "DeviceIndex"),
        frozenset((_SCALAR, _INT)),
    ),
    **dict.fromkeys(("float", "SymFloat"), frozenset((_SCALAR, _DOUBLE))),
    **dict.fromkeys(("bool", "SymBool"), frozenset((_SCALAR, _BOOL))),
    **dict.fromkeys(("Dimname", "Dimname[]"), frozenset()),
}
_SIZED_LIST = lazy_pattern(r"\w+\[\d+\]")
_LISTS_LEAVE = frozenset((_SCALAR_LIST, _LIST, _NOTHING))
# Besides: tensors without elements or with symbolic ones, names of dimensions.
_MAY_LEAVE_NOTHING = ("Tensor", "Tensor[]", "SymInt", "SymFloat", "SymBool", "Dimname", "Dimname[]")


class Resolved(msgspec.Struct, frozen=True):
    entry: NativeFunction | None  # the one it must be; None if several are possible or none is known
    grade: Grade | None  # of the answer; None if nothing is known of the name
    # All that are possible, with `entry` if it is known. Facts they share hold in any case.
    candidates: tuple[NativeFunction, ...]


def resolve(
    table: OperatorTable,
    name: str,
    overload: str | None = None,
    input_types: Sequence[str] | None = None,
) -> Resolved:
    """The native function that a recorded call reached, as far as the record says.

    `overload` is empty for the default overload, and None if overloads were not recorded.
    """
    base, dot, suffix = name.partition(".")
    return _resolved(table, base, suffix if dot and overload is None else overload, tuple(input_types or ()))


@lru_cache(maxsize=65536)
def _resolved(
    table: OperatorTable, name: str, overload: str | None, input_types: tuple[str, ...]
) -> Resolved:
    if overload is not None:
        entry = table.entry(name, overload)
        return Resolved(None, None, ()) if entry is None else Resolved(entry, table.grade, (entry,))
    # The overloads that leave such a record in practice (or else at all), and those that may leave it.
    likely = possible = known = table.overloads(name)
    if input_types and (len(known) != 1 or table.grade is Grade.NEIGHBOR_VERSION):
        possible = tuple(entry for entry in known if leaves(entry, input_types, may=True))
        likely = tuple(entry for entry in possible if leaves(entry, input_types)) or possible
    if len(likely) == 1:
        grade = table.grade if len(possible) == 1 else weakest((table.grade, Grade.INFERRED))
        return Resolved(likely[0], grade, likely)
    if not likely and table.grade is Grade.NEIGHBOR_VERSION:
        likely = known  # the function has other arguments in that release
    return Resolved(None, table.grade if likely else None, likely)


def holds_stacks(table: OperatorTable, calls: Iterable[tuple[str, Sequence[str] | None]]) -> bool:
    """Whether the `Input type` lists of a trace are stacks of the interpreter, from distinct (name, types).

    They are if there is a list that is none of an operator's, but ends in one.
    """
    for name, input_types in calls:
        known, items = table.overloads(name.partition(".")[0]), tuple(input_types or ())
        ends = (items[-len(parse_schema(entry.schema).arguments) or len(items) :] for entry in known)
        if any(map(leaves, known, ends)) and not any(leaves(entry, items, may=True) for entry in known):
            return True
    return False


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
