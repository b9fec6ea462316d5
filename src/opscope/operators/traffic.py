"""Least bytes of a call: each byte of its inputs read once, each byte of its results written once.

What an operator overwrites unread, what only lends its sizes, gathers and scatters that touch part of a
tensor: its row names one of the rules here, or its family's own. What children of the operator do (the zeros
a gradient is added to, the copy a scatter writes into) is theirs. Python numbers stay on the host and count
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from opscope.operators.arguments import TensorArgument, distinct_bytes, type_of
from opscope.operators.effects import CallEffects, TrafficRule


@dataclass(frozen=True)
class Traffic:
    """Least bytes of one call; both None, with a reason, where unknown."""

    read_bytes: int | None = None
    written_bytes: int | None = None
    reason: str | None = None


class UncountableError(Exception):
    """The bytes do not follow from the effects; its text is the reason."""


def least_traffic(effects: CallEffects, rule: TrafficRule | None = None) -> Traffic:
    """Least bytes of one call, by its operator's rule if it has one."""
    try:
        return Traffic(*(rule or _whole)(effects))
    except UncountableError as error:
        return Traffic(reason=str(error))


def _whole(effects: CallEffects) -> tuple[int, int]:
    return bytes_of(effects.device_inputs), bytes_of(effects.outputs)


def without(*names: str) -> TrafficRule:
    """All but some arguments is read: they are overwritten, or only their sizes matter."""
    return lambda effects: (bytes_of(inputs_without(effects, *names)), bytes_of(effects.outputs))


def gathering(*names: str) -> TrafficRule:
    """Of one argument as many elements are read as there are results, at most all of it."""

    def rule(effects: CallEffects) -> tuple[int, int]:
        table, written = tensor_of(effects, *names), bytes_of(effects.outputs)
        return bytes_of(inputs_without(effects, *names)) + min(written, bytes_of((table,))), written

    return rule


def scattering(*, reads_target: bool) -> TrafficRule:
    """Elements of `self` are written, one for each of the source, or of the index without one."""

    def rule(effects: CallEffects) -> tuple[int, int]:
        call, target = effects.call, tensor_of(effects, "self")
        index, source = call.tensor("index"), call.tensor("src", "source", "value")
        moved = source if source is not None and source.shape else index
        if index is None or moved is None:
            raise UncountableError("its index was not recorded")
        touched = min(moved.element_count * item_bytes(target), bytes_of((target,)))
        return bytes_of(inputs_without(effects, "self")) + (touched if reads_target else 0), touched

    return rule


def inputs_without(effects: CallEffects, *names: str) -> list[TensorArgument]:
    """What is read of a call's inputs besides some arguments."""
    left = list(effects.device_inputs)
    for name in names:
        for tensor in effects.call.members(name):
            if tensor in left:
                left.remove(tensor)
    return left


def bytes_of(tensors: Iterable[TensorArgument]) -> int:
    """Distinct bytes of tensors."""
    total = 0
    for tensor in tensors:
        size_bytes = distinct_bytes(tensor)
        if size_bytes is None:
            raise UncountableError(_uncounted(tensor))
        total += size_bytes
    return total


def item_bytes(tensor: TensorArgument) -> int:
    """Bytes of one element."""
    known = type_of(tensor)
    if known is None:
        raise UncountableError(_uncounted(tensor))
    return known.size_bytes


def tensor_of(effects: CallEffects, *names: str) -> TensorArgument:
    """The tensor of a name."""
    found = effects.call.tensor(*names)
    if found is None:
        raise UncountableError("its first argument was not recorded as a tensor")
    return found


def _uncounted(tensor: TensorArgument) -> str:
    if tensor.type_name is None:
        return "the element type of its list of tensors was not recorded"
    if type_of(tensor) is None:
        return f"element type {tensor.type_name} is unknown"
    return "strides of an argument overlap irregularly"
