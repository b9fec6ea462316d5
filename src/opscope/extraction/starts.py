"""Where an extracted call's own version starts: a kernel of the call's family, for its shapes and types.

Templates are files of `starts/`, one for each family; `starts.toml` says what differs between operators.
Sizes and strides are numbers in the code, so the compiler knows them. A layout without a template has no
start. Imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from math import prod
from operator import mul
from string import Template
from typing import Any, NamedTuple

from opscope.data import packaged_text, packaged_toml
from opscope.operators.arguments import (
    CallArguments,
    TensorArgument,
    broadcast,
    element_type_of_code,
    is_number,
    type_of,
)
from opscope.operators.effects import ContradictionError
from opscope.operators.operator_table import effects_by_rules
from opscope.text_enum import TextEnum


class StartKind(TextEnum):
    """What `mine` of an extracted call begins with."""

    ATEN = "aten"  # the call itself
    TRITON = "triton"
    CUDA = "cuda"


class Start(NamedTuple):
    imports: str  # lines before the first function
    code: str  # with `mine`
    tolerance: str = ""  # further arguments of torch.testing.assert_close
    kind: StartKind = StartKind.ATEN


@dataclass(frozen=True)
class Written:
    """A call as a file writes it."""

    call: CallArguments
    variables: Mapping[str, str]  # names of its tensors, by argument
    numbers: Mapping[str, str]  # Python text of all else, by argument
    fed: str | None = None  # argument that is the result of the call before it

    @cached_property
    def outputs(self) -> tuple[TensorArgument, ...]:
        return tuple(TensorArgument(one.shape, one.type_name) for one in results_of(self.call))

    @property
    def output(self) -> TensorArgument:
        return self.outputs[0]

    def number(self, name: str) -> str | None:
        text = self.numbers.get(name, _TABLE["defaults"].get(name))
        return None if text == "None" else text

    def tensor(self, name: str) -> TensorArgument | None:
        return self.call.tensor(name) if name in self.variables else None

    @property
    def computed(self) -> str:
        """The type that is computed in, of Triton."""
        given = (*(one for one in self.call.tensors if not is_number(one)), self.output)
        types = [one for one in map(type_of, given) if one is not None]
        wide = any(one.name == "float64" for one in types)
        return "float64" if wide else "float32" if any(one.is_float for one in types) else "int64"


_TABLE = packaged_toml(__package__, "starts.toml")
_ROWS = {operator: row for row in _TABLE["rows"] for operator in row["operators"]}
_C_TYPES: Mapping[str, str] = _TABLE["c_types"]
_INT32_END = 1 << 31
_MOST_COLUMNS = 1 << 17  # of a row in registers


def start_of(calls: Sequence[Written], kind: StartKind, *, parameters: str) -> Start | None:
    """Code that computes a call, or several in a row, in place of calling them; None without a template.

    `parameters` are those of the file's functions.
    """
    tensors = [tensor for one in calls for tensor in (*one.call.tensors, *one.outputs)]
    if any(_name(one) not in _C_TYPES or 0 in one.shape for one in tensors):
        return None
    if kind is StartKind.ATEN or not parameters or not all(one.outputs for one in calls):
        return None
    given, template, language = calls[-1], "elementwise", "cu" if kind is StartKind.CUDA else "py"
    if language == "py" and len(calls) == 1 and given.call.stem in _ROWS:
        template, filled = "rows", _rows(given)
    else:
        filled = _elementwise(calls, language)
    if filled is None:
        return None
    head = packaged_text(__package__, f"starts/head.{language}.txt")
    text = packaged_text(__package__, f"starts/{template}.{language}.txt")
    code = Template(text).substitute({"parameters": parameters, "result": empty(given.output), **filled})
    code = code.replace("device=DEVICE", f"device={parameters.partition(',')[0]}.device")
    tolerance = ""
    if (known := _TABLE["tolerances"].get(_name(given.output))) is not None:
        relative, absolute = known
        if "grad_output" in given.variables and template == "rows":
            # ATen rounds terms of a gradient that are as large as its largest element, and cancel.
            absolute = f"{4 * absolute:.1g} * expected.abs().max().item()"
        tolerance = f", rtol={relative}, atol={absolute}"
    return Start(head, code, tolerance, kind)


def is_elementwise(call: CallArguments) -> bool:
    """Whether it has an expression here, and makes a result of its own."""
    return call.stem in _TABLE["elementwise"] and not call.name.endswith("_")


def results_of(call: CallArguments) -> tuple[TensorArgument, ...]:
    with suppress(ContradictionError):  # of what a stranger recorded
        if (effects := effects_by_rules(call)) is not None:
            return effects.outputs
    # An operator that only calls others, of those with a template here.
    x, dtype = call.tensor("self", "input"), call.integer("dtype")
    if call.stem not in _TABLE["composed"] or x is None or 0 in x.shape:
        return ()
    type_name = x.type_name if dtype is None else getattr(element_type_of_code(dtype), "name", None)
    shape = call.integers("shape") or x.shape
    known = -prod(shape)
    shape = tuple(x.element_count // known if size == -1 else size for size in shape)
    return (TensorArgument(shape, type_name),)


def _name(tensor: TensorArgument) -> str:
    return getattr(type_of(tensor), "name", "")


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(prod(shape[place + 1 :]) for place in range(len(shape)))


def _strides(tensor: TensorArgument) -> tuple[int, ...]:
    return contiguous(tensor.shape) if tensor.strides is None else tensor.strides


def empty(tensor: TensorArgument) -> str:
    """Code that allocates a result."""
    is_whole = _strides(tensor) == contiguous(tensor.shape)
    layout = f"empty({tensor.shape}" if is_whole else f"empty_strided({tensor.shape}, {tensor.strides}"
    return f"torch.{layout}, dtype=torch.{_name(tensor)}, device=DEVICE)"


def _indented(lines: Sequence[str]) -> str:
    return "".join(f"    {one}\n" for one in lines)


_WORD = re.compile(r"\b[a-z_]\w*\b(?![.(])")
_FRACTION = re.compile(r"(?<![\w.])\d+(?:\.\d*)?(?:e[-+]?\d+)?(?![\w.])")


def _expression(given: Written) -> str | None:
    """What an element of the result is, in the variables and numbers of the file."""
    expression = _TABLE["elementwise"].get(given.call.stem)
    if given.call.stem == "pow":
        expression = _TABLE["powers"].get((given.number("exponent") or "").removesuffix(".0"))
    if expression is None or len(given.outputs) > 1 or given.call.has("rounding_mode"):
        return None
    spelled = {name: given.variables.get(name) or given.number(name) for name in _WORD.findall(expression)}
    if any(text is None or text.startswith("[") for text in spelled.values()):
        return None
    return _WORD.sub(lambda found: spelled[found[0]] or "", expression)


def _elementwise(chain: Sequence[Written], language: str) -> dict[str, Any] | None:
    given, call, output = chain[-1], chain[-1].call, chain[-1].output
    lines = [text for one in chain if (text := _expression(one)) is not None]
    used = _WORD.findall("\n".join(lines))
    operands = {
        variable: tensor
        for one in chain
        for name, variable in one.variables.items()
        if name != one.fed and variable in used and (tensor := one.call.tensor(name)) is not None
    }
    is_reshape = any(one.call.stem == "reshape" for one in chain)
    shape = next(iter(operands.values())).shape if is_reshape and operands else output.shape
    # What is computed of smaller results is computed again for each element that they go into.
    parts = [*operands.values(), *(one.output for one in chain[:-1])]
    is_mixed = len(chain) > 1 and (is_reshape or len({one.computed for one in chain}) > 1)
    fits = all(broadcast([one.shape, shape]) == shape for one in parts)
    if len(lines) < len(chain) or is_mixed or not fits:
        return None
    # The result lies in memory as its first operand of all sizes does; a copy that makes a layout, in order.
    written = call.tensor("self") if call.name.endswith("_") else None
    layouts = [] if call.stem in {"contiguous", "reshape"} else [written, *operands.values()]
    like = next((_strides(one) for one in layouts if one and one.shape == shape), contiguous(shape))
    # Neighbors in the memory of the result are neighbors among the threads.
    places = sorted(range(len(shape)), key=lambda place: (-like[place], place))
    if written is None:
        inner = [places[places.index(place) + 1 :] for place in range(len(shape))]
        like = tuple(prod(shape[one] for one in after) for after in inner)
    made = TensorArgument(shape, output.type_name, like)

    def index(tensor: TensorArgument) -> str:
        absent = len(shape) - len(tensor.shape)
        sizes, steps = (1,) * absent + tensor.shape, (0,) * absent + _strides(tensor)
        text = _index([(shape[one], steps[one] * (sizes[one] > 1)) for one in places])
        return text.replace("//", "/") if language == "cu" else text

    count = prod(shape)
    furthest = (sum(map(mul, one.shape, _strides(one))) for one in (*operands.values(), made))
    is_wide = max(count, *furthest) >= _INT32_END
    computed = given.computed
    if language == "cu":
        computed = _C_TYPES[computed]
        lines = [re.sub(r"float\('(-?)inf'\)", r"\1INFINITY", one.replace("tl.", "")) for one in lines]
    if computed in {"float", "double"}:  # else a fraction would be a double
        lines = [_FRACTION.sub(rf"{computed}(\g<0>)", one) for one in lines]
    load, line = _TABLE["lines"][language]
    loads = [load.format(name=name, type=computed, index=index(one)) for name, one in operands.items()] + [
        line.format(name=f"r{number}", type=computed, text=one) for number, one in enumerate(lines[:-1], 1)
    ]
    types = {name: f"const {_C_TYPES[_name(one)]}*" for name, one in operands.items()}
    types["result"] = f"{_C_TYPES[_name(output)]}*"
    return {
        "count": count,
        "result": given.variables["self"] if written is not None else empty(output if is_reshape else made),
        "result_index": index(made),
        "result_type": _C_TYPES[_name(output)],
        "tensors": ", ".join(types),
        "pointers": ", ".join(f"{name}_ptr" for name in types),
        "typed_pointers": ", ".join(f"{of} {name}_ptr" for name, of in types.items()),
        "integers": ", ".join(f"int64_t {name}" for name in types),
        "casts": ", ".join(f"reinterpret_cast<{of}>({name})" for name, of in types.items()),
        "wide": ".to(tl.int64)" * is_wide,
        "index": "int64_t" if is_wide else "int",
        "compute": computed,
        "loads": _indented(loads),
        "expression": lines[-1],
    }


def _index(dimensions: Sequence[tuple[int, int]]) -> str:
    """Where an element lies, by its number in an order of dimensions: of each its size and stride."""
    merged: list[tuple[int, int]] = []  # neighbors that one stride walks through are one
    for size, step in dimensions:
        if size > 1 and merged and merged[-1][1] == size * step:
            merged[-1] = (merged[-1][0] * size, step)
        elif size > 1:
            merged.append((size, step))
    terms = []
    for place, (size, step) in enumerate(merged):
        inner = prod(of for of, _ in merged[place + 1 :])
        text = "i" if inner == 1 else f"i // {inner}"
        text += f" % {size}" * (place > 0)
        if step:
            terms.append(text if step == 1 else f"({text}) * {step}" if " " in text else f"{text} * {step}")
    return " + ".join(terms) or "0 * i"


def _rows(given: Written) -> dict[str, Any] | None:
    """Over the last dimensions, whole rows in registers."""
    call = given.call
    row = _ROWS[call.stem or ""]
    shapes = [one.shape if (one := given.tensor(name)) is not None else () for name in row["rows"]]
    normalized, dim, count = call.integers("normalized_shape"), call.integer("dim"), len(shapes[0])
    if normalized is None and (dim is None or not count or dim % count != count - 1):
        return None
    eps, cut = given.number("eps"), count - len(normalized or (0,))
    column_count, row_count = prod(shapes[0][cut:]), prod(shapes[0][:cut])
    if len(set(shapes)) > 1 or column_count > _MOST_COLUMNS or (normalized is not None and eps is None):
        return None
    used, loads = [], []
    for name in (*row["rows"], *row.get("columns", ())):
        if given.tensor(name) is None:
            loads.append(f"{name} = {0.0 if name == 'bias' else 1.0}")
            continue
        used.append(given.variables[name])
        place = "columns" if name in row.get("columns", ()) else f"rows * {column_count} + columns"
        loaded = f"tl.load({used[-1]}_ptr + {place}, mask=inside, other={row.get('other', '0.0')})"
        loads.append(f"{name} = {loaded}.to(tl.{given.computed})")
    names = row.get("results", ["result"])[: len(given.outputs)]
    return {
        "row_count": row_count,
        "column_count": column_count,
        "pointers": ", ".join(f"{one}_ptr" for one in (*used, *names)),
        "loads": _indented(loads),
        "body": Template(_indented(row["lines"])).substitute(column_count=column_count, eps=eps),
        "stores": _indented([_TABLE["stores"][one].format(column_count=column_count) for one in names]),
        "results": _indented(
            [f"{name} = {empty(one)}" for name, one in zip(names, given.outputs, strict=False)]
        ),
        "tensors": ", ".join([*(f"{one}.contiguous()" for one in used), *names]),
        "returned": ", ".join(names),
    }
