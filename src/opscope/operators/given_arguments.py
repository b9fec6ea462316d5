"""What `opscope run` saw of calls' arguments in a watched step, found for the calls that were recorded.

It says what the recorder leaves out: texts, numbers among tensors, lists; and of tensors where they lie in
memory, and how their values are spread. Recordings by others have nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
    with_arguments,
)

_OTHERS = "Calls of these sizes were given other numbers or memory too: this is most of them."


class SeenCall(CallArguments, frozen=True):
    """A call of a watched step."""

    grid: tuple[int, ...] | None = None  # of a Triton kernel that the program launched itself
    source: str | None = None  # of that; None where it needs what cannot be written down


def seen_calls(session: Session) -> dict[str, list[SeenCall]]:
    """Calls of watched steps by `stem`, the most frequent first; nothing of recordings by others."""
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
    calls = (
        SeenCall(
            one.name,
            one.overload,
            tuple(map(_as_recorded, one.arguments.values())),
            given_names=tuple(one.arguments),
            is_seen=True,
            grid=one.grid,
            source=one.source,
        )
        for one in sorted(found, key=lambda one: -one.count)
    )
    return grouped((stem(one.name), one) for one in calls)


def stem(name: str) -> str:
    """What names of an operator have in common: `aten::index_put` of `aten::_index_put_impl_`."""
    return name.removesuffix("_impl_").replace("::_", "::").rstrip("_")


def as_seen(
    call: CallArguments, of_name: Sequence[SeenCall], below: Iterable[SeenCall]
) -> tuple[CallArguments, list[str]]:
    """The call with what was seen of its arguments, and notes; itself where nothing was.

    Of an operator that only calls others these were seen in its place: then what is known of tensors is what
    calls `below` it were given that have their sizes.
    """
    fitting = [one for one in of_name if _fits(call, one)]
    fitting = [one for one in fitting if one.name == call.name] or fitting
    plain = [one for one in fitting if all(tensor.seen and not tensor.seen.kind for tensor in one.tensors)]
    if plain:
        seen = plain[0]
        given = zip(call.names if call.stem else seen.names, call.arguments, strict=False)
        filled = msgspec.structs.replace(
            call,
            overload=seen.overload if seen.name == call.name else "",
            arguments=tuple(
                seen.at(name)
                if seen.has(name)
                # Which call had which number is not known: where several are, they are the user's to write.
                and not (isinstance(one, TensorArgument) and len({of.value(name) for of in plain}) > 1)
                else one
                for name, one in given
            ),
            given_names=None if call.stem else seen.names,
            values_recorded=True,
            is_seen=True,
        )
        # Another release may declare other arguments.
        if call.stem is None or filled.schema is not None:
            return filled, [_OTHERS] if any(one.arguments != seen.arguments for one in plain) else []
    if kinds := [one.seen.kind for seen in fitting for one in seen.tensors if one.seen and one.seen.kind]:
        return msgspec.structs.replace(call, defect=f"it was given a {kinds[0]}, not a plain tensor"), []
    return _as_below(call, [*fitting, *below]), []


def _as_below(call: CallArguments, below: Sequence[SeenCall]) -> CallArguments:
    tensors = {
        place: one
        for place, (_, one) in enumerate(zip(call.names, call.arguments, strict=False))
        if isinstance(one, TensorArgument) and not is_number(one)
    }
    alone: dict[int, Argument] = {}
    for place, one in tensors.items():
        alike = [other for seen in below for other in seen.tensors if _is_like(other, one)]
        kinds = [other.seen.kind for other in alike if other.seen]
        if kinds and None not in kinds:
            why = f"'{call.names[place]}' is of the kind {kinds[0]}: only plain tensors can be written"
            return msgspec.structs.replace(call, defect=why)
        facts = [other.seen for other in alike if other.seen and not other.seen.kind]
        # Gradients of a weight have its sizes, and need none themselves; of what is viewed no value was read.
        for known in ("requires_grad", "values"):
            facts = [fact for fact in facts if getattr(fact, known)] or facts
        unshared = {msgspec.structs.replace(fact, memory=None, offset=0) for fact in facts}
        if len(unshared) == 1:
            alone[place] = msgspec.structs.replace(one, seen=unshared.pop())
    for seen in below:  # all of them in their order
        rest = iter([one for one in seen.tensors if one.seen and not one.seen.kind])
        found = {at: next((of for of in rest if _is_like(of, one)), None) for at, one in tensors.items()}
        if None not in found.values():
            return with_arguments(call, found)
    return with_arguments(call, alone)


def _fits(call: CallArguments, seen: SeenCall) -> bool:
    """Whether the recorder would have written this of it."""
    names = call.names if call.stem else seen.names
    if len(names) != len(call.arguments):
        return False
    pairs = dict(zip(names, call.arguments, strict=True))
    tensors = {name for name, one in pairs.items() if isinstance(one, (TensorArgument, TensorListArgument))}
    is_alike = seen.name == call.name or tensors.issubset(seen.names)
    return is_alike and all(_may_be(one, seen.at(name)) for name, one in pairs.items() if seen.has(name))


def _may_be(recorded: Argument, seen: Argument) -> bool:
    if isinstance(recorded, TensorArgument):
        if is_number(recorded):
            return not isinstance(seen, TensorListArgument) and not getattr(seen, "shape", ())
        return isinstance(seen, TensorArgument) and _is_like(seen, recorded)
    if isinstance(recorded, TensorListArgument):
        shapes = None if recorded.tensors is None else [one.shape for one in recorded.tensors]
        return isinstance(seen, TensorListArgument) and (
            shapes is None or shapes == [one.shape for one in seen.tensors or ()]
        )
    if isinstance(recorded, ScalarArgument):
        value = seen.value if isinstance(seen, ScalarArgument) else None
        return None in (recorded.value, value) or recorded.value == value
    return True


def _is_like(one: TensorArgument, other: TensorArgument) -> bool:
    is_laid_alike = None in (one.strides, other.strides) or one.strides == other.strides
    return one.shape == other.shape and type_of(one) == type_of(other) and is_laid_alike


def _as_recorded(given: GivenArgument) -> Argument:
    if isinstance(given, GivenTensor):
        return TensorArgument(given.shape, given.dtype, given.strides, given)
    if isinstance(given, tuple):
        tensors = (TensorArgument(one.shape, one.dtype, one.strides, one) for one in given if one is not None)
        missing = (place for place, one in enumerate(given) if one is None)
        return TensorListArgument(tuple(tensors), tuple(missing))
    return None if given == "None" else ScalarArgument(given)
