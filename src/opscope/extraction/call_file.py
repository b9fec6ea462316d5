"""A recorded operator call as a Python file of its own: inputs, the call, and a place for another version.

What was recorded of each argument is made again: tensors by `inputs`, numbers as they were. Imports no torch,
as the file that it writes does.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Sequence
from itertools import chain, repeat
from string import Template
from typing import NamedTuple

from opscope.data import packaged_text
from opscope.errors import InputError
from opscope.extraction.inputs import HOW, VALUES, Inputs
from opscope.extraction.starts import Start, StartKind, Written, empty, start_of
from opscope.operators.arguments import (
    Argument,
    CallArguments,
    ScalarArgument,
    TensorArgument,
    TensorListArgument,
    element_type_of_code,
    element_type_of_scalar,
    is_number,
    type_of,
)
from opscope.operators.distinct_calls import Collective
from opscope.operators.given_arguments import SeenCall
from opscope.provenance.generated_code import parse_kernel
from opscope.provenance.native_functions import Argument as Declared
from opscope.provenance.native_functions import Schema

_KEPT = "Record with opscope run, which keeps what calls are given in a step before"
_LISTS = f"{_KEPT}; others are known where they are shaped as all gradients, if the backward pass is recorded"
# Of a random generator, or where a result goes: left to the call itself.
_LEFT_OUT = frozenset({"generator", "layout", "pin_memory", "non_blocking"})
_UNDEFINED = frozenset({"attn_bias", "cum_seq_q", "cum_seq_k"})  # tensors that may be without a "?"
_COPY = "a copy of the kernel above goes here"
_MINE = "def mine({0}):\n    return reference({0})  # {1}\n"
_DIGITS = re.compile(r"\d+\.\d*(e[+-]?\d+)?")
_KNOWN = "As in a step before the recording: alignment, shared memory, spread of integers, share of zeros."
_TF32 = "\ntorch.backends.cuda.matmul.allow_tf32 = True  # as the program did\n"
_USAGE = (
    "    python {0}          run both and compare them\n"
    "    opscope bench {0}   time both; --cache hot with inputs in the level-2 cache"
)


class CallFile(NamedTuple):
    text: str
    notes: list[str]  # what could not be made as it was
    start: StartKind  # of its own version


class Fed(NamedTuple):
    """A call of several in a row."""

    call: CallArguments
    argument: str | None = None  # that is the result of the call before it


def call_file(
    call: CallArguments,
    *,
    what: str,
    name: str,
    start: StartKind | None = None,
    then: Sequence[Fed] = (),
    module: str | None = None,
    notes: Sequence[str] = (),
    autocast: str | None = None,
    is_tf32: bool = False,
) -> CallFile:
    """The file of a call with this name, `what` at its head; `then` are calls that follow it.

    `module` registers an operator of another library; `autocast` is the type that the program had of it, if
    that changed the call; `is_tf32` says how matrices of float32 were multiplied. Its own version starts as
    asked; without it in Triton where the call's family has a template.
    """
    made: dict[str, str] = {}
    every = [Fed(call), *then]
    notes = [*notes, *[_KNOWN] * any(tensor.seen for one, _ in every for tensor in one.tensors)]
    calls, lines = [], []
    for rank, (one, fed) in enumerate(every):
        schema = one.schema
        if one.defect is not None:
            raise InputError(f"{one.name}: {one.defect}", hint=HOW * ("were recorded" in one.defect) or None)
        if one.stem is None:  # of another library: its arguments have places, and no names
            places = (f"x{at}" for at in range(1, len(one.arguments) + 1))
            default = "" if one.given_names else None  # of what was not given
            declared = (Declared("", of, default, False) for of in one.given_names or places)
            schema = Schema(one.name, tuple(declared), (), ())
        if schema is None:
            raise InputError(f"{one.name}: no packaged release of PyTorch declares it with such arguments")
        if one.has_unrecorded_list:
            raise InputError(f"{one.name}: of lists of more than 30 tensors nothing is recorded", hint=_LISTS)
        inputs = Inputs(one, made, notes)
        numbers, arguments = _written(inputs, schema, fed, f"r{rank}")
        calls.append(Written(one, inputs.variables, numbers, fed))
        pairs = zip(schema.arguments, one.arguments, strict=False)
        # What changes lists returns nothing; what another library's operator changes is not known.
        changed = [at.name for at, given in pairs if at.is_written and isinstance(given, TensorListArgument)]
        changed = changed if one.stem else ["result", *made]
        head = f"r{rank + 1} = " if then[rank:] else "return " * (not changed) if one.stem else "result = "
        # Where it is known: torch tries one after the other, and reads tensors for what it says of those.
        overload = "" if one.overload is None else f".{one.overload or 'default'}"
        lines.append(f"{head}torch.ops.{one.name.replace('::', '.')}{overload}({arguments})")
        lines += [f"return {', '.join(changed)}"] * bool(changed)
    if autocast is not None:
        lines = [f"with torch.autocast(DEVICE, dtype=torch.{autocast}):", *(f"    {one}" for one in lines)]
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
    own = own._replace(imports=own.imports + _TF32 * is_tf32)
    return _file(what, name, inputs, lines, own)


def _written(inputs: Inputs, schema: Schema, fed: str | None, before: str) -> tuple[dict[str, str], str]:
    """What is no tensor, by argument, and the code of all; `before` is the result of the call before it."""
    call, variables = inputs.call, inputs.variables
    numbers: dict[str, str] = {}
    given_values: list[str] = []
    is_by_name = False
    for declared, given in zip(schema.arguments, chain(call.arguments, repeat(None)), strict=False):
        if declared in schema.out:
            if isinstance(given, TensorArgument):
                given_values.append(f"{declared.name}={empty(given)}")
            continue
        is_unknown = given is None or given == ScalarArgument(None)
        if is_unknown and (declared.default is not None or declared.name in _LEFT_OUT):
            is_by_name = True  # what follows can no longer be told by its place
            numbers[declared.name] = str(declared.default)
            if declared.type.startswith("str") and not call.is_seen:
                inputs.notes.append(f"PyTorch records no texts: '{declared.name}' is what it is by default.")
            continue
        value = variable = declared.name
        while variable in inputs.made or keyword.iskeyword(variable):  # of a call before it
            value = variable = f"{variable}_"
        is_tensor = isinstance(given, TensorArgument) and (
            not is_number(given) or "philox" in variable or all(map(is_number, call.tensors))
        )
        if declared.name == fed:
            value = variables[declared.name] = before
        elif isinstance(given, TensorListArgument) or (isinstance(given, TensorArgument) and is_tensor):
            inputs.make(declared.name, given, variable)
        else:
            value = numbers[declared.name] = _literal(call, given, declared, inputs.notes)
            # As one would write it.
            is_by_name |= bool(given_values and call.stem) and not isinstance(given, TensorArgument)
        is_by_name |= declared not in schema.positional
        given_values.append(f"{declared.name}={value}" if is_by_name else value)
    if not call.tensors and "device" in call.names and numbers.get("device", "None") == "None":
        given_values.append("device=DEVICE")
    return numbers, ", ".join(given_values)


def kernel_file(call: CallArguments, source: str, *, what: str, name: str) -> CallFile:
    """The file of a launch of a Triton kernel that torch.compile wrote: its source, and what it was given.

    Its arguments are named by what they are for: results (`out_ptr0`) are made at each call, and what it
    changes in place (`in_out_ptr0`) is copied first.
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
    inputs, lines = Inputs(call, {}, []), list[str]()
    parameters = parameters[: len(call.arguments)]
    for parameter, given in zip(parameters, call.arguments, strict=True):
        if not isinstance(given, TensorArgument):
            lines.append(f"{parameter} = {_recorded(call, given, parameter)}")
        elif parameter.startswith("out_ptr"):
            lines.append(f"{parameter} = {empty(given)}")
        else:
            inputs.make(parameter, given, parameter)
        if parameter.startswith("in_out_ptr"):
            lines.append(f"{parameter} = {parameter}.clone()")
    lines.append("stream = torch.cuda.current_stream().cuda_stream")
    lines.append(f"{kernel}.run({', '.join(parameters)}, stream=stream)")
    lines.append(f"return {', '.join(one for one in parameters if 'out_ptr' in one)}")
    own = Start(f"import torch\n{source}", _MINE.format(", ".join(inputs.made), _COPY))
    return _file(what, name, inputs, lines, own)


def launch_file(call: SeenCall, *, what: str, name: str, notes: Sequence[str]) -> CallFile:
    """The file of a launch of a Triton kernel of the program's own: what it changes is what it was given."""
    if call.source is None:
        raise InputError(
            f"{call.name}: its source reads what is neither a number, a module nor a kernel of Triton's",
            hint="Make that a parameter of the kernel, and record again: opscope run",
        )
    inputs, given_values = Inputs(call, {}, [*notes, _KNOWN]), list[str]()
    for parameter, given in zip(call.names, call.arguments, strict=True):
        value = "None" if given is None else parameter
        if isinstance(given, TensorArgument) and given.seen and not given.seen.kind:
            inputs.make(parameter, given, parameter)
        elif given is not None:
            value = _recorded(call, given, parameter)
        given_values.append(f"{parameter}={value}")
    tensors = ", ".join(inputs.made)
    lines = [f"{call.name}[{call.grid}]({', '.join(given_values)})", f"return {tensors}"]
    head = f"{packaged_text(__package__, 'starts/head.py.txt')}\n{call.source}"
    return _file(what, name, inputs, lines, Start(head, _MINE.format(tensors, _COPY)))


def collective_file(call: CallArguments, of: Collective, *, what: str, name: str) -> CallFile:
    """The file of a collective, for as many processes as took part."""
    code, known = VALUES["collectives"].get(of.name), element_type_of_scalar(of.data_type)
    if code is None or known is None or not of.group_size or not of.in_element_count:
        raise InputError(f"{call.name}: there is no template for such a collective")
    given, got = (TensorArgument((n or 0,), known.name) for n in (of.in_element_count, of.out_element_count))
    lines = [f"result = {empty(got)}", code, "return result"] if "result" in code else [code, "return tensor"]
    own = Start(packaged_text(__package__, "starts/head.dist.txt"), _MINE.format("tensor", "yours goes here"))
    inputs = Inputs(call, {}, [])
    inputs.make("tensor", given, "tensor")
    torchrun = f"    torchrun --nproc-per-node {of.group_size} {name}   run both and compare them"
    return _file(what, name, inputs, lines, own, torchrun)


def _file(  # noqa: PLR0917 - the parts of a file, in their order
    what: str, name: str, inputs: Inputs, called: Sequence[str], own: Start, usage: str | None = None
) -> CallFile:
    made, notes = inputs.made, list(dict.fromkeys(inputs.notes))
    parameters = ", ".join(made)
    text = Template(packaged_text(__package__, "call_file.txt")).substitute(
        what="\n\n".join([what, *notes]),
        usage=usage or _USAGE.format(name),
        made="".join(f"    {variable} = {value}\n" for variable, value in made.items()),
        returned=f"({parameters},)" if len(made) == 1 else parameters or "()",
        parameters=parameters,
        imports=own.imports,
        mine=own.code,
        tolerance=own.tolerance,
        called="".join(f"    {one}\n" for one in called),
    )
    return CallFile(text, notes, own.kind)


def _recorded(call: CallArguments, given: Argument, name: str) -> str:
    """A number, or list of them, in as few digits as mean the same: 0.9 of 0.90000000000000002."""
    if not isinstance(given, ScalarArgument) or given.text is None:
        why = HOW if not call.values_recorded else f"PyTorch records no nested tensors and no texts. {_KEPT}"
        raise InputError(f"{call.name}: the value of '{name}' was not recorded", hint=why)
    is_text = given.text[:1] in {"'", '"'}
    return given.text if is_text else _DIGITS.sub(lambda found: repr(float(found[0])), given.text)


def _literal(call: CallArguments, given: Argument, declared: Declared, notes: list[str]) -> str:
    """A number, list of them or truth value as it was recorded; a stand-in, and a note, where it was not."""
    if isinstance(given, TensorArgument):  # a Python number, of which the recorder keeps the type alone
        known = type_of(given)
        value = VALUES["numbers"].get(str(known.kind) if known else "", "0.5")
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
            f"{call.name}: PyTorch records no lists in which tensors may be missing ('{declared.name}')",
            hint=_KEPT,
        )
    text = _recorded(call, given, declared.name)
    if declared.type.startswith("ScalarType") and not text.startswith("torch."):
        named = element_type_of_code(int(text)) if text.isdigit() else None
        if named is None:
            raise InputError(f"{call.name}: element type {text} of '{declared.name}' is unknown")
        return f"torch.{named.name}"
    return re.sub(r"(?<![\w.'\"])(-?(?:inf|nan))\b", r"float('\1')", text)
