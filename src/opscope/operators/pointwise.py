"""Elementwise functions: results, and operations per element by the formula that defines each.

Each row states its formula. Where a function has branches (elu, softplus), the branch that computes counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opscope.operators.arguments import CallArguments, ScalarArgument, TensorArgument, broadcast, type_of
from opscope.operators.effects import (
    CallEffects,
    ContradictionError,
    FlopDefinition,
    Operator,
    Rule,
    Shape,
    alike,
    counting,
    defined,
    dimension_of,
    like,
    nothing,
    per_element,
    result,
    results,
    shape_text,
)
from opscope.operators.element_types import ElementType
from opscope.operators.promotion import BOOL, promoted_type, real_part, to_float
from opscope.text_enum import TextEnum


class ResultType(TextEnum):
    """What type the result has. A closed set."""

    PROMOTED = "promoted"
    FLOAT = "float"  # promoted, of integers float32
    REAL = "real"  # promoted, of complex numbers their parts' type
    BOOL = "bool"
    FIRST = "first"  # the first operand's


def common_shape(tensors: Sequence[TensorArgument]) -> Shape:
    """The shape that tensors broadcast to."""
    shape = broadcast(tensor.shape for tensor in tensors)
    if shape is None:
        sizes = ", ".join(shape_text(tensor.shape) for tensor in tensors)
        raise ContradictionError(f"sizes {sizes} do not broadcast")
    return shape


def scale_operations(call: CallArguments, name: str) -> int | None:
    """1 for a multiplication by a factor; 0 if it is 1, or left out; None if not recorded."""
    if call.is_omitted(name):
        return 0
    factor = call.value(name)
    return int(factor != 1) if isinstance(factor, (int, float)) else None


def _pointwise(operands: str, result_type: ResultType, *, typeless: str = "", optional: str = "") -> Rule:
    """One function of tensors, or of numbers in their place; typeless ones (masks) only shape it."""

    def rule(call: CallArguments) -> CallEffects | None:
        given = {name: call.at(name) for name in operands.split()}
        found = {
            name: one for name, one in given.items() if isinstance(one, (TensorArgument, ScalarArgument))
        }
        if any(
            name not in optional.split() or not call.is_omitted(name) for name in given.keys() - found.keys()
        ):
            return None
        tensors = [one for one in found.values() if isinstance(one, TensorArgument)]
        typed = [one for name, one in found.items() if name != typeless]
        return (
            result(call, common_shape(tensors), _result_type(call, typed, result_type)) if tensors else None
        )

    return rule


def _result_type(
    call: CallArguments, operands: Sequence[TensorArgument | ScalarArgument], kind: ResultType
) -> ElementType | None:
    if kind is ResultType.BOOL:
        return BOOL
    if kind is ResultType.FIRST:
        return type_of(operands[0]) if isinstance(operands[0], TensorArgument) else None
    element = promoted_type(operands)
    if kind is ResultType.FLOAT:
        is_rounded = call.has("rounding_mode")  # which is not recorded
        return None if is_rounded and element is not None and not element.is_float else to_float(element)
    return real_part(element) if kind is ResultType.REAL else element


def _scaled(operations: int, factor: str, *, complex_factor: int | None = None) -> FlopDefinition:
    """So many operations an element, and the multiplication by a factor unless it is 1."""

    def formula(effects: CallEffects) -> int | None:
        scaling = scale_operations(effects.call, factor)
        return None if scaling is None else (operations + scaling) * effects.output_elements

    return defined(formula, complex_factor=complex_factor)


def _softplus(effects: CallEffects) -> int | None:
    """log(1 + exp(β·x)) / β."""
    scaling = scale_operations(effects.call, "beta")
    return None if scaling is None else (3 + 2 * scaling) * effects.output_elements


_PROMOTED, _FLOAT, _REAL = ResultType.PROMOTED, ResultType.FLOAT, ResultType.REAL
_BOOL, _FIRST = ResultType.BOOL, ResultType.FIRST
# σ(x) = 1 / (1 + exp(−x)); Φ and φ are the normal distribution and density. Comparisons, choices, changes of
# sign and rounding are no arithmetic.
_OF_ONE = {
    **counting(
        {
            **alike(
                1,
                """
                exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh
                acosh atanh erf erfc erfinv lgamma digamma reciprocal special_i0e special_i1 special_i1e i0
                """,
            ),
            "sigmoid": 3,  # exp, add, divide
            "sinc": 3,  # sin(π·x) / (π·x)
            "logit": 3,  # log(x / (1 − x))
        },
        _pointwise("self", _FLOAT),
    ),
    **counting(
        {
            **alike(
                nothing(),
                "neg relu sign sgn floor ceil trunc round bitwise_not hardshrink hardtanh threshold",
            ),
            **alike(nothing(), "nan_to_num"),
            "frac": 1,
            "silu": 3,  # x / (1 + exp(−x))
            "mish": 5,  # x · tanh(log(1 + exp(x)))
            "gelu": 5,  # x · ½ · (1 + erf(x / √2))
            "elu": 3,  # k · (exp(x) − 1)
            "celu": 4,  # k · (exp(x / k) − 1)
            "selu": 4,  # λ · k · (exp(x) − 1)
            "leaky_relu": 1,  # slope · x
            "softshrink": 1,  # x ∓ λ
            "softplus": defined(_softplus),
            "hardswish": 3,  # x · clamp(x + 3, 0, 6) / 6
            "hardsigmoid": 2,  # clamp(x + 3, 0, 6) / 6
        },
        _pointwise("self", _PROMOTED),
    ),
    "abs": Operator(_pointwise("self", _REAL), nothing()),
    **counting(
        alike(nothing(), "isnan isinf isfinite isneginf isposinf signbit logical_not"),
        _pointwise("self", _BOOL),
    ),
}
_OF_TWO = {
    # x + k·y: of complex numbers an addition is 2.
    **counting(
        alike(_scaled(1, "alpha", complex_factor=2), "add sub rsub"), _pointwise("self other", _PROMOTED)
    ),
    **counting(
        {
            # Complex numbers: (a + bi)·(c + di) is 4 multiplications and 2 additions.
            "mul": per_element(1, complex_factor=6),
            **alike(1, "remainder fmod floor_divide"),
            "hypot": 4,  # √(x² + y²)
            **alike(4, "logaddexp logaddexp2"),  # m + log(1 + exp(−|a − b|))
            **alike(
                nothing(),
                """
                maximum minimum fmax fmin bitwise_and bitwise_or bitwise_xor bitwise_left_shift
                bitwise_right_shift gcd lcm __and__ __or__ __xor__ __lshift__ __rshift__
                """,
            ),
        },
        _pointwise("self other", _PROMOTED),
    ),
    "pow": Operator(_pointwise("self exponent", _PROMOTED), per_element(1)),
    "clamp_min": Operator(_pointwise("self min", _PROMOTED), nothing()),
    "clamp_max": Operator(_pointwise("self max", _PROMOTED), nothing()),
    "_prelu_kernel": Operator(_pointwise("self weight", _PROMOTED), per_element(1)),
    **counting(
        {**alike(1, "div true_divide atan2"), "xlogy": 2, "copysign": nothing()},  # x · log(y)
        _pointwise("self other", _FLOAT),
    ),
    **counting(
        alike(nothing(), "eq ne lt le gt ge logical_and logical_or logical_xor"),
        _pointwise("self other", _BOOL),
    ),
    "masked_fill": Operator(_pointwise("self mask value", _FIRST), nothing()),
}
_OF_THREE = {
    "lerp": Operator(_pointwise("self end weight", _PROMOTED), per_element(3)),  # a + w·(b − a)
    # t + v·a·b; t + v·a/b.
    **counting(alike(_scaled(2, "value"), "addcmul addcdiv"), _pointwise("self tensor1 tensor2", _PROMOTED)),
    "clamp": Operator(_pointwise("self min max", _PROMOTED, optional="min max"), nothing()),
    "where": Operator(_pointwise("condition self other", _PROMOTED, typeless="condition"), nothing()),
}
_GRADIENTS = {
    **counting(
        # g · (1 − y²); g · (1 − y) · y.
        alike(3, "tanh_backward sigmoid_backward"),
        _pointwise("grad_output output", _PROMOTED),
    ),
    **counting(
        {
            "logit_backward": 3,  # g / (x · (1 − x))
            "silu_backward": 8,  # g · σ · (1 + x · (1 − σ)), σ being 3
            "mish_backward": 13,  # g · (t + x · σ · (1 − t²)), t = tanh(log(1 + exp(x))) 4, σ 3, rest 6
            # g · (Φ + x·φ): Φ = ½·(1 + erf(x / √2)) 4, φ = exp(−½·x²)·c 4, rest 3
            "gelu_backward": 11,
            "leaky_relu_backward": 1,
            "hardswish_backward": 3,  # g · (x / 3 + ½)
            "hardsigmoid_backward": 1,  # g / 6
            "softplus_backward": 5,  # g · σ(β·x)
            **alike(nothing(), "threshold_backward softshrink_backward hardtanh_backward"),
        },
        _pointwise("grad_output self", _PROMOTED),
    ),
    "elu_backward": Operator(
        _pointwise("grad_output self_or_result", _PROMOTED), per_element(3)
    ),  # g · k · exp(x)
    "native_dropout_backward": Operator(_pointwise("grad_output mask", _FIRST), per_element(1)),
    "_masked_scale": Operator(_pointwise("self mask", _FIRST), per_element(1)),
}


def _dropout(call: CallArguments) -> CallEffects | None:
    """native_dropout: the result, and which elements were kept."""
    data = call.tensor("input")
    if data is None or not (call.boolean("train") or call.is_omitted("train")):
        return None
    return results(call, (data.shape, type_of(data)), (data.shape, BOOL))


def _log_sigmoid(call: CallArguments) -> CallEffects | None:
    """The result, and a buffer that stays empty on a GPU."""
    data = call.tensor("self")
    return None if data is None else results(call, (data.shape, type_of(data)), ((0,), type_of(data)))


def _glu(call: CallArguments) -> CallEffects | None:
    """Half of the dimension."""
    data, dimension = call.tensor("self"), call.integer("dim")
    if data is None or dimension is None or not data.shape:
        return None
    along, shape = dimension_of(data.shape, dimension), list(data.shape)
    if shape[along] % 2:
        raise ContradictionError(f"half of {shape[along]}")
    shape[along] //= 2
    return result(call, tuple(shape), type_of(data))


OPERATORS: Mapping[str, Operator] = {
    **_OF_ONE,
    **_OF_TWO,
    **_OF_THREE,
    **_GRADIENTS,
    "native_dropout": Operator(_dropout, per_element(1)),  # kept elements · 1/(1 − p)
    # min(0, x) − log(1 + exp(−|x|)): exp, add, log, subtract.
    "log_sigmoid_forward": Operator(_log_sigmoid, per_element(4)),
    "glu": Operator(_glu, per_element(4)),  # a · σ(b)
    # With s = σ(b): g·s, and g·a·s·(1 − s): over the two halves of the result 3 + 1 + 4 for two elements.
    "glu_backward": Operator(like("self"), per_element(4)),
    # Named by generated kernels.
    **counting(
        {
            **alike(
                1,
                """
                polygamma igamma igammac special_erfcx special_ndtri special_zeta square
                rrelu_with_noise prelu
                """,
            ),
            "ldexp": 2,  # x · 2ʸ
            "special_xlog1py": 2,  # x · log1p(y)
            "log_sigmoid_backward": 4,  # g · σ(−x)
            "_prelu_kernel_backward": 2,  # slope · g; and x · g for the slope
            **alike(
                nothing(),
                """
                relu6 clip hardshrink_backward absolute negative positive heaviside fix frexp
                isin is_nonzero equal
                """,
            ),
        }
    ),
}
