"""Least bytes of a call: each byte of its inputs read once, each byte of its results written once.

What an operator overwrites unread, what only lends its sizes, gathers and scatters that touch part of a
tensor: its row names one of the rules here, or its family's own. What children of the operator do (the zeros
a gradient is added to, the copy a scatter writes into) is theirs. Python numbers stay on the host and count
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from opscope.operators.arguments import TensorArgument, distinct_elements, type_of
from opscope.operators.effects import CallEffects, TrafficRule, UnrecordedError, known


def all_bytes(effects: CallEffects) -> tuple[int, int]:
    """All inputs are read, all results written."""
    return bytes_of(effects.device_inputs), bytes_of(effects.outputs)


def without(*names: str) -> TrafficRule:
    """All but some arguments is read: they are overwritten, or only their sizes matter."""
    return lambda effects: (bytes_of(inputs_without(effects, *names)), bytes_of(effects.outputs))


def gathering(*names: str) -> TrafficRule:
    """Of one argument as many elements are read as there are results, at most all of it."""

    def rule(effects: CallEffects) -> tuple[int, int]:
        table, written = known(effects.call.tensor(*names)), bytes_of(effects.outputs)
        return bytes_of(inputs_without(effects, *names)) + min(written, bytes_of((table,))), written

    return rule


def scattering(*, reads_target: bool) -> TrafficRule:
    """Elements of `self` are written, one for each of the source, or of the index without one."""

    def rule(effects: CallEffects) -> tuple[int, int]:
        call, target = effects.call, known(effects.call.tensor("self"))
        index, source = known(call.tensor("index")), call.tensor("src", "source", "value")
        moved = source if source is not None and source.shape else index
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
    return sum(distinct_elements(tensor) * item_bytes(tensor) for tensor in tensors)


def item_bytes(tensor: TensorArgument) -> int:
    """Bytes of one element."""
    element = type_of(tensor)
    if element is None and tensor.type_name is None:
        raise UnrecordedError("the element type of its list of tensors was not recorded")
    if element is None:
        raise UnrecordedError(f"element type {tensor.type_name} is unknown")
    return element.size_bytes
