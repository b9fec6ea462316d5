"""Code that makes the tensors of a call as they were recorded, with values that make sense for each.

What points somewhere (indices, classes) stays within what it points into, by `input_values.toml`. What was
seen of an argument in a watched step holds besides: alignment, shared memory, the spread of its values.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil, prod

import msgspec

from opscope.data import packaged_toml
from opscope.errors import InputError
from opscope.extraction.starts import contiguous
from opscope.model.sidecar import GivenTensor, GivenValues
from opscope.operators.arguments import (
    Argument,
    CallArguments,
    ScalarArgument,
    TensorArgument,
    TensorListArgument,
    broadcast,
    type_of,
)
from opscope.operators.element_types import ElementKind
from opscope.operators.given_arguments import Given

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
    seen: Given
    made: dict[str, str]  # code by variable
    notes: list[str]
    variables: dict[str, str] = field(default_factory=dict)  # by argument

    def make(self, name: str, given: TensorArgument | TensorListArgument, variable: str) -> None:
        """The code of an argument's tensors in a variable."""
        seen = self.seen.get(name)
        if isinstance(given, TensorListArgument):
            code = self._same_list(name, given) or self._list(name, variable, given.tensors or ())
        else:
            code = self._tensor(name, given, seen if isinstance(seen, GivenTensor) else None)
        self.made[variable], self.variables[name] = code, variable

    def _same_list(self, name: str, given: TensorListArgument) -> str | None:
        """The variable of an earlier list whose tensors these are."""
        seen, of = self.seen.get(name), VALUES["same"].get(f"{self.call.stem}.{name}")
        if isinstance(seen, tuple) and all(one is not None and one.memory is not None for one in seen):
            return next(
                (to for earlier, to in self.variables.items() if self.seen.get(earlier) == seen), None
            )
        if self.seen or of is None or len(given.tensors or ()) <= _MOST_RECORDED:
            return None
        self.notes.append(f"'{name}' is taken to be '{of}', as torch.optim calls it.")
        return self.variables.get(of)

    def _list(self, name: str, variable: str, tensors: Sequence[TensorArgument]) -> str:
        """In a loop over their shapes where they differ in these alone."""
        seen = self.seen.get(name)
        # The recorder leaves out their types.
        first = next((one.type_name for one in self.call.tensors if one.type_name), None)
        type_name = "long int" if name == "indices" else first
        numbered, members, after = iter(tensors), list[str](), ""
        for number, fact in enumerate(seen if isinstance(seen, tuple) else (None,) * len(tensors)):
            if isinstance(seen, tuple) and fact is None:
                members.append("None")
                continue
            one = next(numbered)
            if fact is not None and fact.values is not None and len(tensors) >= _LONG:
                of = f"{variable}[{number}]"  # changed after the loop
                changed = "".join([of, *_added(fact.values, one.shape)])
                after += f"\n    {of} = {changed}" * (changed != of)
                fact = msgspec.structs.replace(fact, values=None)  # noqa: PLW2901
            typed = msgspec.structs.replace(one, type_name=one.type_name or type_name)
            members.append(self._tensor(name, typed, fact, member=number))
        sizes = [str(one.shape) for one in tensors]
        alike = {code.replace(size, "shape", 1) for code, size in zip(members, sizes, strict=False)}
        if len(alike) != 1 or not _LONG <= len(members) == len(sizes):
            return "\n".join(["[", *(f"        {one}," for one in members), "    ]"]) + after
        # A shape stays on one line.
        shapes = textwrap.wrap(", ".join(size.replace(" ", "_") for size in sizes), 96)
        lines = "".join(f"            {line.replace('_', ' ')}\n" for line in shapes)
        return f"[\n        {alike.pop()}\n        for shape in [\n{lines}        ]\n    ]{after}"

    def _tensor(
        self, name: str, tensor: TensorArgument, fact: GivenTensor | None, *, member: int | None = None
    ) -> str:
        call = self.call
        if (known := type_of(tensor)) is None:
            raise InputError(f"{call.name}: the element type of '{name}' was not recorded", hint=HOW)
        shape, strides, laid = tensor.shape, tensor.strides or contiguous(tensor.shape), ""
        sizes, full_name, offset = shape, f"{call.stem}.{name}", 0
        kind = VALUES["kinds"].get(full_name) or VALUES["kinds"].get(name, "any")
        beside = self._beside(fact)
        if fact is not None and beside:
            # From where the allocator gave out what they share.
            begin = min(one.offset for _, one in beside) * known.size_bytes // _ALLOCATED * _ALLOCATED
            offset = fact.offset - begin // known.size_bytes
            first = next((self.variables[one] for one, _ in beside if one in self.variables), None)
            if first is not None:
                return f"{first}.as_strided({shape}, {strides}, {offset})"
        elif fact is not None and known.size_bytes <= fact.alignment < _ALIGNED:
            offset = fact.alignment // known.size_bytes
        if 0 not in shape and (strides != contiguous(shape) or offset or beside):
            # A view into memory of just the length that its strides reach.
            ends = (offset - fact.offset + one.offset + _reach(one) for _, one in beside if fact is not None)
            sizes = (max(offset + _reach(tensor), *ends, 0),)
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
        if fact is not None and fact.values is not None:
            code = _spread(code, kind, fact.values, sizes, dtype)
        return f"({code}){laid}" if laid else code

    def _beside(self, fact: GivenTensor | None) -> list[tuple[str, GivenTensor]]:
        """Arguments that lie in the memory of one, itself among them; none if it lies alone."""
        if fact is None or fact.memory is None:
            return []
        given = [(name, one) for name, one in self.seen.items() if isinstance(one, GivenTensor)]
        found = [(name, one) for name, one in given if one.memory == fact.memory]
        return found if len(found) > 1 and len({one.dtype for _, one in found}) == 1 else []


def _reach(tensor: TensorArgument | GivenTensor) -> int:
    """Elements of memory that a tensor reaches over."""
    strides = tensor.strides or contiguous(tensor.shape)
    steps = ((size - 1) * step for size, step in zip(tensor.shape, strides, strict=True))
    return 0 if 0 in tensor.shape else 1 + sum(steps)


def _spread(code: str, kind: str, values: GivenValues, sizes: tuple[int, ...], dtype: str) -> str:
    """Code of values that are spread as those were that were seen."""
    count, parts = prod(sizes), VALUES["recorded"]
    fields = {"sizes": sizes, "dtype": dtype, "zeros": values.zeros}
    if values.zeros == 1.0:
        return str(parts["nothing"].format(**fields))
    if kind == ElementKind.BOOLEAN:
        return str(parts["boolean"].format(**fields))
    if values.every is not None and len(values.every) == count:
        lines = textwrap.wrap(str([*values.every]), 100)
        every = lines[0] if len(lines) == 1 else "\n        ".join(["", *lines]) + "\n    "
        return str(parts["every"].format(every=every, **fields))
    if kind == "offsets":
        return code
    if values.low is not None and values.high is not None:
        low, end = max(values.low, 0), max(values.high, 0) + 1
        span = end - low
        by_chance = span * (1 - (1 - 1 / span) ** count)  # different ones of numbers that are drawn
        is_drawn = abs(values.distinct - by_chance) < _NEAR * by_chance or span > _MOST_PERMUTED
        way = "drawn" if is_drawn else "permuted" if values.distinct == count else "picked"
        fields |= {"low": low, "end": end, "span": span, "count": count}
        fields["distinct"] = min(values.distinct, span)
        code = parts[way].format(**fields)
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


def scaled(call: CallArguments, fraction: float) -> tuple[CallArguments, str]:
    """The call with less of its first dimension of several, or fewer members of its lists; what that says.

    Raises:
        InputError: It has no such dimension.
    """
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
        if isinstance(one, TensorListArgument) and is_of_lists and one.tensors:
            return TensorListArgument(one.tensors[:after])
        if isinstance(one, TensorArgument) and one in moving and one.shape[at : at + 1] == (before,):
            # One that each row gets keeps its size.
            is_row = len(one.shape) < len(longest) and (at or broadcast([one.shape, longest]) == longest)
            shape = (*one.shape[:at], after, *one.shape[at + 1 :])
            return one if is_row else msgspec.structs.replace(one, shape=shape)
        if isinstance(one, ScalarArgument) and name in VALUES["sizes"] and isinstance(one.value, list):
            sizes = list(one.value)
            if at < len(sizes) and sizes[at] % before == 0:
                sizes[at] = sizes[at] // before * after
            return msgspec.structs.replace(one, text=str(sizes))
        return one

    arguments = tuple(smaller(name, one) for name, one in given.items())
    part = "tensors of each list" if is_of_lists else "in the dimension"
    said = f"{MADE_SMALLER}{fraction:g}): {after} {part} of {before}. Its time is not the recorded call's."
    return msgspec.structs.replace(call, arguments=arguments), said
