"""What is known of one launch: the kernel's decoded name, its geometry, the operator call, the device.

Operator arguments come as the recorder writes them: JSON of shapes, types, strides and scalars. Whatever is
missing or not understood is None; rules say nothing that needs it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

from opscope.analysis.cost.arguments import TensorArgument
from opscope.analysis.cost.element_types import item_size_bytes
from opscope.analysis.occupancy import SmLimits, sm_limits

if TYPE_CHECKING:  # the totals may import this package
    from opscope.analysis.totals import LaunchGeometry
    from opscope.provenance.kernel_names import DecodedKernel

__all__ = [
    "DeviceFacts",
    "Extent",
    "LaunchFacts",
    "OperatorCall",
    "TensorArgument",
    "broadcast",
    "item_size_bytes",
]

Shape = tuple[int, ...]
Extent = tuple[int, int, int]

_NO_TENSOR_TYPES = frozenset({"", "Scalar", "ScalarList", "TensorList", "Device", "Layout", "None"})


def broadcast(shapes: Iterable[Shape]) -> Shape | None:
    """The common shape of operands under broadcasting; None if they have none."""
    result: list[int] = []
    for shape in shapes:
        reversed_shape = shape[::-1]
        for position, size in enumerate(reversed_shape):
            if position == len(result):
                result.append(size)
            elif result[position] == 1:
                result[position] = size
            elif size not in (1, result[position]):
                return None
    return tuple(reversed(result))


@dataclass(frozen=True)
class OperatorCall:
    """One recorded call of an operator: name and arguments by position."""

    name: str
    shapes: tuple[Any, ...] = ()
    types: tuple[Any, ...] = ()
    strides: tuple[Any, ...] = ()
    concrete: tuple[Any, ...] = ()

    @classmethod
    def from_json(
        cls,
        name: str,
        *,
        shapes: Any = None,
        types: Any = None,
        strides: Any = None,
        concrete: Any = None,
    ) -> OperatorCall:
        """A call from its recorded arguments, each JSON text or the value parsed from it; None is unknown."""
        return cls(name, _items(shapes), _items(types), _items(strides), _items(concrete))

    def tensor(self, position: int) -> TensorArgument | None:
        """The tensor at a position; None if another kind of argument, or nothing, is recorded there."""
        shape = _at(self.shapes, position)
        type_name = _at(self.types, position)
        if not _is_shape(shape) or (type_name in _NO_TENSOR_TYPES if self.types else not shape):
            return None
        strides = _at(self.strides, position)
        has_strides = _is_shape(strides) and len(strides) == len(shape)
        return TensorArgument(
            tuple(shape),
            type_name if isinstance(type_name, str) else None,
            tuple(strides) if has_strides else None,
        )

    def tensor_list(self, position: int) -> tuple[TensorArgument, ...]:
        """Tensors of the list at a position; empty if there is none, or its members were not recorded."""
        shapes = _at(self.shapes, position)
        if not isinstance(shapes, list) or not shapes or not all(_is_shape(shape) for shape in shapes):
            return ()
        strides = _at(self.strides, position)
        members = (
            strides if isinstance(strides, list) and len(strides) == len(shapes) else [None] * len(shapes)
        )
        return tuple(
            TensorArgument(tuple(shape), None, tuple(stride) if _is_shape(stride) else None)
            for shape, stride in zip(shapes, members, strict=True)
        )

    @cached_property
    def tensors(self) -> tuple[TensorArgument, ...]:
        """All tensor arguments in order, those of lists left out."""
        found = (self.tensor(position) for position in range(len(self.shapes)))
        return tuple(tensor for tensor in found if tensor is not None)

    def integer(self, position: int) -> int | None:
        """The integer scalar at a position."""
        text = _at(self.concrete, position)
        try:
            return int(text) if isinstance(text, str) else None
        except ValueError:
            return None

    def integers(self, position: int) -> tuple[int, ...] | None:
        """The integer list (or one integer) at a position; None if nothing readable is recorded there."""
        text = _at(self.concrete, position)
        if not isinstance(text, str):
            return None
        value = _parsed(text)
        if isinstance(value, int) and not isinstance(value, bool):
            return (value,)
        return tuple(value) if _is_integer_list(value) else None

    def scalars(self) -> tuple[int, ...]:
        """Integer scalar arguments, in order."""
        found = (self.integer(position) for position in range(len(self.concrete)))
        return tuple(value for value in found if value is not None)


@dataclass(frozen=True)
class DeviceFacts:
    """The device a kernel ran on. Limits given here win over those known of the compute capability."""

    name: str | None = None
    compute_capability: str | None = None
    sm_count: int | None = None
    max_threads_per_sm: int | None = None
    registers_per_sm: int | None = None
    shared_memory_per_sm_bytes: int | None = None

    @property
    def limits(self) -> SmLimits | None:
        """Limits of one multiprocessor; None if the compute capability's are not known."""
        known = sm_limits(self.compute_capability)
        if known is None:
            return None
        return SmLimits(
            known.blocks,
            self.max_threads_per_sm or known.threads,
            self.registers_per_sm or known.registers,
            self.shared_memory_per_sm_bytes or known.shared_bytes,
            known.reserved_shared_bytes,
            known.shared_unit_bytes,
        )


@dataclass(frozen=True)
class LaunchFacts:
    """One launch configuration of a kernel under one operator call.

    Attributes:
        kernel: The decoded name.
        geometry: As recorded.
        call: The operator call; None if unknown.
        device: None if unknown.
        compile_arguments: Of a Triton kernel, by name: `{"XBLOCK": 1024}`.
        torch_version: Release that launched it, `"2.11.0"`; None if unknown.
        size_bytes: Bytes a copy or memory set moved.
    """

    kernel: DecodedKernel
    geometry: LaunchGeometry
    call: OperatorCall | None = None
    device: DeviceFacts | None = None
    compile_arguments: Mapping[str, int] = field(default_factory=dict)
    torch_version: str | None = None
    size_bytes: int | None = None

    @property
    def grid(self) -> Extent | None:
        """Blocks of the grid; unknown where a trace gives an extent that no launch can have."""
        return _possible(self.geometry.grid)

    @property
    def block(self) -> Extent | None:
        """Threads of a block; unknown where a trace gives an extent that no launch can have."""
        return _possible(self.geometry.block)

    @property
    def block_count(self) -> int | None:
        """Blocks of the whole grid."""
        return None if self.grid is None else prod(self.grid)

    @property
    def thread_count(self) -> int | None:
        """Threads of one block."""
        return None if self.block is None else prod(self.block)

    @property
    def sm_count(self) -> int | None:
        """Multiprocessors of the device."""
        return None if self.device is None else self.device.sm_count

    @property
    def max_threads_per_sm(self) -> int | None:
        """Threads one multiprocessor holds."""
        limits = None if self.device is None else self.device.limits
        return None if limits is None else limits.threads

    @property
    def function_name(self) -> str:
        """The kernel's function without its namespaces."""
        return (self.kernel.function or "").rpartition("::")[2]

    def template_argument(self, position: int) -> str | None:
        """The template argument at a position, as printed."""
        arguments = self.kernel.template_arguments
        return arguments[position] if -len(arguments) <= position < len(arguments) else None

    def template_integer(self, position: int) -> int | None:
        """The integer template argument at a position: `128`, `64u`, `(int)4`, `true`."""
        text = self.template_argument(position)
        if text is None:
            return None
        text = text.rpartition(")")[2].strip().rstrip("uUlL")
        if text in ("true", "false"):
            return int(text == "true")
        return int(text) if text.lstrip("-").isdecimal() else None

    def tensor(self, position: int) -> TensorArgument | None:
        """The operator call's tensor at a position."""
        return None if self.call is None else self.call.tensor(position)


def _possible(extent: Extent | None) -> Extent | None:
    return extent if extent is not None and min(extent) > 0 else None


def _items(value: Any) -> tuple[Any, ...]:
    parsed = _parsed(value) if isinstance(value, str) else value
    return tuple(parsed) if isinstance(parsed, (list, tuple)) else ()


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _at(values: tuple[Any, ...], position: int) -> Any:
    return values[position] if -len(values) <= position < len(values) else None


def _is_integer_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(
        isinstance(item, int) and not isinstance(item, bool) for item in value
    )


def _is_shape(value: Any) -> bool:
    return _is_integer_list(value) and all(size >= 0 for size in value)
