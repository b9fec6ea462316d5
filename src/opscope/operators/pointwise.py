"""Operations of elementwise functions, per element of the result, by the formula that defines each.

Each entry states its formula. Where a function has branches (elu, softplus), the branch that computes counts.
Lists of tensors (`_foreach_add`) count as their elementwise function does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from opscope.operators.arguments import CallArguments, ScalarArgument, TensorArgument, broadcast, type_of
from opscope.operators.call_cost import FlopSource
from opscope.operators.effects import (
    CallEffects,
    ContradictionError,
    FlopDefinition,
    Formula,
    Rule,
    Shape,
    defined,
    dimension_of,
    effects_of,
    made,
    nothing,
    operator_stem,
    per_element,
    shape_text,
    written_out,
)
from opscope.operators.element_types import ElementKind, ElementType, element_type
from opscope.operators.promotion import BOOL, promoted_type, to_float
from opscope.text_enum import TextEnum

__all__ = ["DEFINITIONS", "RULES", "ResultType", "common_shape", "scale_operations"]


# One arithmetic operation or elementary function of each element.
_SINGLE = """
    exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan atan2 sinh cosh tanh asinh
    acosh atanh erf erfc erfinv lgamma digamma polygamma igamma igammac i0 special_i0e special_i1 special_i1e
    special_erfcx special_ndtri special_zeta pow reciprocal square fmod remainder floor_divide true_divide
    frac
"""
_ARITHMETIC: Mapping[str, FlopDefinition] = {
    # Complex numbers: (a + bi)·(c + di) is 4 multiplications and 2 additions.
    "mul": per_element(1, complex_factor=6),
    "div": per_element(1),
    **{stem: per_element(1) for stem in _SINGLE.split()},
    "ldexp": per_element(2),  # x · 2ʸ
    "xlogy": per_element(2),  # x · log(y)
    "special_xlog1py": per_element(2),  # x · log1p(y)
    "sinc": per_element(3),  # sin(π·x) / (π·x)
    "hypot": per_element(4),  # √(x² + y²)
}
# Activations and their gradients. σ(x) = 1 / (1 + exp(−x)); Φ and φ are the normal distribution and density.
_ACTIVATIONS: Mapping[str, FlopDefinition] = {
    "sigmoid": per_element(3),  # exp, add, divide
    "logit": per_element(3),  # log(x / (1 − x))
    "silu": per_element(3),  # x / (1 + exp(−x))
    "mish": per_element(5),  # x · tanh(log(1 + exp(x)))
    "log_sigmoid_forward": per_element(4),  # min(0, x) − log(1 + exp(−|x|)): exp, add, log, subtract
    "gelu": per_element(5),  # x · ½ · (1 + erf(x / √2))
    "elu": per_element(3),  # k · (exp(x) − 1)
    "celu": per_element(4),  # k · (exp(x / k) − 1)
    "selu": per_element(4),  # λ · k · (exp(x) − 1)
    "leaky_relu": per_element(1),  # slope · x
    "rrelu_with_noise": per_element(1),
    "prelu": per_element(1),
    "_prelu_kernel": per_element(1),
    "softshrink": per_element(1),  # x ∓ λ
    "hardswish": per_element(3),  # x · clamp(x + 3, 0, 6) / 6
    "hardsigmoid": per_element(2),  # clamp(x + 3, 0, 6) / 6
    "glu": per_element(4),  # a · σ(b)
    "tanh_backward": per_element(3),  # g · (1 − y²)
    "sigmoid_backward": per_element(3),  # g · (1 − y) · y
    "logit_backward": per_element(3),  # g / (x · (1 − x))
    "silu_backward": per_element(8),  # g · σ · (1 + x · (1 − σ)), σ being 3
    "mish_backward": per_element(13),  # g · (t + x · σ · (1 − t²)), t = tanh(log(1 + exp(x))) 4, σ 3, rest 6
    "log_sigmoid_backward": per_element(4),  # g · σ(−x)
    # g · (Φ + x·φ): Φ = ½·(1 + erf(x / √2)) 4, φ = exp(−½·x²)·c 4, rest 3
    "gelu_backward": per_element(11),
    "elu_backward": per_element(3),  # g · k · exp(x)
    "leaky_relu_backward": per_element(1),
    "_prelu_kernel_backward": per_element(2),  # slope · g; and x · g for the slope
    "softshrink_backward": nothing(),
    "hardswish_backward": per_element(3),  # g · (x / 3 + ½)
    "hardsigmoid_backward": per_element(1),  # g / 6
    # With s = σ(b): g·s, and g·a·s·(1 − s): over the two halves of the result 3 + 1 + 4 for two elements.
    "glu_backward": per_element(4),
    "softplus_backward": per_element(5),  # g · σ(β·x)
}
_DISTRIBUTIONS: Mapping[str, FlopDefinition] = {
    # What is drawn (uniform in 0–1, standard normal) is not counted, what is done to it is.
    "uniform": per_element(2),  # low + (high − low)·u
    "normal": per_element(2),  # mean + deviation·z
    "randn": nothing(),
    "rand": nothing(),
    "exponential": per_element(2),  # −log(u) / λ
    "log_normal": per_element(3),  # exp(mean + deviation·z)
    "cauchy": per_element(5),  # median + scale·tan(π·(u − ½))
    "geometric": per_element(2),  # ceil(log(u) / log(1 − p)), the divisor once
    "native_dropout": per_element(1),  # kept elements · 1/(1 − p)
    "native_dropout_backward": per_element(1),
    "_masked_scale": per_element(1),
    "arange": per_element(2),  # start + i·step
    "linspace": per_element(2),
    "range": per_element(2),
    "logspace": per_element(3),
}


def scale_operations(call: CallArguments, position: int) -> int | None:
    """1 for a multiplication by the factor at a position; 0 if it is 1, or left out; None if not recorded."""
    if call.is_absent(position) and call.values_recorded:
        return 0
    factor = call.value(position)
    if not isinstance(factor, (int, float)):
        return None
    return int(factor != 1)


def _scaled(operations: int, factor_position: int) -> Formula:
    """So many operations an element, and the multiplication by a factor unless it is 1."""

    def formula(effects: CallEffects) -> int | None:
        scaling = scale_operations(effects.call, factor_position)
        return None if scaling is None else (operations + scaling) * effects.output_elements

    return formula


def _softplus(effects: CallEffects) -> int | None:
    """log(1 + exp(β·x)) / β."""
    scaling = scale_operations(effects.call, 1)
    return None if scaling is None else (3 + 2 * scaling) * effects.output_elements


# x + k·y; t + v·a·b; t + v·a/b. Of complex numbers an addition is 2.
_SCALED: Mapping[str, FlopDefinition] = {
    "add": FlopDefinition(_scaled(1, 2), complex_factor=2),
    "sub": FlopDefinition(_scaled(1, 2), complex_factor=2),
    "rsub": FlopDefinition(_scaled(1, 2), complex_factor=2),
    "addcmul": defined(_scaled(2, 3)),
    "addcdiv": defined(_scaled(2, 3)),
    "softplus": defined(_softplus),
    "lerp": per_element(3),  # a + w·(b − a)
    "logaddexp": per_element(4),  # m + log(1 + exp(−|a − b|))
    "logaddexp2": per_element(4),
}

_LIST_SINGLE = """
    mul div exp expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh erf erfc
    lgamma pow reciprocal frac
"""
# Of a list: the factor of addcmul may be a list of factors, whose values are not recorded: then none is 1.
_LIST_OPERATIONS: Mapping[str, int] = {
    **dict.fromkeys(_LIST_SINGLE.split(), 1),
    "sigmoid": 3,
    "lerp": 3,
}
_LIST_FACTORS: Mapping[str, tuple[int, int]] = {
    "add": (1, 2),
    "sub": (1, 2),
    "addcmul": (2, 3),
    "addcdiv": (2, 3),
}


def _list_elements(effects: CallEffects) -> int | None:
    tensors = effects.call.tensor_list(0)
    return None if tensors is None else sum(tensor.element_count for tensor in tensors)


def _each(operations: int) -> Formula:
    def formula(effects: CallEffects) -> int | None:
        elements = _list_elements(effects)
        return None if elements is None else operations * elements

    return formula


def _each_scaled(operations: int, factor_position: int) -> Formula:
    def formula(effects: CallEffects) -> int | None:
        elements = _list_elements(effects)
        scaling = scale_operations(effects.call, factor_position)
        if effects.call.is_absent(factor_position) and len(effects.call) > factor_position:
            scaling = 1
        return None if elements is None or scaling is None else (operations + scaling) * elements

    return formula


_LISTS: Mapping[str, FlopDefinition] = {
    **{f"_foreach_{stem}": defined(_each(operations)) for stem, operations in _LIST_OPERATIONS.items()},
    **{f"_foreach_{stem}": defined(_each_scaled(*entry)) for stem, entry in _LIST_FACTORS.items()},
    # Multiplies each gradient by the inverse scale, and looks for what is not finite.
    "_amp_foreach_non_finite_check_and_unscale": defined(_each(1)),
}

DEFINITIONS: Mapping[str, FlopDefinition] = {
    **_ARITHMETIC,
    **_ACTIVATIONS,
    **_DISTRIBUTIONS,
    **_SCALED,
    **_LISTS,
    "_amp_update_scale": FlopDefinition(None, FlopSource.NONE),
}


class ResultType(TextEnum):
    """What type the result has. A closed set."""

    PROMOTED = "promoted"
    FLOAT = "float"  # promoted, of integers float32
    REAL = "real"  # promoted, of complex numbers their parts' type
    BOOL = "bool"
    FIRST = "first"  # the first operand's


@dataclass(frozen=True)
class _Pointwise:
    """One elementwise function.

    Attributes:
        operands: Positions of tensors, or of numbers in their place.
        result: Type of its result.
        arguments: How many arguments it takes besides `out`.
        typeless: Operands that take part in the shape alone (masks).
        optional: Operands that may be absent.
    """

    operands: tuple[int, ...]
    result: ResultType
    arguments: int
    typeless: tuple[int, ...] = ()
    optional: tuple[int, ...] = ()


def common_shape(tensors: list[TensorArgument]) -> Shape:
    """The shape that tensors broadcast to.

    Raises:
        ContradictionError: They do not.
    """
    shape = broadcast(tensor.shape for tensor in tensors)
    if shape is None:
        sizes = ", ".join(shape_text(tensor.shape) for tensor in tensors)
        raise ContradictionError(f"sizes {sizes} do not broadcast")
    return shape


def _rule(spec: _Pointwise) -> Rule:
    def rule(call: CallArguments) -> CallEffects | None:
        operands = _operands(call, spec)
        out_position = _out_position(call, spec)
        if operands is None or out_position is None:
            return None
        tensors = [operand for operand in operands.values() if isinstance(operand, TensorArgument)]
        if not tensors:
            return None
        shape, element = common_shape(tensors), _result_type(operands, spec)
        return _effects(call, shape, element, out_position)

    return rule


def _effects(
    call: CallArguments, shape: Shape, element: ElementType | None, out_position: int
) -> CallEffects | None:
    own = call.tensor(0)
    if _is_in_place(call):
        if own is None or type_of(own) is None:
            return None
        if own.shape != shape:
            raise ContradictionError(f"a result of {shape_text(shape)} in place of {shape_text(own.shape)}")
        return effects_of(call, (own,))
    out = call.tensor(out_position)
    if element is None or (out is not None and not _can_hold(out, element)):
        return None
    return effects_of(call, (written_out(shape, element, out),), (out_position,))


def _operands(call: CallArguments, spec: _Pointwise) -> dict[int, TensorArgument | ScalarArgument] | None:
    """Operands by position; None if one is missing, or its type unknown."""
    found: dict[int, TensorArgument | ScalarArgument] = {}
    for position in spec.operands:
        argument = call.at(position)
        if isinstance(argument, (TensorArgument, ScalarArgument)):
            found[position] = argument
        elif position not in spec.optional or not call.values_recorded:
            return None
    return found


def _out_position(call: CallArguments, spec: _Pointwise) -> int | None:
    """Where `out` is, or would be; None if the call has arguments that the function does not take."""
    last = len(call) - 1
    others = [
        position
        for position in range(len(call))
        if position not in spec.operands and call.tensor(position) is not None
    ]
    if others not in ([], [last]) or len(call) > spec.arguments + len(others):
        return None
    return others[0] if others else len(call)


def _result_type(
    operands: Mapping[int, TensorArgument | ScalarArgument], spec: _Pointwise
) -> ElementType | None:
    if spec.result is ResultType.BOOL:
        return BOOL
    typed = [operand for position, operand in operands.items() if position not in spec.typeless]
    if spec.result is ResultType.FIRST:
        return type_of(typed[0]) if isinstance(typed[0], TensorArgument) else None
    element = promoted_type(typed)
    if spec.result is ResultType.FLOAT:
        return to_float(element)
    if spec.result is ResultType.REAL and element is not None and element.kind is ElementKind.COMPLEX:
        return element_type(f"float{element.size_bytes * 4}")
    return element


def _can_hold(out: TensorArgument, element: ElementType) -> bool:
    """Whether torch writes results of a type into such a tensor: never of a higher kind."""
    known = type_of(out)
    return known is not None and (element.kind.rank <= known.kind.rank or element.kind is ElementKind.INTEGER)


def _is_in_place(call: CallArguments) -> bool:
    stem = operator_stem(call.name)
    return stem is not None and not call.name.endswith(stem)


def _dropout(call: CallArguments) -> CallEffects | None:
    """native_dropout(input, p, train): the result, and which elements were kept."""
    data, trains = call.tensor(0), call.boolean(2)
    element = None if data is None else type_of(data)
    if data is None or element is None or not (trains or (call.is_absent(2) and call.values_recorded)):
        return None
    return effects_of(call, (made(data.shape, element), made(data.shape, BOOL)))


def _log_sigmoid(call: CallArguments) -> CallEffects | None:
    """log_sigmoid_forward(self): the result, and a buffer that stays empty on a GPU."""
    data = call.tensor(0)
    element = None if data is None else type_of(data)
    if data is None or element is None or len(call) != 1:
        return None
    return effects_of(call, (made(data.shape, element), made((0,), element)))


def _glu(call: CallArguments) -> CallEffects | None:
    """glu(self, dim): half of the dimension."""
    data, dimension = call.tensor(0), call.integer(1)
    element = None if data is None else type_of(data)
    if data is None or element is None or dimension is None or not data.shape or len(call) > 3:
        return None
    along, shape = dimension_of(data.shape, dimension), list(data.shape)
    if shape[along] % 2:
        raise ContradictionError(f"half of {shape[along]}")
    shape[along] //= 2
    return effects_of(call, (written_out(tuple(shape), element, call.tensor(2)),), (2,))


def _glu_backward(call: CallArguments) -> CallEffects | None:
    """glu_backward(grad_output, self, dim): of the shape of self."""
    data = call.tensor(1)
    element = None if data is None else type_of(data)
    if data is None or element is None or len(call) > 4:
        return None
    return effects_of(call, (written_out(data.shape, element, call.tensor(3)),), (3,))


def _table(names: str, spec: _Pointwise) -> dict[str, Rule]:
    """One rule for functions and their in-place variants."""
    rule = _rule(spec)
    in_place = {f"{name}_": rule for name in names.split() if not name.endswith("__")}
    return dict.fromkeys(names.split(), rule) | in_place


_PROMOTED, _FLOAT, _FIRST = ResultType.PROMOTED, ResultType.FLOAT, ResultType.FIRST
_PAIR = (0, 1)
_TRIPLE = (0, 1, 2)

# Source of arguments: PyTorch 2.11.0, native_functions.yaml.
RULES: Mapping[str, Rule] = {
    **_table(
        """
        exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh
        atanh erf erfc erfinv lgamma digamma reciprocal sigmoid sinc special_i0e special_i1 special_i1e i0
        """,
        _Pointwise((0,), _FLOAT, 1),
    ),
    **_table(
        "neg relu sign sgn floor ceil trunc frac bitwise_not",
        _Pointwise((0,), _PROMOTED, 1),
    ),
    **_table("round", _Pointwise((0,), _PROMOTED, 2)),
    **_table("abs", _Pointwise((0,), ResultType.REAL, 1)),
    **_table(
        "isnan isinf isfinite isneginf isposinf signbit logical_not", _Pointwise((0,), ResultType.BOOL, 1)
    ),
    **_table("silu mish hardswish hardsigmoid selu", _Pointwise((0,), _PROMOTED, 1)),
    **_table("gelu leaky_relu softshrink hardshrink celu", _Pointwise((0,), _PROMOTED, 2)),
    **_table("logit", _Pointwise((0,), _FLOAT, 2)),
    **_table("hardtanh softplus threshold", _Pointwise((0,), _PROMOTED, 3)),
    **_table("elu nan_to_num", _Pointwise((0,), _PROMOTED, 4)),
    **_table("add sub rsub", _Pointwise(_PAIR, _PROMOTED, 3)),
    **_table(
        """
        mul pow maximum minimum fmax fmin remainder fmod hypot bitwise_and bitwise_or bitwise_xor
        bitwise_left_shift bitwise_right_shift floor_divide logaddexp logaddexp2 clamp_min clamp_max
        gcd lcm __and__ __or__ __xor__ __lshift__ __rshift__
        """,
        _Pointwise(_PAIR, _PROMOTED, 2),
    ),
    **_table("div true_divide atan2 xlogy copysign", _Pointwise(_PAIR, _FLOAT, 2)),
    **_table("eq ne lt le gt ge logical_and logical_or logical_xor", _Pointwise(_PAIR, ResultType.BOOL, 2)),
    **_table("lerp", _Pointwise(_TRIPLE, _PROMOTED, 3)),
    **_table("addcmul addcdiv", _Pointwise(_TRIPLE, _PROMOTED, 4)),
    **_table("clamp", _Pointwise(_TRIPLE, _PROMOTED, 3, optional=(1, 2))),
    **_table("where", _Pointwise(_TRIPLE, _PROMOTED, 3, typeless=(0,))),
    **_table("masked_fill", _Pointwise(_TRIPLE, _FIRST, 3)),
    **_table("_prelu_kernel", _Pointwise(_PAIR, _PROMOTED, 2)),
    **_table("tanh_backward sigmoid_backward", _Pointwise(_PAIR, _PROMOTED, 2)),
    **_table(
        "silu_backward hardswish_backward hardsigmoid_backward mish_backward", _Pointwise(_PAIR, _PROMOTED, 2)
    ),
    **_table(
        "threshold_backward gelu_backward logit_backward softshrink_backward", _Pointwise(_PAIR, _PROMOTED, 3)
    ),
    **_table("leaky_relu_backward hardtanh_backward softplus_backward", _Pointwise(_PAIR, _PROMOTED, 4)),
    **_table("elu_backward", _Pointwise((0, 5), _PROMOTED, 6)),
    **_table("native_dropout_backward _masked_scale", _Pointwise(_PAIR, _FIRST, 3)),
    "native_dropout": _dropout,
    "log_sigmoid_forward": _log_sigmoid,
    "glu": _glu,
    "glu_backward": _glu_backward,
}
