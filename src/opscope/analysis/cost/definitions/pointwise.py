"""Operations of elementwise functions, per element of the result, by the formula that defines each.

Each entry states its formula. Where a function has branches (elu, softplus), the branch that computes counts.
Lists of tensors (`_foreach_add`) count as their elementwise function does.
"""

from __future__ import annotations

from collections.abc import Mapping

from opscope.analysis.cost.arguments import CallArguments
from opscope.analysis.cost.call_cost import FlopSource
from opscope.analysis.cost.definitions.counting import Definition, Formula, defined, nothing, per_element
from opscope.analysis.cost.effects import CallEffects

__all__ = ["DEFINITIONS", "scale_operations"]

# One arithmetic operation or elementary function of each element.
_SINGLE = """
    exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan atan2 sinh cosh tanh asinh
    acosh atanh erf erfc erfinv lgamma digamma polygamma igamma igammac i0 special_i0e special_i1 special_i1e
    special_erfcx special_ndtri special_zeta pow reciprocal square fmod remainder floor_divide true_divide
    frac
"""
_ARITHMETIC: Mapping[str, Definition] = {
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
_ACTIVATIONS: Mapping[str, Definition] = {
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
_DISTRIBUTIONS: Mapping[str, Definition] = {
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
_SCALED: Mapping[str, Definition] = {
    "add": Definition(_scaled(1, 2), complex_factor=2),
    "sub": Definition(_scaled(1, 2), complex_factor=2),
    "rsub": Definition(_scaled(1, 2), complex_factor=2),
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


_LISTS: Mapping[str, Definition] = {
    **{f"_foreach_{stem}": defined(_each(operations)) for stem, operations in _LIST_OPERATIONS.items()},
    **{f"_foreach_{stem}": defined(_each_scaled(*entry)) for stem, entry in _LIST_FACTORS.items()},
    # Multiplies each gradient by the inverse scale, and looks for what is not finite.
    "_amp_foreach_non_finite_check_and_unscale": defined(_each(1)),
}

DEFINITIONS: Mapping[str, Definition] = {
    **_ARITHMETIC,
    **_ACTIVATIONS,
    **_DISTRIBUTIONS,
    **_SCALED,
    **_LISTS,
    "_amp_update_scale": Definition(None, FlopSource.NONE),
}
