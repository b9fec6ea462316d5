"""The operator table of one PyTorch build: native functions and backward nodes, found by name.

`table_for` chooses the table that fits a trace: that of its release, or a neighbor's.
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache, cached_property
from pathlib import Path

import msgspec
from msgspec.structs import replace

from opscope.errors import InputError
from opscope.model.evidence import Grade
from opscope.provenance.installation import label_order, nearest_release
from opscope.provenance.operators.schema import Derivative, NativeFunction
from opscope.provenance.packaged import release_files
from opscope.provenance.table_format import TableFormat

# Nodes that no derivatives.yaml names, and what they do: they are written by hand in PyTorch's autograd.
# Source: torch/csrc/autograd/functions/{accumulate_grad,tensor,basic_ops,comm}.h;
# torch/_functorch/_aot_autograd/runtime_wrappers.py.
SPECIAL_NODES = {
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


_EVALUATE = "autograd::engine::evaluate_function: "


class OperatorTable(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Native functions and backward nodes of one build."""

    functions: tuple[NativeFunction, ...]  # declared ones in the order of the yaml, then generated ones
    derivatives: tuple[Derivative, ...] = ()  # in the order of the yaml
    version: str | None = None  # of PyTorch, e.g. `2.13.0`; None if unknown.
    git_version: str | None = None  # commit it was built from
    grade: Grade = Grade.EXACT  # what its facts are worth for the trace at hand

    def __repr__(self) -> str:
        return f"<OperatorTable {self.version or 'of unknown version'}, {len(self.functions)} functions>"

    @cached_property
    def _overloads(self) -> dict[str, list[NativeFunction]]:
        overloads: dict[str, list[NativeFunction]] = defaultdict(list)
        for entry in self.functions:
            overloads[entry.name].append(entry)
        return dict(overloads)

    @cached_property
    def _nodes(self) -> dict[str, Derivative]:
        return {derivative.node: derivative for derivative in self.derivatives}

    def entry(self, name: str, overload: str = "") -> NativeFunction | None:
        """One native function, by `aten::add` and `Tensor`."""
        return next((one for one in self._overloads.get(name, ()) if one.overload == overload), None)

    def overloads(self, name: str) -> tuple[NativeFunction, ...]:
        """All native functions of a name; empty for an operator that no yaml entry describes."""
        return tuple(self._overloads.get(name, ()))

    def named(self, qualified_name: str) -> NativeFunction | None:
        """One native function by `aten::add.Tensor`."""
        name, _, overload = qualified_name.partition(".")
        return self.entry(name, overload)

    def derivative(self, node: str) -> Derivative | None:
        """A backward node by its name, with or without `autograd::engine::evaluate_function: `.

        None for the node of a user's own `autograd.Function`, and for one of another release.
        """
        name = node.removeprefix(_EVALUATE)
        if name in self._nodes or name not in SPECIAL_NODES:
            return self._nodes.get(name)
        forward = ("aten::copy_",) if name == "torch::autograd::CopyBackwards" else ()
        return Derivative(name, forward, description=SPECIAL_NODES[name])

    def graded(self, grade: Grade) -> OperatorTable:
        """The same facts, worth this much; one table for each grade, as what is resolved is kept by table."""
        graded: dict[Grade, OperatorTable] = self.__dict__.setdefault("_graded", {self.grade: self})
        if grade not in graded:
            graded[grade] = replace(self, grade=grade)
        return graded[grade]


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    format_version: int
    version: str | None
    git_version: str | None
    functions: tuple[NativeFunction, ...]
    derivatives: tuple[Derivative, ...]


TABLE_FORMAT = TableFormat("an operator table", _Stored)


def encode_table(table: OperatorTable) -> bytes:
    """A table as it is stored. Its grade is not part of it."""
    return TABLE_FORMAT.encode(
        _Stored(TABLE_FORMAT.number, table.version, table.git_version, table.functions, table.derivatives)
    )


def decode_table(content: bytes, *, source: str | Path, grade: Grade) -> OperatorTable:
    """The table that `encode_table` stored."""
    stored = TABLE_FORMAT.decode(content, source)
    return OperatorTable(stored.functions, stored.derivatives, stored.version, stored.git_version, grade)


TABLE_FILE = "operators.msgpack.zst"
_RELEASE = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")


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


@cache
def packaged_table(version: str | None) -> OperatorTable | None:
    """The table of exactly this release; None if there is none."""
    stored = release_files(TABLE_FILE)
    path = None if version is None else stored.get(_public(version))
    if path is None:
        return None
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", source=path) from error
    return decode_table(content, source=path, grade=Grade.RELEASE_INDEX)


def packaged_versions() -> tuple[str, ...]:
    """Releases with a table, oldest first."""
    return tuple(sorted(filter(_RELEASE.match, release_files(TABLE_FILE)), key=label_order))


def _public(version: str) -> str:
    """The version without its local part: `2.13.0` of `2.13.0+cu130`."""
    return version.partition("+")[0]
