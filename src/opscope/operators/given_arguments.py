"""What `opscope run` saw of calls' arguments in a watched step, found for the calls that were recorded.

It says what the recorder leaves out: texts, numbers among tensors, lists; and of tensors where they lie in
memory, and how their values are spread. Recordings by others have nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from opscope.model.files import UNREADABLE_JSON
from opscope.model.queries import grouped
from opscope.model.session import Session
from opscope.model.sidecar import GivenArgument, GivenCall, GivenTensor
from opscope.operators.arguments import (
    Argument,
    CallArguments,
    ScalarArgument,
    TensorArgument,
    TensorListArgument,
    is_number,
    type_of,
)

_OTHERS = "Calls of these sizes were given other numbers or memory too: this is most of them."
Given = Mapping[str, GivenArgument]  # by the argument's name


def given_calls(session: Session) -> dict[str, list[GivenCall]]:
    """What calls of watched steps were given, by name; nothing of recordings by others."""
    kept = session.query(
        "SELECT value::JSON ->> '$.dataflow.calls' FROM metadata WHERE starts_with(key, 'sidecar:') "
        "AND json_valid(value)"
    )
    found: list[GivenCall] = []
    for (text,) in kept:
        try:
            found += msgspec.json.decode(text or "[]", type=list[GivenCall])
        except UNREADABLE_JSON:  # a saved session may be a stranger's
            continue
    return grouped((stem(one.name), one) for one in sorted(found, key=lambda one: -one.count))


def stem(name: str) -> str:
    """What names of an operator have in common: `aten::index_put` of `aten::_index_put_impl_`."""
    return name.removesuffix("_impl_").replace("::_", "::").rstrip("_")


def as_given(
    call: CallArguments, of_name: Sequence[GivenCall], below: Iterable[GivenCall]
) -> tuple[CallArguments, Given, list[str]]:
    """The call with what was seen of its arguments, and notes; itself where nothing was.

    Of an operator that only calls others these were seen in its place: then what is known of tensors is what
    calls `below` it were given that have their sizes.
    """
    fitting = [one for one in of_name if _fits(call, one)]
    fitting = [one for one in fitting if one.name == call.name] or fitting
    plain = [one for one in fitting if not any(tensor.kind for tensor in one.tensors())]
    if plain:
        seen = plain[0].arguments
        notes = [_OTHERS] if any(one.arguments != seen for one in plain[1:]) else []
        if call.stem is None:
            arguments, names = tuple(map(as_recorded, seen.values())), tuple(seen)
            filled = msgspec.structs.replace(call, arguments=arguments, given_names=names)
            return msgspec.structs.replace(filled, overload=plain[0].overload), seen, notes
        given = zip(call.names, call.arguments, strict=False)
        filled = msgspec.structs.replace(
            call,
            overload=plain[0].overload if plain[0].name == call.name else "",
            arguments=tuple(as_recorded(seen[name]) if name in seen else one for name, one in given),
            values_recorded=True,
        )
        # Another release may declare other arguments.
        if filled.schema is not None:
            return filled, seen, notes
    return _as_below(call, [*fitting, *below])


def _as_below(call: CallArguments, below: Sequence[GivenCall]) -> tuple[CallArguments, Given, list[str]]:
    tensors = {
        name: one
        for name, one in zip(call.names, call.arguments, strict=False)
        if isinstance(one, TensorArgument) and not is_number(one)
    }
    every = [one for given in below for one in given.tensors()]
    plain = grouped((_layout(one), one) for one in every if one.kind is None)
    for name, one in tensors.items():
        kinds = [other.kind for other in every if other.kind and _layout(other)[:2] == _layout(one)[:2]]
        if kinds and not plain[_layout(one)]:
            why = f"'{name}' is of the kind {kinds[0]}: only plain tensors can be written"
            return msgspec.structs.replace(call, defect=why), {}, []
    for given in below:  # all of them in their order
        rest = iter(given.tensors())
        found = {
            name: next((of for of in rest if _layout(of) == _layout(one)), None)
            for name, one in tensors.items()
        }
        if None not in found.values():
            return call, found, []
    alone = {
        name: {msgspec.structs.replace(of, memory=None, offset=0) for of in plain[_layout(one)]}
        for name, one in tensors.items()
    }
    return call, {name: ones.pop() for name, ones in alone.items() if len(ones) == 1}, []


def _layout(tensor: GivenTensor | TensorArgument) -> tuple[Any, ...]:
    type_name = tensor.dtype if isinstance(tensor, GivenTensor) else getattr(type_of(tensor), "name", "")
    return tensor.shape, type_name, tensor.strides


def _fits(call: CallArguments, given: GivenCall) -> bool:
    """Whether the recorder would have written this of it."""
    names, seen = call.names if call.stem else tuple(given.arguments), given.arguments
    if len(names) != len(call.arguments):
        return False
    pairs = dict(zip(names, call.arguments, strict=True))
    tensors = {name for name, one in pairs.items() if isinstance(one, (TensorArgument, TensorListArgument))}
    is_alike = given.name == call.name or tensors <= seen.keys()
    return is_alike and all(_may_be(one, seen[name]) for name, one in pairs.items() if name in seen)


def _may_be(recorded: Argument, given: GivenArgument) -> bool:
    if isinstance(recorded, TensorArgument):
        if is_number(recorded):
            return not isinstance(given, tuple)
        return (
            isinstance(given, GivenTensor)
            and _layout(recorded)[: 2 if given.kind else 3] == (_layout(given)[: 2 if given.kind else 3])
        )
    if isinstance(recorded, TensorListArgument):
        shapes = None if recorded.tensors is None else [one.shape for one in recorded.tensors]
        return isinstance(given, tuple) and shapes in (None, [one.shape for one in given if one is not None])
    if isinstance(recorded, ScalarArgument):
        value = ScalarArgument(given).value if isinstance(given, str) else None
        return None in (recorded.value, value) or recorded.value == value
    return True


def as_recorded(given: GivenArgument) -> Argument:
    if isinstance(given, GivenTensor):
        return TensorArgument(given.shape, given.dtype, given.strides)
    if isinstance(given, tuple):
        return TensorListArgument(
            tuple(TensorArgument(one.shape, one.dtype, one.strides) for one in given if one is not None)
        )
    return None if given == "None" else ScalarArgument(given)
