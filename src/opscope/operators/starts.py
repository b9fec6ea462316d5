"""Where an extracted call's own version starts: a kernel of the call's family, for its shapes and types.

Templates are files of `starts/`, one for each family; `starts.toml` says what differs between operators.
Sizes and strides are numbers in the code, so the compiler knows them. A layout without a template has no
start. Imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod, sqrt
from string import Template
from typing import Any, NamedTuple

from opscope.data import packaged_text, packaged_toml
from opscope.operators.arguments import CallArguments, TensorArgument, broadcast, is_number, type_of
from opscope.operators.element_types import element_type_of_code
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
    tolerance: str  # further arguments of torch.testing.assert_close


@dataclass(frozen=True)
class Written:
    """A call as a file writes it."""

    call: CallArguments
    variables: Mapping[str, str]  # names of its tensors, by argument
    numbers: Mapping[str, str]  # Python text of all else, by argument
    fed: str | None = None  # argument that is the result of the call before it

    @cached_property
    def outputs(self) -> tuple[TensorArgument, ...]:
        return results_of(self.call)

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
_C_TYPES: Mapping[str, str] = _TABLE["c_types"]
_INT32_END = 1 << 31
_PROGRAMS = 512  # enough for every multiprocessor to have several


def start_of(calls: Sequence[Written], kind: StartKind, *, parameters: str) -> Start | None:
    """Code that computes a call, or several in a row, in place of calling them; None without a template.

    `parameters` are those of the file's functions.
    """
    tensors = [tensor for one in calls for tensor in (*one.call.tensors, *one.outputs)]
    if any(_name(one) not in _C_TYPES or 0 in one.shape for one in tensors):
        return None
    if not parameters or not all(one.outputs for one in calls):
        return None
    is_cuda, given = kind is StartKind.CUDA, calls[-1]
    template, fill = ("elementwise", None) if is_cuda or len(calls) > 1 else _family(given.call.stem or "")
    filled = _elementwise(calls, is_cuda=is_cuda) if fill is None else fill(given)
    if filled is None:
        return None
    summed = filled.pop("summed", 1)
    text = packaged_text(__package__, f"starts/{template}.{'cu' if is_cuda else 'py'}.txt")
    head = packaged_text(__package__, f"starts/head.{'cu' if is_cuda else 'py'}.txt")
    code = Template(text).substitute({"parameters": parameters, "result": empty(given.output), **filled})
    code = code.replace("device=DEVICE", f"device={parameters.partition(',')[0]}.device")
    tolerance = ""
    if (known := _TABLE["tolerances"].get(_name(given.output))) is not None:
        tolerance = f", rtol={known[0]}, atol={known[1] * sqrt(summed):.1g}"
    return Start(head, code, tolerance)


def is_elementwise(call: CallArguments) -> bool:
    """Whether it has an expression here, and makes a result of its own."""
    return call.stem in _TABLE["elementwise"] and not call.name.endswith("_")


def results_of(call: CallArguments) -> tuple[TensorArgument, ...]:
    effects = effects_by_rules(call)
    return _composed(call) if effects is None else effects.outputs


def _composed(call: CallArguments) -> tuple[TensorArgument, ...]:
    """The result of an operator that only calls others, of those with a template here."""
    x, dtype = call.tensor("self", "input"), call.integer("dtype")
    if x is None or 0 in x.shape:
        return ()
    if call.stem == "matmul":
        other = call.tensor("other")
        is_matrix = other is not None and min(len(x.shape), len(other.shape)) > 1
        return (TensorArgument((*x.shape[:-1], other.shape[-1]), x.type_name),) if other and is_matrix else ()
    if call.stem not in {"softmax", "log_softmax", "layer_norm", "rms_norm", "contiguous", "reshape", "to"}:
        return ()
    type_name = x.type_name if dtype is None else getattr(element_type_of_code(dtype), "name", None)
    shape = call.integers("shape")
    if shape is not None and -1 in shape:
        known = -prod(shape)
        shape = tuple(x.element_count // known if size == -1 else size for size in shape)
    return (TensorArgument(shape or x.shape, type_name),)


_Fill = Callable[[Written], "dict[str, Any] | None"]


def _family(stem: str) -> tuple[str, _Fill | None]:
    """Template of an operator, and what fills it; None for one element at a time."""
    for names, template, fill in _FAMILIES:
        if stem in names:
            return template, fill
    return "elementwise", None


def _name(tensor: TensorArgument) -> str:
    element = type_of(tensor)
    return "" if element is None else element.name


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(prod(shape[place + 1 :]) for place in range(len(shape)))


def _strides(tensor: TensorArgument) -> tuple[int, ...]:
    return contiguous(tensor.shape) if tensor.strides is None else tensor.strides


def empty(tensor: TensorArgument, *, how: str = "empty", dtype: str | None = None) -> str:
    """Code that allocates a result."""
    strides = _strides(tensor)
    laid = "" if strides == contiguous(tensor.shape) else f", {strides}"
    how += "_strided" * bool(laid)
    return f"torch.{how}({tensor.shape}{laid}, dtype=torch.{dtype or _name(tensor)}, device=DEVICE)"


def _power(size: int) -> int:
    """The next power of two."""
    return 1 << (size - 1).bit_length()


def _merged(shape: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """Sizes and strides, neighbors that one stride walks through being one; sizes of 1 left out."""
    found: list[tuple[int, int]] = []
    for size, step in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if found and found[-1][1] == size * step:
            found[-1] = (found[-1][0] * size, step)
        else:
            found.append((size, step))
    return found or [(1, 0)]


def _stride(shape: Sequence[int], strides: Sequence[int]) -> int | None:
    """The one stride that walks through dimensions; None if there is none."""
    merged = _merged(shape, strides)
    return merged[0][1] if len(merged) == 1 else None


# One element at a time.

_FUNCTIONS = re.compile(r"\b(exp|log|sqrt|rsqrt|sin|cos|erf|floor|ceil|abs|where|maximum|minimum|sigmoid)\(")
_WORD = re.compile(r"\b[a-z_]\w*\b(?!\()")
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


def _elementwise(chain: Sequence[Written], *, is_cuda: bool) -> dict[str, Any] | None:
    given, call, output = chain[-1], chain[-1].call, chain[-1].output
    texts = [_expression(one) for one in chain]
    # What is computed of smaller results is computed again for each element that they go into.
    widened = all(broadcast([one.output.shape, output.shape]) == output.shape for one in chain)
    reshapes = len(chain) > 1 and any(one.call.stem == "reshape" for one in chain)
    if None in texts or not widened or reshapes or len({one.computed for one in chain}) > 1:
        return None
    every = "\n".join(filter(None, texts))
    operands = {
        variable: tensor
        for one in chain
        for name, variable in one.variables.items()
        if name != one.fed
        and variable in _WORD.findall(every)
        and (tensor := one.call.tensor(name)) is not None
    }
    written = given.tensor("self") if call.name.endswith("_") else None
    shape = output.shape if written is not None else broadcast(one.shape for one in operands.values())
    is_copy = written is None and every == given.variables.get("self")
    if shape is None or (shape != output.shape and not (is_copy and prod(shape) == output.element_count)):
        return None
    # The result lies in memory as its first operand of all sizes does; a copy that makes a layout, in order.
    like = next((_strides(one) for one in operands.values() if one.shape == shape), contiguous(shape))
    if written is not None:
        strides = _strides(written)
    elif is_copy and call.stem not in {"to", "_to_copy", "clone"}:
        strides = contiguous(shape)
    else:
        order = sorted(range(len(shape)), key=lambda place: (like[place], -place))
        strides = tuple(
            prod(shape[one] for one in order[: order.index(place)]) for place in range(len(shape))
        )
    made = TensorArgument(output.shape, output.type_name, strides if shape == output.shape else None)
    # Neighbors in the memory of the result are neighbors among the threads.
    places = sorted(range(len(shape)), key=lambda place: (-strides[place], place))

    def index(tensor: TensorArgument) -> str:
        absent = (0,) * (len(shape) - len(tensor.shape))
        pairs = zip(tensor.shape, _strides(tensor), strict=True)
        steps = (*absent, *(0 if size == 1 else step for size, step in pairs))
        text = _index([shape[one] for one in places], [steps[one] for one in places])
        return text.replace("//", "/") if is_cuda else text

    count = prod(shape)
    is_wide = max(count, *map(_reach, operands.values()), _reach(made)) >= _INT32_END
    computed = _C_TYPES[given.computed] if is_cuda else given.computed
    loads = {name: (_C_TYPES[_name(one)], index(one)) for name, one in operands.items()}
    lines = [*(f"r{number} = {text}" for number, text in enumerate(texts[:-1], 1)), texts[-1] or ""]
    results = written or made
    values = {
        "count": count,
        "result": given.variables["self"] if written is not None else empty(made),
        "result_index": index(TensorArgument(shape, output.type_name, strides)),
        "tensors": ", ".join([*loads, "result"]),
    }
    if not is_cuda:
        lines = [_FUNCTIONS.sub(r"tl.\1(", one) for one in lines]
        loaded = [
            f"{one} = tl.load({one}_ptr + {where}, mask=inside).to(tl.{computed})"
            for one, (_, where) in loads.items()
        ]
        return {
            **values,
            "pointers": ", ".join(f"{one}_ptr" for one in [*loads, "result"]),
            "wide": ".to(tl.int64)" * is_wide,
            "loads": "".join(f"    {one}\n" for one in [*loaded, *lines[:-1]]),
            "expression": lines[-1],
        }
    result_type = _C_TYPES[_name(results)]
    # A fraction would be a double.
    for pattern, instead in (
        (r"float\('(-?)inf'\)", r"\1INFINITY"),
        ("True", "true"),
        ("False", "false"),
        *(() if computed == "int64_t" else ((_FRACTION, rf"{computed}(\g<0>)"),)),
    ):
        lines = [re.sub(pattern, instead, one) for one in lines]
    return {
        **values,
        "pointers": ", ".join(
            [*(f"const {kind}* {one}_ptr" for one, (kind, _) in loads.items()), f"{result_type}* result_ptr"]
        ),
        "integers": ", ".join(f"int64_t {one}" for one in [*loads, "result"]),
        "index": "int64_t" if is_wide else "int",
        "compute": computed,
        "loads": "".join(
            f"    const {computed} {one} = as({computed}{{}}, {one}_ptr[{where}]);\n"
            for one, (_, where) in loads.items()
        )
        + "".join(f"    const {computed} {one};\n" for one in lines[:-1]),
        "result_type": result_type,
        "expression": lines[-1],
        "casts": ", ".join(
            [
                *(f"reinterpret_cast<const {kind}*>({one})" for one, (kind, _) in loads.items()),
                f"reinterpret_cast<{result_type}*>(result)",
            ]
        ),
    }


def _reach(tensor: TensorArgument) -> int:
    """Elements from a tensor's first to its last in memory."""
    return 1 + sum((size - 1) * step for size, step in zip(tensor.shape, _strides(tensor), strict=True))


def _index(shape: Sequence[int], steps: Sequence[int], number: str = "i") -> str:
    """Where an element lies, by its number in an order of dimensions."""
    merged, terms, inner = _merged(shape, steps), [], prod(shape)
    whole = inner
    for size, step in merged:
        inner //= size
        text = number if inner == 1 else f"{number} // {inner}"
        text += "" if size * inner == whole else f" % {size}"
        if step:
            terms.append(text if step == 1 else f"({text}) * {step}" if " " in text else f"{text} * {step}")
    return " + ".join(terms) or "0 * " + number


# What is left of one dimension.


def _reduction(given: Written) -> dict[str, Any] | None:
    call, x = given.call, given.tensor("self")
    if x is None or len(given.outputs) > 1 or call.tensor("other") is not None:
        return None
    count = len(x.shape)
    asked = call.integers("dim") if call.has("dim") and not call.is_omitted("dim") else ()
    if asked is None:
        return None
    chosen = sorted({one % count for one in asked}) if asked else list(range(count))
    if not chosen or chosen != list(range(chosen[0], chosen[-1] + 1)):
        return None
    cuts = (slice(0, chosen[0]), slice(chosen[0], chosen[-1] + 1), slice(chosen[-1] + 1, count))
    sizes = [prod(x.shape[one]) for one in cuts]
    steps = [_stride(x.shape[one], _strides(x)[one]) for one in cuts]
    if None in steps:
        return None
    if sizes[2] == 1:  # rows stand side by side in a tile
        sizes[0], sizes[2], steps[0], steps[2] = 1, sizes[0], 0, steps[0]
    outers, reduced, inner = sizes
    along = min(_power(reduced), 4096 if steps[1] == 1 else 64)
    across = max(1, min(_power(inner), 4096 // along))
    programs = outers * -(-inner // across)
    parts = min(-(-_PROGRAMS // programs), -(-reduced // (4 * along))) or 1
    part = -(-reduced // (along * parts)) * along
    identity, combined, reduce = _TABLE["reduction"][call.stem]
    accumulated = given.computed
    if accumulated == "int64" and reduce != "sum":
        return None
    return {
        "summed": reduced if call.stem == "sum" else 1,
        "inner_block": across,
        "reduced_block": along,
        "part": part,
        "identity": identity,
        "accumulated": f"tl.{accumulated}",
        "combined": combined,
        "reduce": reduce,
        "x": given.variables["self"],
        "outers": outers,
        "reduced": reduced,
        "inner": inner,
        "results": outers * inner,
        "scale": f"1 / {reduced}" if call.stem == "mean" else "1",
        "parts_type": accumulated,
        "strides": tuple(steps),
    }


# Whole rows in registers.

_MOST_COLUMNS = 1 << 17
_ROWS = {operator: row for row in _TABLE["rows"] for operator in row["operators"]}


def _rows(given: Written) -> dict[str, Any] | None:
    call = given.call
    row = _ROWS[call.stem or ""]
    tensors = {name: given.tensor(name) for name in row["rows"]}
    first = next(iter(tensors.values()))
    if first is None or any(one is None or one.shape != first.shape for one in tensors.values()):
        return None
    normalized = call.integers("normalized_shape")
    dim, count = call.integer("dim"), len(first.shape)
    if normalized is None and (dim is None or not count or dim % count != count - 1):
        return None
    split = count - len(normalized or (0,))
    column_count, row_count = prod(first.shape[split:]), prod(first.shape[:split])
    steps = {}
    for name, one in tensors.items():
        assert one is not None
        within = _stride(one.shape[split:], _strides(one)[split:])
        steps[name] = _stride(one.shape[:split], _strides(one)[:split])
        if steps[name] is None or within != (1 if column_count > 1 else 0):
            return None
    shared = {name: given.tensor(name) for name in row.get("columns", ())}
    if any(one is not None and _strides(one) != contiguous(one.shape) for one in shared.values()):
        return None
    eps, columns = given.number("eps"), _power(column_count)
    if columns > _MOST_COLUMNS or (normalized is not None and eps is None):
        return None
    computed, other = given.computed, row.get("other", "0.0")
    loads = [
        f"{name} = tl.load({given.variables[name]}_ptr + rows * {steps[name]} + columns, mask=inside, "
        f"other={other}).to(tl.{computed})"
        for name in tensors
    ]
    loads += [
        f"{name} = {0.0 if name == 'bias' else 1.0}"
        if one is None
        else f"{name} = tl.load({given.variables[name]}_ptr + columns, mask=inside, other=0.0)"
        for name, one in shared.items()
    ]
    names = row.get("results", ["result"])[: len(given.outputs)]
    stores = [
        f"tl.store({name}_ptr + rows * {column_count} + columns, {name}, mask=inside)"
        if name == "result"
        else f"tl.store({name}_ptr + rows, {name})"
        for name in names
    ]
    used = [given.variables[name] for name in (*tensors, *shared) if given.tensor(name) is not None]
    body = Template("\n".join(row["lines"])).substitute(column_count=column_count, eps=eps)
    results = zip(names, given.outputs, strict=False)
    return {
        # Gradients are sums of random numbers, times what may be some tens.
        "summed": 16 * column_count if len(tensors) > 1 else 1,
        "columns": columns,
        "rows": max(1, min(4096 // columns, _power(row_count))),
        "warps": max(4, min(32, columns // 1024)),
        "row_count": row_count,
        "column_count": column_count,
        "pointers": ", ".join(f"{one}_ptr" for one in (*used, *names)),
        "loads": "".join(f"    {one}\n" for one in loads),
        "body": "".join(f"    {one}\n" for one in body.splitlines()).rstrip("\n"),
        "stores": "".join(f"    {one}\n" for one in stores),
        "results": "".join(
            f"    {name} = {empty(TensorArgument(one.shape, one.type_name))}\n" for name, one in results
        ),
        "tensors": ", ".join((*used, *names)),
        "returned": ", ".join(names),
    }


# Tiles of a matrix product.

_OPERANDS: Mapping[str, list[str]] = _TABLE["products"]
_INTERPRETED = "# Triton's interpreter, which runs it without a GPU, does not multiply bfloat16.\n"
_MULTIPLIED = frozenset({"float32", "float16", "bfloat16"})
_MULTIPROCESSORS = 132  # of an H200


def _product(given: Written) -> dict[str, Any] | None:
    call, output = given.call, given.output
    left, right, *third = _OPERANDS[call.stem or ""]
    added = third[0] if third else None
    a, b = given.tensor(left), given.tensor(right)
    if a is None or b is None or min(len(a.shape), len(b.shape)) < 2 or _name(a) not in _MULTIPLIED:
        return None
    b_shape, b_strides = b.shape, _strides(b)
    if call.stem == "linear":
        b_shape, b_strides = b_shape[::-1], b_strides[::-1]
    depth, columns = b_shape[-2:]
    # A right matrix for all has the left's leading dimensions as rows.
    cut = len(a.shape) - 2 if len(b_shape) > 2 else 0
    if len(b_shape) > 2 and a.shape[:-2] != b_shape[:-2]:
        return None
    a_strides = _strides(a)
    a_row = _stride(a.shape[cut:-1], a_strides[cut:-1])
    if a_row is None or _name(a) != _name(b):
        return None
    batch, rows = prod(a.shape[:cut]), prod(a.shape[cut:-1])
    epilogue = _epilogue(given, added, cut)
    if epilogue is None:
        return None
    used = [given.variables[one] for one in (left, right, added or "") if one in given.variables]
    is_single = _name(a) == "float32"
    # The largest tile of which there is one for each multiprocessor.
    tile = (64, 64, 32 if is_single else 64)
    if rows < tile[0]:
        tile = (max(16, _power(rows)), 32, 128)
    for larger in () if is_single else ((128, 128, 64), (128, 256, 64)):
        if batch * -(-rows // larger[0]) * -(-columns // larger[1]) >= _MULTIPROCESSORS:
            tile = larger
    return {
        "summed": depth,
        "sizes": (rows, columns, depth, batch),
        "tile": tile,
        "warps": 8 if prod(tile[:2]) > 64 * 64 else 4,
        "stages": 3,
        "pointers": ", ".join(["a_ptr", "b_ptr", *(f"{one}_ptr" for one in used[2:]), "result_ptr"]),
        "a_batch": _index(a.shape[:cut], a_strides[:cut], "batch"),
        "a_row": a_row,
        "a_depth": a_strides[-1],
        "b_batch": _index(b_shape[:-2], b_strides[:-2], "batch"),
        "b_depth": b_strides[-2],
        "b_column": b_strides[-1],
        # As torch multiplies by default; "tf32" is faster where a program allows it.
        "precision": ', input_precision="ieee"' * is_single,
        "remark": _INTERPRETED * (_name(a) == "bfloat16"),
        "epilogue": "".join(f"    {one}\n" for one in epilogue),
        "result": empty(TensorArgument(output.shape, output.type_name)),
        "tensors": ", ".join([*used, "result"]),
    }


def _epilogue(given: Written, added: str | None, cut: int) -> list[str] | None:
    """Lines that scale a product and add a tensor, after `cut` dimensions of a batch; None if they cannot."""
    lines: list[str] = []
    shape = given.output.shape
    if added is None:
        return lines
    alpha, beta = given.number("alpha") or "1", given.number("beta") or "1"
    if added == "self" and alpha not in {"1", "1.0"}:
        lines.append(f"total = {alpha} * total")
    bias = given.tensor(added)
    if bias is None:
        return lines
    absent = (0,) * (len(shape) - len(bias.shape))
    pairs = zip(bias.shape, _strides(bias), strict=True)
    steps = (*absent, *(0 if size == 1 else step for size, step in pairs))
    at_row = _stride(shape[cut:-1], steps[cut:-1])
    if at_row is None:
        return None
    where = f"{_index(shape[:cut], steps[:cut], 'batch')} + rows * {at_row} + columns * {steps[-1]}"
    load = f"tl.load({given.variables[added]}_ptr + {where}, mask=inside, other=0.0).to(tl.float32)"
    return [*lines, f"total += {load}" if beta in {"1", "1.0"} else f"total += {beta} * {load}"]


# Rows by number.


def _gather(given: Written) -> dict[str, Any] | None:
    """`index_select`, `embedding`: from one place each."""
    stem = given.call.stem
    source, index = ("weight", "indices") if stem == "embedding" else ("self", "index")
    return _moved(given, source, index, 0 if stem == "embedding" else given.call.integer("dim"))


def _scatter(given: Written) -> dict[str, Any] | None:
    """`index_add`, `scatter_add`, `embedding_dense_backward`: several may go to one place."""
    call, output = given.call, given.output
    if call.name.endswith("_") or _name(output) not in _MULTIPLIED:
        return None
    if call.stem == "embedding_dense_backward":
        if given.number("scale_grad_by_freq") not in {None, "False"}:
            return None
        filled = _moved(given, "grad_output", "indices", 0, result=output)
        accumulator, padding = empty(output, how="zeros", dtype="float32"), call.integer("padding_idx")
        kept = "" if padding is None or padding < 0 else f" & (taken != {padding})"
    else:
        source = "source" if call.stem == "index_add" else "src"
        filled = _moved(given, source, "index", call.integer("dim"), result=output)
        target, kept = given.variables.get("self"), ""
        accumulator = f"{target}.to(torch.float32, copy=True, memory_format=torch.contiguous_format)"
    if filled is None:
        return None
    is_single = _name(output) == "float32"
    return {
        **filled,
        "summed": 64,
        "kept": kept,
        "factor": given.number("alpha") if call.stem == "index_add" else "1",
        "accumulator": accumulator,
        "returned": "result" if is_single else f"result.to(torch.{_name(output)})",
    }


def _moved(
    given: Written, source: str, index: str, dim: int | None, *, result: TensorArgument | None = None
) -> dict[str, Any] | None:
    x, where = given.tensor(source), given.tensor(index)
    if x is None or where is None or dim is None or not x.shape:
        return None
    # The source of rows by number has a dimension for the numbers, what is scattered one for each of theirs.
    by_element = given.call.stem == "scatter_add"
    width = len(where.shape) if given.call.stem == "embedding_dense_backward" else 1
    dim %= len(x.shape)
    if by_element:
        others = [
            one for place, one in enumerate(zip(x.shape, (result or x).shape, strict=True)) if place != dim
        ]
        if where.shape != x.shape or any(size != whole for size, whole in others):
            return None
    cuts = (slice(0, dim), slice(dim, dim + width), slice(dim + width, len(x.shape)))
    steps = [_stride(x.shape[one], _strides(x)[one]) for one in cuts]
    outers, count, inner = (prod(x.shape[one]) for one in cuts)
    if None in steps or (not by_element and _stride(where.shape, _strides(where)) is None):
        return None
    if by_element:
        at = [_stride(where.shape[one], _strides(where)[one]) for one in cuts]
        if None in at:
            return None
        index_at = f"outer * {at[0]} + i * {at[1]} + inner * {at[2]}"
    else:
        count = where.element_count
        index_at = f"i * {_stride(where.shape, _strides(where))}"
    result_inner = prod(result.shape[dim + 1 :]) if result is not None else inner
    return {
        "block": min(1024, _power(inner)),
        "index_count": count,
        "index_at": index_at,
        "index_mask": ", mask=inside, other=0" * by_element,
        "row_count": outers * count,
        "outer_stride": steps[0],
        "taken_stride": steps[1],
        "inner_stride": steps[2],
        "inner": inner,
        "result_inner": result_inner,
        "result_outer_stride": prod(result.shape[dim:]) if result is not None else 0,
        "source": given.variables[source],
        "index": given.variables[index],
    }


_FAMILIES: tuple[tuple[Any, str, _Fill], ...] = (
    (_TABLE["reduction"], "reduction", _reduction),
    (_ROWS, "rows", _rows),
    (_OPERANDS, "product", _product),
    ({"index_select", "embedding"}, "gather", _gather),
    ({"index_add", "scatter_add", "embedding_dense_backward"}, "scatter", _scatter),
)
