"""Code that makes the tensors of a call as they were recorded, with values that make sense for each.

What points somewhere (indices, classes) stays within what it points into, by `input_values.toml`. What was
seen of an argument in a watched step holds besides: alignment, shared memory, the spread of its values.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from math import ceil, prod

import msgspec

from opscope.data import packaged_toml
from opscope.errors import InputError
from opscope.extraction.starts import contiguous
from opscope.model.sidecar import GivenTensor, GivenValues
from opscope.operators.arguments import (
    Argument,
    CallArguments,
    ElementKind,
    ScalarArgument,
    TensorArgument,
    TensorListArgument,
    broadcast,
    type_of,
)

VALUES = packaged_toml(__package__, "input_values.toml")
MADE_SMALLER = "Made smaller (--scale "
HOW = "Record with shapes: opscope run, or record_shapes=True."
_LONG, _MOST_RECORDED = 4, 30  # members of a list
_ALIGNED, _ALLOCATED = 256, 512  # bytes: of what kernels ask for; of what torch's allocator gives out
_SHARE, _NEAR = 0.01, 0.1  # what is less, or nearer, makes no difference
_MOST_PERMUTED = 1 << 22


@dataclass
class Inputs:
    """The tensors of a call, each written into `made` when it is asked for."""

    call: CallArguments
    made: dict[str, str]  # code by variable
    notes: list[str]
    variables: dict[str, str] = field(default_factory=dict)  # by argument

    def make(self, name: str, given: TensorArgument | TensorListArgument, variable: str) -> None:
        """The code of an argument's tensors in a variable."""
        if isinstance(given, TensorListArgument):
            code = self._same_list(name, given) or self._list(name, variable, given)
        else:
            code = self._tensor(name, given)
        self.made[variable], self.variables[name] = code, variable

    def _same_list(self, name: str, given: TensorListArgument) -> str | None:
        """The variable of an earlier list whose tensors these are."""
        if self.call.is_seen:
            # Tensors are numbered by what they share: equal ones are the same if all of them share.
            is_shared = all(one.seen and one.seen.memory is not None for one in given.tensors or ())
            same = (to for earlier, to in self.variables.items() if self.call.at(earlier) == given)
            return next(same, None) if is_shared else None
        of = VALUES["same"].get(f"{self.call.stem}.{name}")
        if of is None or len(given.tensors or ()) <= _MOST_RECORDED:
            return None
        self.notes.append(f"'{name}' is taken to be '{of}', as torch.optim calls it.")
        return self.variables.get(of)

    def _list(self, name: str, variable: str, given: TensorListArgument) -> str:
        """In a loop over their shapes where they differ in these alone."""
        # The recorder leaves out their types.
        first = next((one.type_name for one in self.call.tensors if one.type_name), None)
        type_name = "long int" if name == "indices" else first
        tensors, members, after = given.tensors or (), list[str](), ""
        places = (place for place in count() if place not in given.missing)
        for one, place in zip(tensors, places, strict=False):
            seen = one.seen
            if seen is not None and seen.values is not None and len(tensors) >= _LONG:
                of = f"{variable}[{place}]"  # changed after the loop
                changed = "".join([of, *_added(seen.values, one.shape)])
                after += f"\n    {of} = {changed}" * (changed != of)
                seen = msgspec.structs.replace(seen, values=None)
            typed = msgspec.structs.replace(one, type_name=one.type_name or type_name, seen=seen)
            members.append(self._tensor(name, typed, member=place))
        sizes = [str(one.shape) for one in tensors]
        alike = {code.replace(size, "shape", 1) for code, size in zip(members, sizes, strict=True)}
        if len(alike) != 1 or given.missing or len(members) < _LONG:
            for place in given.missing:
                members.insert(place, "None")
            return "\n".join(["[", *(f"        {one}," for one in members), "    ]"]) + after
        # A shape stays on one line.
        shapes = textwrap.wrap(", ".join(size.replace(" ", "_") for size in sizes), 96)
        lines = "".join(f"            {line.replace('_', ' ')}\n" for line in shapes)
        return f"[\n        {alike.pop()}\n        for shape in [\n{lines}        ]\n    ]{after}"

    def _tensor(self, name: str, tensor: TensorArgument, *, member: int | None = None) -> str:
        call, seen = self.call, tensor.seen
        if (known := type_of(tensor)) is None:
            raise InputError(f"{call.name}: the element type of '{name}' was not recorded", hint=HOW)
        shape, strides, laid = tensor.shape, tensor.strides or contiguous(tensor.shape), ""
        sizes, full_name, offset = shape, f"{call.stem}.{name}", 0
        kind = VALUES["kinds"].get(full_name) or VALUES["kinds"].get(name, "any")
        beside = self._beside(seen)
        if seen is not None and beside:
            # From where the allocator gave out what they share.
            first = min(one.offset for one in beside.values()) * known.size_bytes
            begin = first // _ALLOCATED * _ALLOCATED // known.size_bytes
            offset = seen.offset - begin
            if earlier := next((self.variables[one] for one in beside if one in self.variables), None):
                return f"{earlier}.as_strided({shape}, {strides}, {offset})"
            reached = max(one.offset - begin + _reach(one) for one in (seen, *beside.values()))
        else:
            if seen is not None and known.size_bytes <= seen.alignment < _ALIGNED:
                offset = seen.alignment // known.size_bytes
            reached = offset + _reach(tensor)
        if 0 not in shape and (strides != contiguous(shape) or offset or beside):
            # A view into memory of just the length that its strides reach.
            sizes = (reached,)
            laid = f".as_strided({shape}, {strides}{f', {offset}' * bool(offset)})"
            kind = "positive" if kind == "positive" else "any"
        if known.kind in {ElementKind.BOOLEAN, ElementKind.INTEGER} and kind != "offsets":
            kind = str(known.kind)
        elif known.name.startswith("float8"):
            kind = "float8"
        # What integers stay below: 2 where nothing says what they point into.
        of, *dims = VALUES["below"].get(full_name, [""])
        dim, pointed = call.integer("dim"), call.tensor(of)
        place = member if member is not None else dims[0] if dims else dim
        limit = call.integer(of) or 2
        if pointed is not None and place is not None and -len(pointed.shape) <= place < len(pointed.shape):
            limit = max(1, pointed.shape[place])
        dtype, of_call = f"torch.{known.name}", type_of(call.tensors[0]) if call.tensors else None
        if name in VALUES["statistics"] and of_call is not None and of_call.name in {"float16", "bfloat16"}:
            dtype = f'torch.{of_call.name} if "cpu" in str(device) else {dtype}'
        rows = shape[-1] if shape else 1
        code = VALUES["values"][kind].format(
            sizes=sizes, dtype=dtype, limit=limit, rows=rows, parts=max(1, rows - 1), dim=dim
        )
        if seen is not None and seen.values is not None:
            code = _spread(code, kind, seen.values, sizes, dtype)
        # Where an operator only calls others (one that was seen does not), this decides which.
        is_needed = seen is not None and seen.requires_grad and not (call.is_seen or call.name.endswith("_"))
        return (f"({code}){laid}" if laid else code) + ".requires_grad_()" * is_needed

    def _beside(self, seen: GivenTensor | None) -> dict[str, GivenTensor]:
        """Arguments that lie in the memory of one, itself among them; none if it lies alone."""
        found = {
            name: one.seen
            for name, one in zip(self.call.names, self.call.arguments, strict=False)
            if isinstance(one, TensorArgument)
            and one.seen
            and seen
            and one.seen.memory == seen.memory is not None
        }
        return found if len(found) > 1 and len({one.dtype for one in found.values()}) == 1 else {}


def _reach(tensor: TensorArgument | GivenTensor) -> int:
    """Elements of memory that a tensor reaches over."""
    strides = tensor.strides or contiguous(tensor.shape)
    steps = ((size - 1) * step for size, step in zip(tensor.shape, strides, strict=True))
    return 0 if 0 in tensor.shape else 1 + sum(steps)


def _spread(code: str, kind: str, values: GivenValues, sizes: tuple[int, ...], dtype: str) -> str:
    """Code of values that are spread as those were that were seen."""
    total, parts = prod(sizes), VALUES["recorded"]
    fields = {"sizes": sizes, "dtype": dtype, "zeros": values.zeros}
    if values.zeros == 1.0:
        return str(parts["nothing"].format(**fields))
    if kind == ElementKind.BOOLEAN:
        return str(parts["boolean"].format(**fields))
    if values.every is not None and len(values.every) == total:
        lines = textwrap.wrap(str([*values.every]), 100)
        every = lines[0] if len(lines) == 1 else "\n        ".join(["", *lines]) + "\n    "
        return str(parts["every"].format(every=every, **fields))
    if kind == "offsets":
        return code
    if values.low is not None and values.high is not None:
        low, end = max(values.low, 0), max(values.high, 0) + 1
        span = end - low
        by_chance = span * (1 - (1 - 1 / span) ** total)  # different ones of numbers that are drawn
        is_drawn = abs(values.distinct - by_chance) < _NEAR * by_chance or span > _MOST_PERMUTED
        fields |= {"low": low, "end": end, "span": span, "count": total}
        fields["distinct"] = min(values.distinct, span)
        code = parts["drawn" if is_drawn else "picked"].format(**fields)
    return "".join([code, *_added(values, sizes)])


def _added(values: GivenValues, sizes: tuple[int, ...]) -> Iterator[str]:
    """Code behind that of random values: what is 0, below 0 or in order."""
    parts = VALUES["recorded"]
    by_row = values.empty > _SHARE and len(sizes) > 1
    by_chance = 1 / values.distinct if values.distinct else 0.0
    if by_row:
        yield parts["empty"].format(rows=(*sizes[:-1], 1), empty=values.empty)
    elif values.zeros > _SHARE + 2 * by_chance:
        yield parts["zeros"].format(sizes=sizes, zeros=values.zeros)
    if values.negative:
        yield parts["negative"].format(sizes=sizes, negative=values.negative, lowest=values.low)
    if values.is_sorted and values.distinct > 1:
        yield parts["sorted"].format(sizes=sizes)


def scaled(call: CallArguments, fraction: float) -> tuple[CallArguments, tuple[str]]:
    """The call with less of its first dimension of several, or fewer members of its lists; a note of that."""
    given = dict(zip(call.names, call.arguments, strict=False))
    lists = [one.tensors for one in given.values() if isinstance(one, TensorListArgument) and one.tensors]
    moving = [
        one
        for name, one in given.items()
        if isinstance(one, TensorArgument) and not set(VALUES["fixed"]) & {name, f"{call.stem}.{name}"}
    ]
    longest = max((one.shape for one in moving), key=len, default=())
    is_of_lists = bool(lists) and not any(size > 1 for size in longest)
    sizes = (len(lists[0]),) if is_of_lists else longest
    at, before = next(((place, size) for place, size in enumerate(sizes) if size > 1), (0, 1))
    if (after := ceil(before * fraction)) == before:
        raise InputError(f"{call.name}: no dimension of it can be made smaller", hint="Leave --scale out")

    def smaller(name: str, one: Argument) -> Argument:
        if isinstance(one, TensorListArgument) and one.tensors:
            kept = one.tensors[: after if is_of_lists else None]
            plain = tuple(msgspec.structs.replace(member, seen=None) for member in kept)
            return msgspec.structs.replace(one, tensors=plain)
        if isinstance(one, TensorArgument):
            # One that each row gets keeps its size.
            is_row = len(one.shape) < len(longest) and (at or broadcast([one.shape, longest]) == longest)
            is_moving = one in moving and one.shape[at : at + 1] == (before,) and not is_row
            shape = (*one.shape[:at], after, *one.shape[at + 1 :]) if is_moving else one.shape
            return msgspec.structs.replace(one, shape=shape, seen=None)
        if isinstance(one, ScalarArgument) and name in VALUES["sizes"] and isinstance(one.value, list):
            sizes = list(one.value)
            if at < len(sizes) and sizes[at] % before == 0:
                sizes[at] = sizes[at] // before * after
            return msgspec.structs.replace(one, text=str(sizes))
        return one

    arguments = tuple(smaller(name, one) for name, one in given.items())
    part = "tensors of each list" if is_of_lists else "in the dimension"
    said = f"{MADE_SMALLER}{fraction:g}): {after} {part} of {before}. Its time is not the recorded call's."
    return msgspec.structs.replace(call, arguments=arguments), (said,)
