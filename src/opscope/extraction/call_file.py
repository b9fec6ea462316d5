"""A recorded operator call as a Python file of its own: inputs, the call, and a place for another version.

What was recorded of each argument is made again: shapes, strides, element types, numbers. Values are drawn at
random; what points somewhere (indices, classes) stays within what it points into, by `input_values.toml`.
Imports no torch, as the file that it writes does.
"""

from __future__ import annotations

import ast
import keyword
import re
import textwrap
from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from string import Template
from typing import NamedTuple

from opscope.data import packaged_text, packaged_toml
from opscope.errors import InputError
from opscope.extraction.starts import Start, StartKind, Written, contiguous, empty, start_of
from opscope.operators.arguments import (
    Argument,
    CallArguments,
    ScalarArgument,
    TensorArgument,
    TensorListArgument,
    is_number,
    type_of,
)
from opscope.operators.distinct_calls import Collective
from opscope.operators.element_types import (
    ElementKind,
    element_type,
    element_type_of_code,
    element_type_of_scalar,
)
from opscope.provenance.generated_code import parse_kernel
from opscope.provenance.native_functions import Argument as Declared
from opscope.provenance.native_functions import Schema

_HOW = "Record with shapes: opscope run, or record_shapes=True."
_LISTS = "They are known where they are shaped as all gradients: record the backward pass with the step"
# Of a random generator, or where a result goes: left to the call itself.
_LEFT_OUT = frozenset({"generator", "layout", "pin_memory", "non_blocking"})
_UNDEFINED = frozenset({"attn_bias", "cum_seq_q", "cum_seq_k"})  # tensors that may be without a "?"
_MINE = "def mine({0}):\n    return reference({0})  # {1}\n"
_DIGITS = re.compile(r"\d+\.\d*(e[+-]?\d+)?")
_LONG = 4  # members
_USAGE = (
    "    python {0}          run both and compare them\n"
    "    opscope bench {0}   time both; --cache hot with inputs in the level-2 cache"
)
_VALUES = packaged_toml(__package__, "input_values.toml")


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
    module: str | None = None,
) -> CallFile:
    """The file of a call with this name, `what` at its head; `then` are calls that follow it.

    `module` registers an operator of another library.

    Its own version starts as asked; without it in Triton where the call's family has a template.

    Raises:
        InputError: Its arguments were not recorded, no packaged release has such an operator, or it has no
            such start.
    """
    made: dict[str, str] = {}
    notes: list[str] = []
    calls, lines = [], []
    for number, (one, fed) in enumerate([(call, None), *then]):
        schema = one.schema
        if one.defect is not None:
            raise InputError(f"{one.name}: {one.defect}", hint=_HOW * ("were recorded" in one.defect) or None)
        if one.stem is None:  # of another library: its arguments have places, and no names
            places = range(1, len(one.arguments) + 1)
            schema = Schema(one.name, tuple(Declared("", f"x{at}", None, False) for at in places), (), ())
        if schema is None:
            raise InputError(f"{one.name}: no packaged release of PyTorch declares it with such arguments")
        if one.has_unrecorded_list:
            raise InputError(
                f"{one.name}: of lists of more than 30 tensors no members are recorded", hint=_LISTS
            )
        written, arguments = _written(one, schema, fed, made, notes, f"r{number}")
        calls.append(written)
        pairs = zip(schema.arguments, one.arguments, strict=False)
        # What changes lists returns nothing; what another library's operator changes is not known.
        changed = [at.name for at, given in pairs if at.is_written and isinstance(given, TensorListArgument)]
        changed = changed if one.stem else ["result", *made]
        result = (
            f"r{number + 1} = "
            if number < len(then)
            else "result = "
            if not one.stem
            else "return " * (not changed)
        )
        lines.append(f"{result}torch.ops.{one.name.replace('::', '.')}({arguments})")
        lines += [f"return {', '.join(changed)}"] * bool(changed)
    if call.stem is None and module is None:
        raise InputError(f"{call.name}: name the module that registers it, --import MODULE")
    own = start_of(calls, start or StartKind.TRITON, parameters=", ".join(made))
    if own is None and start not in {None, StartKind.ATEN}:
        raise InputError(
            f"{call.name}: there is no template in {start} for such a call",
            hint="Write --start aten: `mine` then calls the operator",
        )
    imported = f"\nimport {module}  # registers {call.name}\n" * (call.stem is None)
    own = own or Start(f"import torch\n{imported}", _MINE.format(", ".join(made), "yours goes here"))
    return _file("\n\n".join([what, *dict.fromkeys(notes)]), name, made, lines, own, notes)


def _written(  # noqa: PLR0917 - a call, and what it adds to
    call: CallArguments, schema: Schema, fed: str | None, made: dict[str, str], notes: list[str], before: str
) -> tuple[Written, str]:
    """The arguments of a call as code; `made` and `notes` are added to."""
    variables: dict[str, str] = {}  # of tensors, by argument
    numbers: dict[str, str] = {}  # of all else
    given_values: list[str] = []
    is_by_name = False
    first_type = next((one.type_name for one in call.tensors if one.type_name), None)
    for declared, given in zip(schema.arguments, chain(call.arguments, repeat(None)), strict=False):
        if declared.is_written and declared in schema.out:
            continue
        if given is None and (declared.default is not None or declared.name in _LEFT_OUT):
            is_by_name = True  # what follows can no longer be told by its place
            if declared.type.startswith("str"):
                notes.append(f"PyTorch records no texts, so '{declared.name}' is what it is by default.")
            continue
        value = variable = declared.name
        while variable in made or keyword.iskeyword(variable):  # of a call before it
            value = variable = f"{variable}_"
        if declared.name == fed:
            value = variables[declared.name] = before
        elif isinstance(given, TensorArgument) and (not is_number(given) or "philox" in variable):
            made[variable] = _tensor(call, declared.name, given, given.type_name)
            variables[declared.name] = variable
        elif isinstance(given, TensorListArgument):
            # The recorder leaves out their types.
            type_name = "long int" if declared.name == "indices" else first_type
            made[variable] = _list(call, declared.name, given.tensors or (), type_name)
        else:
            value = numbers[declared.name] = _literal(call, given, declared, notes)
            # As one would write it.
            is_by_name |= bool(given_values and call.stem) and not isinstance(given, TensorArgument)
        is_by_name |= declared not in schema.positional
        given_values.append(f"{declared.name}={value}" if is_by_name else value)
    if not call.tensors and "device" in call.names:
        given_values.append("device=DEVICE")
    return Written(call, variables, numbers, fed), ", ".join(given_values)


def kernel_file(call: CallArguments, source: str, *, what: str, name: str) -> CallFile:
    """The file of a launch of a Triton kernel that torch.compile wrote: its source, and what it was given.

    Its arguments are named by what they are for: results (`out_ptr0`) are made at each call, and what it
    changes in place (`in_out_ptr0`) is copied first.

    Raises:
        InputError: The source has no such kernel, or it takes others than were recorded.
    """
    kernel = (parse_kernel(source) or {}).get("kernel")
    functions = [] if kernel is None else ast.walk(ast.parse(source))
    of_kernel = [one for one in functions if isinstance(one, ast.FunctionDef) and one.name == kernel]
    parameters = [argument.arg for one in of_kernel for argument in one.args.args]
    if call.defect is not None or not 0 < len(call.arguments) <= len(parameters):
        raise InputError(
            f"{call.name}: its source takes other arguments than were recorded",
            hint="Record again, and keep TRACE.kernels beside the trace: opscope run",
        )
    made: dict[str, str] = {}
    lines = []
    parameters = parameters[: len(call.arguments)]
    for parameter, given in zip(parameters, call.arguments, strict=True):
        if not isinstance(given, TensorArgument):
            lines.append(f"{parameter} = {_recorded(call, given, parameter)}")
        elif parameter.startswith("out_ptr"):
            lines.append(f"{parameter} = {empty(given)}")
        else:
            made[parameter] = _tensor(call, parameter, given, given.type_name)
        if parameter.startswith("in_out_ptr"):
            lines.append(f"{parameter} = {parameter}.clone()")
    lines.append("stream = torch.cuda.current_stream().cuda_stream")
    lines.append(f"{kernel}.run({', '.join(parameters)}, stream=stream)")
    lines.append(f"return {', '.join(one for one in parameters if 'out_ptr' in one)}")
    mine = _MINE.format(", ".join(made), "a copy of the kernel above goes here")
    return _file(what, name, made, lines, Start(f"import torch\n{source}", mine), [])


def collective_file(call: CallArguments, of: Collective, *, what: str, name: str) -> CallFile:
    """The file of a collective, for as many processes as took part.

    Raises:
        InputError: It is another than those of `input_values.toml`, or its size was not recorded.
    """
    code, known = _VALUES["collectives"].get(of.name), element_type_of_scalar(of.data_type)
    if code is None or known is None or not of.group_size or not of.in_element_count:
        raise InputError(f"{call.name}: there is no template for such a collective")
    given, got = (TensorArgument((n or 0,), known.name) for n in (of.in_element_count, of.out_element_count))
    is_in_place = "result" not in code
    lines = [code, "return tensor"] if is_in_place else [f"result = {empty(got)}", code, "return result"]
    own = Start(packaged_text(__package__, "starts/head.dist.txt"), _MINE.format("tensor", "yours goes here"))
    usage = f"    torchrun --nproc-per-node {of.group_size} {name}   run both and compare them"
    return _file(what, name, {"tensor": _tensor(call, "tensor", given, known.name)}, lines, own, [], usage)


def _file(  # noqa: PLR0917 - the parts of a file, in their order
    what: str,
    name: str,
    made: Mapping[str, str],
    called: Sequence[str],
    own: Start,
    notes: list[str],
    usage: str | None = None,
) -> CallFile:
    parameters = ", ".join(made)
    text = Template(packaged_text(__package__, "call_file.txt")).substitute(
        what=what,
        usage=usage or _USAGE.format(name),
        made="".join(f"    {variable} = {value}\n" for variable, value in made.items()),
        returned=f"({parameters},)" if len(made) == 1 else parameters or "()",
        parameters=parameters,
        imports=own.imports,
        mine=own.code,
        tolerance=own.tolerance,
        called="".join(f"    {one}\n" for one in called),
    )
    return CallFile(text, list(dict.fromkeys(notes)), own.kind)


def _tensor(
    call: CallArguments,
    name: str,
    tensor: TensorArgument,
    type_name: str | None,
    *,
    member: int | None = None,
) -> str:
    """Code that makes a tensor as it was recorded, with values that make sense for this argument."""
    if (known := element_type(type_name)) is None:
        raise InputError(f"{call.name}: the element type of '{name}' was not recorded", hint=_HOW)
    shape, strides, laid = tensor.shape, tensor.strides, ""
    sizes, full_name = shape, f"{call.stem}.{name}"
    kind = _VALUES["kinds"].get(full_name) or _VALUES["kinds"].get(name, "any")
    if strides is not None and 0 not in shape and strides != contiguous(shape):
        # A view into memory of just the length that its strides reach.
        sizes = (1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True)),)
        laid = f".as_strided({shape}, {strides})"
        kind = "positive" if kind == "positive" else "any"
    if known.kind in {ElementKind.BOOLEAN, ElementKind.INTEGER} and kind != "offsets":
        kind = str(known.kind)
    elif known.name.startswith("float8"):
        kind = "float8"
    # What integers stay below: 2 where nothing says what they point into.
    of, *dims = _VALUES["below"].get(full_name, [""])
    dim, pointed = call.integer("dim"), call.tensor(of)
    place = member if member is not None else dims[0] if dims else dim
    limit = call.integer(of) or 2
    if pointed is not None and place is not None and -len(pointed.shape) <= place < len(pointed.shape):
        limit = max(1, pointed.shape[place])
    dtype, of_call = f"torch.{known.name}", type_of(call.tensors[0]) if call.tensors else None
    if name in _VALUES["statistics"] and of_call is not None and of_call.name in {"float16", "bfloat16"}:
        dtype = f'torch.{of_call.name} if "cpu" in str(device) else {dtype}'
    rows = shape[-1] if shape else 1
    code = _VALUES["values"][kind].format(
        sizes=sizes, dtype=dtype, limit=limit, rows=rows, parts=max(1, rows - 1), dim=dim
    )
    return f"({code}){laid}" if laid else code


def _list(call: CallArguments, name: str, tensors: Sequence[TensorArgument], type_name: str | None) -> str:
    """Code that makes a list of tensors: in a loop over their shapes where they differ in these alone."""
    members = [
        _tensor(call, name, one, one.type_name or type_name, member=number)
        for number, one in enumerate(tensors)
    ]
    sizes = [str(one.shape) for one in tensors]
    alike = {code.replace(size, "shape", 1) for code, size in zip(members, sizes, strict=True)}
    if len(alike) != 1 or len(members) < _LONG:
        return "\n".join(["[", *(f"        {one}," for one in members), "    ]"])
    # A shape stays on one line.
    shapes = textwrap.wrap(", ".join(size.replace(" ", "_") for size in sizes), 96)
    lines = "".join(f"            {line.replace('_', ' ')}\n" for line in shapes)
    return f"[\n        {alike.pop()}\n        for shape in [\n{lines}        ]\n    ]"


def _recorded(call: CallArguments, given: Argument, name: str) -> str:
    """A number, or list of them, in as few digits as mean the same: 0.9 of 0.90000000000000002."""
    if not isinstance(given, ScalarArgument) or given.text is None:
        why = _HOW if not call.values_recorded else "PyTorch records no nested tensors and no texts"
        raise InputError(f"{call.name}: the value of '{name}' was not recorded", hint=why)
    return _DIGITS.sub(lambda found: repr(float(found[0])), given.text)


def _literal(call: CallArguments, given: Argument, declared: Declared, notes: list[str]) -> str:
    """A number, list of them or truth value as it was recorded; a stand-in, and a note, where it was not."""
    if isinstance(given, TensorArgument):  # a Python number, of which the recorder keeps the type alone
        known = type_of(given)
        value = _VALUES["numbers"].get(str(known.kind) if known else "", "0.5")
        notes.append(f"The value of '{declared.name}' was not recorded; {value} stands for it.")
        return str(value)
    if declared.type.startswith("Device"):  # never recorded
        return "DEVICE"
    if given is None and (declared.type.endswith("?") or declared.name in _UNDEFINED):
        return "None"
    if given is None and declared.type == "Scalar[]":
        notes.append(f"The values of '{declared.name}' were not recorded; 0.5 stands for each.")
        return f"[0.5] * {len(call.tensor_list('self') or ())}"
    if given is None and declared.type == "Tensor?[]":
        raise InputError(
            f"{call.name}: PyTorch records no lists in which tensors may be missing ('{declared.name}')"
        )
    text = _recorded(call, given, declared.name)
    if declared.type.startswith("ScalarType"):
        named = element_type_of_code(int(text)) if text.isdigit() else None
        if named is None:
            raise InputError(f"{call.name}: element type {text} of '{declared.name}' is unknown")
        return f"torch.{named.name}"
    return re.sub(r"(?<![\w.])(-?(?:inf|nan))\b", r"float('\1')", text)
