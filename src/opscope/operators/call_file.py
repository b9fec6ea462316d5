"""A recorded operator call as a Python file of its own: inputs, the call, and a place for another version.

What was recorded of each argument is made again: shapes, strides, element types, numbers. Values are drawn at
random; what points somewhere (indices, classes) stays within what it points into, by `input_values.toml`.
Imports no torch, as the file that it writes does.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Mapping, Sequence
from functools import cache
from string import Template
from typing import NamedTuple

import msgspec

from opscope.data import packaged_text, packaged_toml
from opscope.errors import InputError
from opscope.operators.arguments import (
    Argument,
    CallArguments,
    ScalarArgument,
    TensorArgument,
    TensorListArgument,
    is_number,
    type_of,
)
from opscope.operators.element_types import ELEMENT_TYPES, ElementKind, element_type
from opscope.operators.starts import Start, StartKind, Written, contiguous, empty, start_of
from opscope.provenance.generated_code import parse_kernel
from opscope.provenance.native_functions import Argument as Declared
from opscope.provenance.native_functions import Schema

_HOW = "Record with shapes: opscope run, or record_shapes=True."
# Of a random generator, or where a result goes: left to the call itself.
_LEFT_OUT = frozenset({"generator", "layout", "pin_memory", "non_blocking"})


class _Below(msgspec.Struct, frozen=True):
    """Integers of an argument are below a size of another, or below a number that the call is given."""

    argument: str
    operators: tuple[str, ...]
    size_of: str | None = None
    dim: int | None = None  # of that argument; that of the call's `dim` if None
    number: str | None = None  # argument that is the number


class _Values(msgspec.Struct, frozen=True):
    positive: frozenset[str]
    definite: frozenset[str]
    below: tuple[_Below, ...]


@cache
def _values() -> _Values:
    return msgspec.convert(packaged_toml(__package__, "input_values.toml"), _Values)


class CallFile(NamedTuple):
    text: str
    notes: list[str]  # what could not be made as it was
    start: StartKind  # of its own version


Fed = tuple[CallArguments, str]  # a call, and its argument that is the result of the one before it


def call_file(
    call: CallArguments,
    *,
    what: str,
    name: str,
    start: StartKind | None = None,
    then: Sequence[Fed] = (),
) -> CallFile:
    """The file of a call with this name, `what` at its head; `then` are calls that follow it.

    Its own version starts as asked; without it in Triton where the call's family has a template.

    Raises:
        InputError: Its arguments were not recorded, no packaged release has such an operator, or it has no
            such start.
    """
    made: dict[str, str] = {}
    notes: list[str] = []
    calls, lines = [], []
    for number, (one, fed) in enumerate([(call, None), *then]):
        written, arguments = _written(one, fed, made, notes, f"r{number}")
        calls.append(written)
        result = "return" if number == len(then) else f"r{number + 1} ="
        lines.append(f"    {result} torch.ops.{one.name.replace('::', '.')}({arguments})\n")
    notes = list(dict.fromkeys(notes))
    kind, own = _own_version(calls, start, ", ".join(made))
    return CallFile(_text(what, notes, name, made=made, called="".join(lines), own=own), notes, kind)


def _written(
    call: CallArguments, fed: str | None, made: dict[str, str], notes: list[str], before: str
) -> tuple[Written, str]:
    """The arguments of a call as code; `made` and `notes` are added to."""
    schema = _schema(call)
    variables: dict[str, str] = {}  # of tensors, by argument
    numbers: dict[str, str] = {}  # of all else
    given_values: list[str] = []
    is_by_name = False
    first_type = next((one.type_name for one in call.tensors if one.type_name), None)
    for place, declared in enumerate(schema.arguments):
        given = call.arguments[place] if place < len(call.arguments) else None
        if declared.is_written and declared in schema.out:
            continue
        if given is None and (declared.default is not None or declared.name in _LEFT_OUT):
            is_by_name = True  # what follows can no longer be told by its place
            if declared.type.startswith("str"):
                notes.append(f"PyTorch records no texts, so '{declared.name}' is what it is by default.")
            continue
        value = variable = declared.name + "_" * (
            keyword.iskeyword(declared.name) or declared.name == "torch"
        )
        while variable in made:  # of a call before it
            value = variable = f"{variable}_"
        if declared.name == fed:
            value = variables[declared.name] = before
        elif isinstance(given, TensorArgument) and not is_number(given):
            made[variable] = _tensor(call, declared.name, given, given.type_name)
            variables[declared.name] = variable
        elif isinstance(given, TensorListArgument):
            # The recorder leaves out their types.
            type_name = "long int" if declared.name == "indices" else first_type
            members = [
                _tensor(call, declared.name, one, one.type_name or type_name, member=number)
                for number, one in enumerate(given.tensors or ())
            ]
            made[variable] = "[\n" + "".join(f"        {one},\n" for one in members) + "    ]"
        else:
            value = numbers[declared.name] = _literal(call, given, declared, notes)
            is_by_name |= place > 0 and not isinstance(given, TensorArgument)  # as one would write it
        is_by_name |= declared not in schema.positional
        given_values.append(f"{declared.name}={value}" if is_by_name else value)
    if not call.tensors and "device" in call.names:
        given_values.append("device=DEVICE")
    return Written(call, variables, numbers, fed), ", ".join(given_values)


def _schema(call: CallArguments) -> Schema:
    """That of a call that can be written."""
    if call.defect is not None:
        raise InputError(f"{call.name}: {call.defect}", hint=_HOW)
    if call.schema is None:
        raise InputError(
            f"{call.name}: no packaged release of PyTorch declares it with such arguments",
            hint="Only calls of PyTorch's own operators (aten::) can be written out",
        )
    if call.has_unrecorded_list:
        raise InputError(
            f"{call.name}: of lists of more than 30 tensors their members are not recorded",
            hint="Choose another call",
        )
    return call.schema


def kernel_file(call: CallArguments, source: str, *, what: str, name: str) -> CallFile:
    """The file of a launch of a Triton kernel that torch.compile wrote: its source, and what it was given.

    Its arguments are named by what they are for: results (`out_ptr0`) are made at each call, and what it
    changes in place (`in_out_ptr0`) is copied first.

    Raises:
        InputError: The source has no such kernel, or it takes others than were recorded.
    """
    if call.defect is not None:
        raise InputError(f"{call.name}: {call.defect}", hint=_HOW)
    found = parse_kernel(source)
    functions = [] if found is None else ast.walk(ast.parse(source))
    parameters = [
        argument.arg
        for one in functions
        if isinstance(one, ast.FunctionDef) and found is not None and one.name == found["kernel"]
        for argument in one.args.args
    ]
    if found is None or len(parameters) < len(call.arguments) or not call.arguments:
        raise InputError(
            f"{call.name}: its source takes other arguments than were recorded",
            hint="Record again, and keep TRACE.kernels beside the trace: opscope run",
        )
    made: dict[str, str] = {}
    lines, results = [], []
    for parameter, given in zip(parameters, call.arguments, strict=False):
        if not isinstance(given, TensorArgument):
            value = given.text if isinstance(given, ScalarArgument) else None
            if value is None:
                raise InputError(f"{call.name}: the value of '{parameter}' was not recorded", hint=_HOW)
            lines.append(f"{parameter} = {value}")
            continue
        if parameter.startswith("out_ptr"):
            lines.append(f"{parameter} = {empty(given)}")
        else:
            made[parameter] = _tensor(call, parameter, given, given.type_name)
        if parameter.startswith("in_out_ptr"):
            lines.append(f"{parameter} = {parameter}.clone()")
        if "out_ptr" in parameter:
            results.append(parameter)
    arguments = ", ".join(parameters[: len(call.arguments)])
    lines.append("stream = torch.cuda.current_stream().cuda_stream")
    lines.append(f"{found['kernel']}.run({arguments}, stream=stream)")
    called = "".join(f"    {one}\n" for one in [*lines, f"return {', '.join(results)}"])
    taken = ", ".join(made)
    own = f"def mine({taken}):\n    return reference({taken})  # a copy of the kernel above goes here\n"
    text = _text(what, [], name, made=made, called=called, own=Start(source.strip() + "\n", own, ""))
    return CallFile(text, [], StartKind.ATEN)


def _text(
    what: str, notes: Sequence[str], name: str, *, made: Mapping[str, str], called: str, own: Start
) -> str:
    parameters = ", ".join(made)
    return Template(packaged_text(__package__, "call_file.txt")).substitute(
        what=what,
        notes="".join(f"\n\n{one}" for one in notes),
        file=name,
        made="".join(f"    {variable} = {value}\n" for variable, value in made.items()),
        returned=f"({parameters},)" if len(made) == 1 else parameters or "()",
        parameters=parameters,
        imports=own.imports,
        mine=own.code,
        tolerance=own.tolerance,
        called=called,
    )


def _own_version(
    calls: Sequence[Written], asked: StartKind | None, parameters: str
) -> tuple[StartKind, Start]:
    kind = asked or StartKind.TRITON
    if kind is not StartKind.ATEN:
        own = start_of(calls, kind, parameters=parameters)
        if own is not None:
            return kind, own
        if asked is not None:
            raise InputError(
                f"{calls[0].call.name}: there is no template in {kind} for such a call",
                hint="Write --start aten: `mine` then calls the operator",
            )
    code = f"def mine({parameters}):\n    return reference({parameters})  # yours goes here\n"
    return StartKind.ATEN, Start("import torch\n", code, "")


def _tensor(
    call: CallArguments,
    name: str,
    tensor: TensorArgument,
    type_name: str | None,
    *,
    member: int | None = None,
) -> str:
    """Code that makes a tensor as it was recorded, with values that make sense for this argument."""
    known = element_type(type_name)
    if known is None:
        raise InputError(f"{call.name}: the element type of '{name}' was not recorded", hint=_HOW)
    shape, strides = tensor.shape, tensor.strides
    is_whole = strides is None or 0 in shape or strides == contiguous(shape)
    # A view into memory of just the length that its strides reach.
    sizes = (
        shape
        if is_whole
        else (1 + sum((size - 1) * step for size, step in zip(shape, strides or (), strict=True)),)
    )
    dtype = f"dtype=torch.{known.name}"
    if known.kind is ElementKind.BOOLEAN:
        code = f"torch.randint(0, 2, {sizes}, device=device).bool()"
    elif known.kind is ElementKind.INTEGER:
        code = f"torch.randint(0, {_limit(call, name, member)}, {sizes}, device=device, {dtype})"
    elif {name, f"{call.stem}.{name}"} & _values().positive:
        code = f"torch.rand({sizes}, device=device, {dtype}) + 0.5"
    elif f"{call.stem}.{name}" in _values().definite and is_whole:
        rows = shape[-1]
        code = f"torch.rand({sizes}, device=device, {dtype}) / {rows} + torch.eye({rows}, device=device)"
    elif known.name.startswith("float8"):
        code = f"torch.randn({sizes}, device=device).to(torch.{known.name})"
    else:
        code = f"torch.randn({sizes}, device=device, {dtype})"
    return code if is_whole else f"({code}).as_strided({shape}, {strides})"


def _limit(call: CallArguments, name: str, member: int | None) -> int:
    """What integers of an argument stay below: 2 where nothing says what they point into."""
    stem = call.stem or ""
    for rule in _values().below:
        if rule.argument == name and stem in rule.operators:
            if rule.number is not None:
                return max(1, call.integer(rule.number) or 1)
            of = call.tensor(rule.size_of or "")
            dim = rule.dim if rule.dim is not None else member if member is not None else call.integer("dim")
            if of is not None and dim is not None and -len(of.shape) <= dim < len(of.shape):
                return max(1, of.shape[dim])
    return 2


def _literal(call: CallArguments, given: Argument, declared: Declared, notes: list[str]) -> str:
    """A number, list of them or truth value as it was recorded; a stand-in, and a note, where it was not."""
    if isinstance(given, TensorArgument):  # a Python number, of which the recorder keeps the type alone
        known = type_of(given)
        value = (
            "True"
            if known and known.kind is ElementKind.BOOLEAN
            else "2"
            if known and not known.is_float
            else "0.5"
        )
        notes.append(f"The value of '{declared.name}' was not recorded; {value} stands for it.")
        return value
    if declared.type.startswith("Device"):  # never recorded
        return "DEVICE"
    if given is None:
        if declared.type.endswith("?"):
            return "None"
        if declared.type == "Tensor?[]":
            raise InputError(
                f"{call.name}: PyTorch records no lists in which tensors may be missing ('{declared.name}')",
                hint="Choose another call",
            )
        raise InputError(f"{call.name}: '{declared.name}' ({declared.type}) was not recorded", hint=_HOW)
    text = given.text if isinstance(given, ScalarArgument) else None
    if text is None:
        raise InputError(f"{call.name}: the value of '{declared.name}' was not recorded", hint=_HOW)
    if declared.type.startswith("ScalarType"):
        named = next((one for one in ELEMENT_TYPES if str(one.code) == text), None)
        if named is None:
            raise InputError(f"{call.name}: element type {text} of '{declared.name}' is unknown")
        return f"torch.{named.name}"
    return re.sub(r"(?<![\w.])(-?(?:inf|nan))\b", r"float('\1')", text)
