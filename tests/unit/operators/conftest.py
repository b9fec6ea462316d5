"""Calls of torch operators on tensors without data, as the recorder would write them, and what they give."""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from opscope.operators.arguments import (
    ELEMENT_TYPES,
    CallArguments,
    ScalarArgument,
    TensorArgument,
    TensorListArgument,
    element_type,
    element_type_of_code,
    is_number,
    parse_arguments,
    with_list_types,
)

from .notation import tensor_text

RECORDED_NAMES = {known.name: known.recorded_name for known in ELEMENT_TYPES}
CODES = {
    "uint8": 0, "int8": 1, "int16": 2, "int32": 3, "int64": 4, "float16": 5, "float32": 6, "float64": 7,
    "complex64": 9, "bool": 11, "bfloat16": 15, "float8_e4m3fn": 24,
}  # fmt: skip


@dataclass(frozen=True)
class Performed:
    """One call: as recorded, and what torch took and gave."""

    call: CallArguments
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]

    @property
    def stated_outputs(self):
        return [(tuple(tensor.shape), _type_name(tensor)) for tensor in self.outputs]


@dataclass(frozen=True)
class Replayed:
    """What torch took and gave: results as `calls.jsonl` writes them, operations if it counts them."""

    results: list[str]
    flop_count: int | None
    read: list[Any]
    written: list[Any]


class Recorder:
    """Runs operators of torch on tensors without data."""

    def __init__(self):
        self.torch = pytest.importorskip("torch")

    def meta(self, *shape, dtype="float32", strides=None):
        element = getattr(self.torch, dtype)
        if strides is None:
            return self.torch.empty(shape, dtype=element, device="meta")
        return self.torch.empty_strided(shape, strides, dtype=element, device="meta")

    def run(self, name, *arguments, **named):
        """Run and record an overload: `run("add.Tensor", x, y)`."""
        operator = self._overload(name)
        call = self.record(name, *arguments, **named)
        members = [one for value in arguments if isinstance(value, list) for one in _tensors(value)]
        if members:  # as a kernel of the call names their type
            call = with_list_types(call, dict.fromkeys(call.list_positions, _type_name(members[0])))
        written = {
            declared.name: argument
            for declared, argument in zip(operator._schema.arguments, arguments, strict=False)
            if declared.alias_info is not None and declared.alias_info.is_write
        }
        outs = [id(value) for key, value in named.items() if _is_out(operator, key)]
        inputs = [one for one in _tensors([*arguments, *named.values()]) if id(one) not in outs]
        results = tuple(_tensors(operator(*arguments, **named)))
        return Performed(call, tuple(inputs), results or tuple(_tensors(list(written.values()))))

    def replay(self, call):
        """What torch says of a recorded call; None where it has no results without data."""
        from torch.utils.flop_counter import FlopCounterMode, flop_registry

        schema, counter = call.schema, FlopCounterMode(display=False)
        if schema is None:
            return None
        packet = getattr(self.torch.ops.aten, schema.name)
        overload = getattr(packet, call.overload or "default", None)
        declared = schema.arguments
        numbers = [is_number(one) for one in call.tensors]
        values = [
            self._value(one, to.type, is_plain=all(numbers) or to.is_written)
            for one, to in zip(call.arguments, declared, strict=False)
        ]
        behind = len(schema.positional)
        named = dict(zip((one.name for one in declared[behind:]), values[behind:], strict=False))
        try:
            with counter:
                given = {name: value for name, value in named.items() if value is not None}
                results = overload(*values[:behind], **given)
        except (RuntimeError, TypeError, NotImplementedError, ValueError, AssertionError, LookupError):
            return None
        outs = {id(named.get(one.name)) for one in schema.out}
        read = [one for one in _tensors(values) if id(one) not in outs]
        on_device = [one for one in read if not _is_number(one)] or read
        if results is None:  # what it wrote in place
            results = [one for one, to in zip(values, declared, strict=False) if to.is_written]
        operators = {packet.__name__.rpartition(".")[2] for packet in flop_registry}
        return Replayed(
            [tensor_text(TensorArgument(tuple(one.shape), _type_name(one))) for one in _tensors(results)],
            counter.get_total_flops() if schema.name in operators else None,
            on_device,
            list(_tensors(results)),
        )

    def _value(self, argument, declared, *, is_plain):
        if isinstance(argument, TensorArgument):
            if is_number(argument) and declared == "Tensor" and not is_plain:
                return {"float64": 0.5, "int64": 2}.get(_name(argument), self._tensor(argument))
            return self._tensor(argument)
        if isinstance(argument, TensorListArgument):
            return [self._tensor(tensor) for tensor in argument.tensors or ()]
        if not isinstance(argument, ScalarArgument):
            return None
        if "ScalarType" in declared and isinstance(argument.value, int):
            known = element_type_of_code(argument.value)
            return None if known is None else getattr(self.torch, known.name)
        return float(argument.text or "nan") if argument.value is None else argument.value

    def _tensor(self, argument):
        return self.meta(*argument.shape, dtype=_name(argument), strides=argument.strides)

    def record(self, name, *arguments, **named):
        """The call as the recorder writes it: every argument of the schema in order, defaults too."""
        operator = self._overload(name)
        columns = ([], [], [], [])
        for position, declared in enumerate(operator._schema.arguments):
            value = named.get(declared.name, declared.default_value)
            if position < len(arguments):
                value = arguments[position]
            for column, entry in zip(columns, self._entry(value, str(declared.type)), strict=True):
                column.append(entry)
        names, texts = ("shapes", "types", "strides", "concrete"), map(json.dumps, columns)
        return parse_arguments(operator._schema.name, **dict(zip(names, texts, strict=True)))

    def _overload(self, name):
        packet, _, overload = name.partition(".")
        return getattr(getattr(self.torch.ops.aten, packet), overload or "default")

    def _entry(self, value, declared):
        """Shape, type, strides and value as recorded."""
        torch = self.torch
        if isinstance(value, torch.Tensor):
            return list(value.shape), RECORDED_NAMES[_type_name(value)], list(value.stride()), ""
        if isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
            return [list(one.shape) for one in value], "TensorList", [list(one.stride()) for one in value], ""
        if isinstance(value, bool | int | float) and "Tensor" in declared:  # a tensor of no dimensions
            return [], {bool: "bool", int: "long int", float: "double"}[type(value)], [], ""
        if isinstance(value, torch.dtype):
            value = CODES[str(value).removeprefix("torch.")]
        if value is None or isinstance(value, str):
            return [], "", [], ""
        return [], "ScalarList" if isinstance(value, list) else "Scalar", [], repr(value)


@pytest.fixture(scope="session")
def recorder():
    return Recorder()


@pytest.fixture(scope="session")
def stated():
    """Shape and element type of tensors as a rule states them."""

    def state(tensors):
        known = [(tensor.shape, element_type(tensor.type_name)) for tensor in tensors]
        return [(shape, one and one.name) for shape, one in known]

    return state


@pytest.fixture(scope="session")
def addressed_bytes():
    """Distinct bytes of a tensor of torch, by listing every address."""

    def count(tensor):
        if tensor.is_contiguous():
            return tensor.numel() * tensor.element_size()
        offsets = np.zeros(1, dtype=np.int64)
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
            offsets = (offsets[:, None] + np.arange(size, dtype=np.int64) * stride).reshape(-1)
        return len(np.unique(offsets)) * tensor.element_size()

    return count


def _is_out(operator, name):
    declared = next(one for one in operator._schema.arguments if one.name == name)
    return bool(declared.kwarg_only and declared.alias_info is not None and declared.alias_info.is_write)


def _tensors(value):
    if hasattr(value, "element_size"):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)


def _type_name(tensor):
    return str(tensor.dtype).removeprefix("torch.")


def _is_number(tensor):
    return not tensor.shape and str(tensor.dtype) in ("torch.float64", "torch.int64", "torch.bool")


def _name(argument):
    known = element_type(argument.type_name)
    return known.name
