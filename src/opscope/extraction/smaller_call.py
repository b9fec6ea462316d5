"""A recorded call made smaller, for tensors larger than the device that it is to run on."""

from __future__ import annotations

from math import ceil

import msgspec

from opscope.data import packaged_toml
from opscope.errors import InputError
from opscope.operators.arguments import (
    Argument,
    CallArguments,
    ScalarArgument,
    TensorArgument,
    TensorListArgument,
    broadcast,
)

_TABLE = packaged_toml(__package__, "input_values.toml")
_FIXED, _SIZES = frozenset(_TABLE["fixed"]), frozenset(_TABLE["sizes"])
MADE_SMALLER = "Made smaller (--scale "


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
        if isinstance(one, TensorArgument) and not _FIXED & {name, f"{call.stem}.{name}"}
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
        if isinstance(one, ScalarArgument) and name in _SIZES and isinstance(one.value, list):
            sizes = list(one.value)
            if at < len(sizes) and sizes[at] % before == 0:
                sizes[at] = sizes[at] // before * after
            return msgspec.structs.replace(one, text=str(sizes))
        return one

    arguments = tuple(smaller(name, one) for name, one in given.items())
    part = "tensors of each list" if is_of_lists else "in the dimension"
    said = f"{MADE_SMALLER}{fraction:g}): {after} {part} of {before}. Its time is not the recorded call's."
    return msgspec.structs.replace(call, arguments=arguments), said
