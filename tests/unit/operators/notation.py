"""Calls as a row of `calls.jsonl` writes them.

A tensor is `"float32[2,3]"`, with its strides if it is not dense (`"float32[2,3]@[1,2]"`); a list of tensors
is a list of these, `"list?"` where its members were not recorded. Numbers, truth values and lists of them are
JSON's, `"=inf"` what JSON has none for, `"?"` one whose value was not recorded. null: nothing, or what is not
recorded.
"""

import json
import re
from math import prod

from opscope.operators.arguments import element_type, parse_arguments, with_list_types

_TENSOR = re.compile(r"(?P<type>\w+)\[(?P<shape>[\d,]*)\](?:@\[(?P<strides>[\d,]*)\])?")


def call_of(row):
    """The recorded call of a row."""
    columns = list(zip(*map(_recorded, row["arguments"]), strict=True)) or [(), (), (), ()]
    shapes, types, strides, concrete = (json.dumps(column) for column in columns)
    call = parse_arguments(
        f"aten::{row['call']}",
        overload=row.get("overload"),
        shapes=shapes,
        types=types,
        strides=None if row.get("without") == "strides" else strides,
        concrete=None if row.get("without") == "values" else concrete,
    )
    members = [one for value in row["arguments"] if isinstance(value, list) for one in value]
    typed = next((_recorded(one)[1] for one in members if isinstance(one, str)), None)
    return call if typed is None else with_list_types(call, dict.fromkeys(call.list_positions, typed))


def tensor_text(tensor):
    """`"float32[2,3]"`."""
    known = element_type(tensor.type_name)
    shape, strides = (",".join(map(str, sizes)) for sizes in (tensor.shape, tensor.strides or ()))
    is_dense = tensor.strides is None or tensor.strides == _dense(tensor.shape)
    return f"{'untyped' if known is None else known.name}[{shape}]" + ("" if is_dense else f"@[{strides}]")


def _recorded(value):
    """Shape, type, strides and value as a trace has them."""
    tensor = _TENSOR.fullmatch(value) if isinstance(value, str) else None
    if tensor is not None:
        known, shape = element_type(tensor["type"]), _sizes(tensor["shape"])
        strides = _dense(shape) if tensor["strides"] is None else _sizes(tensor["strides"])
        return list(shape), "" if known is None else known.recorded_name, list(strides), ""
    if value == "list?":
        return [], "TensorList", [], ""
    if isinstance(value, list) and value and isinstance(value[0], str):
        members = [_recorded(one) for one in value]
        return [one[0] for one in members], "TensorList", [one[2] for one in members], ""
    if value is None:
        return [], "", [], ""
    text = "" if value == "?" else value[1:] if isinstance(value, str) else str(value)
    return [], "ScalarList" if isinstance(value, list) else "Scalar", [], text


def _sizes(text):
    return tuple(map(int, text.split(","))) if text else ()


def _dense(shape):
    return tuple(prod(shape[at + 1 :]) for at in range(len(shape)))
