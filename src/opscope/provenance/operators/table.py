"""The operator table of one PyTorch build: native functions and backward nodes, found by name."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
import zstandard

from opscope.errors import InputError
from opscope.model.evidence import Grade
from opscope.provenance.operators.declarations import declared_functions, known_tags
from opscope.provenance.operators.derivatives import backward_nodes
from opscope.provenance.operators.generated import generated_functions
from opscope.provenance.operators.native_function import Derivative, NativeFunction
from opscope.provenance.operators.special_nodes import SPECIAL_NODES

__all__ = [
    "DERIVATIVES_YAML",
    "FORMAT",
    "NATIVE_FUNCTIONS_YAML",
    "TAGS_YAML",
    "OperatorTable",
    "build_operator_table",
    "decode_table",
    "encode_table",
]

# In a folder `torchgen/packaged` of a PyTorch installation.
NATIVE_FUNCTIONS_YAML = "ATen/native/native_functions.yaml"
TAGS_YAML = "ATen/native/tags.yaml"
DERIVATIVES_YAML = "autograd/derivatives.yaml"

FORMAT = 1
_COMPRESSION_LEVEL = 19
_LARGEST_BYTES = 64 << 20
_EVALUATE = "autograd::engine::evaluate_function: "


class OperatorTable:
    """Native functions and backward nodes of one build.

    Args:
        functions: Declared ones in the order of the yaml, then generated ones.
        derivatives: In the order of the yaml.
        version: Of PyTorch, e.g. `2.13.0`; None if unknown.
        git_version: Commit it was built from.
        grade: What its facts are worth for the trace at hand.
    """

    def __init__(
        self,
        functions: Iterable[NativeFunction],
        derivatives: Iterable[Derivative],
        *,
        version: str | None = None,
        git_version: str | None = None,
        grade: Grade = Grade.EXACT,
    ) -> None:
        self.functions = tuple(functions)
        self.derivatives = tuple(derivatives)
        self.version = version
        self.git_version = git_version
        self.grade = grade
        self._overloads: dict[str, list[NativeFunction]] = {}
        for entry in self.functions:
            self._overloads.setdefault(entry.name, []).append(entry)
        self._nodes = {derivative.node: derivative for derivative in self.derivatives}

    def __repr__(self) -> str:
        return f"<OperatorTable {self.version or 'of unknown version'}, {len(self.functions)} functions>"

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
        return self._nodes.get(name) or SPECIAL_NODES.get(name)

    def called_functions(self, derivative: Derivative) -> dict[str, tuple[NativeFunction, ...]]:
        """The overloads of each operator that a node's formulas call."""
        return {name: self.overloads(name) for name in derivative.functions}

    def graded(self, grade: Grade) -> OperatorTable:
        """The same facts, worth this much."""
        return OperatorTable(
            self.functions,
            self.derivatives,
            version=self.version,
            git_version=self.git_version,
            grade=grade,
        )


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    format: int
    version: str | None
    git_version: str | None
    functions: tuple[NativeFunction, ...]
    derivatives: tuple[Derivative, ...]


class _Head(msgspec.Struct, frozen=True, array_like=True):
    format: int


def build_operator_table(
    packaged: Path, *, version: str | None = None, git_version: str | None = None
) -> OperatorTable:
    """The table of a PyTorch installation, from the yaml files it ships. Takes about a second.

    Args:
        packaged: Its folder `torchgen/packaged`.
        version: Of PyTorch.
        git_version: Commit it was built from.

    Raises:
        InputError: A file is missing or not what it should be.
    """
    tags = known_tags(packaged / TAGS_YAML)
    functions = declared_functions(packaged / NATIVE_FUNCTIONS_YAML, tags)
    functions += generated_functions(functions, tags)
    derivatives = backward_nodes(packaged / DERIVATIVES_YAML, functions)
    return OperatorTable(functions, derivatives, version=version, git_version=git_version)


def encode_table(table: OperatorTable) -> bytes:
    """A table as it is stored: MessagePack, compressed with zstandard. Its grade is not part of it."""
    stored = _Stored(FORMAT, table.version, table.git_version, table.functions, table.derivatives)
    return zstandard.ZstdCompressor(level=_COMPRESSION_LEVEL).compress(msgspec.msgpack.encode(stored))


def decode_table(content: bytes, *, source: str | Path, grade: Grade) -> OperatorTable:
    """The table that `encode_table` stored.

    Raises:
        InputError: It is none, or has another format.
    """
    try:
        if zstandard.frame_content_size(content) > _LARGEST_BYTES:
            raise InputError("too large for an operator table", source=source)
        plain = zstandard.ZstdDecompressor().decompress(content, max_output_size=_LARGEST_BYTES)
        found = msgspec.msgpack.decode(plain, type=_Head).format
        if found != FORMAT:
            raise InputError(f"an operator table of format {found}, not {FORMAT}", source=source)
        stored = msgspec.msgpack.decode(plain, type=_Stored)
    except (zstandard.ZstdError, msgspec.MsgspecError) as error:
        raise InputError(f"not an operator table ({error})", source=source) from error
    return OperatorTable(
        stored.functions,
        stored.derivatives,
        version=stored.version,
        git_version=stored.git_version,
        grade=grade,
    )
