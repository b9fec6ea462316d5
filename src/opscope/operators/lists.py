"""Functions of lists of tensors, which count as the function of one tensor does, and fused optimizer steps.

Operations of a step are those of the update rules torch states, for each element of the parameters. Factors
that are the same for all elements (step sizes, bias corrections) are computed once and do not count.
"""

from __future__ import annotations

from collections.abc import Mapping

from opscope.operators.arguments import CallArguments, TensorArgument
from opscope.operators.effects import (
    CallEffects,
    FlopDefinition,
    Operator,
    defined,
    effects_of,
    nothing,
)
from opscope.operators.pointwise import scale_operations
from opscope.operators.reductions import norm_operations, norm_order
from opscope.operators.traffic import UncountableError, bytes_of, without


def _each(operations: int, factor: str | None = None, factors: str = "") -> FlopDefinition:
    """So many operations an element, and the multiplication by a factor unless it is 1.

    Of a list or tensor of factors the values are not recorded: then none is 1.
    """

    def formula(effects: CallEffects) -> int | None:
        call, elements = effects.call, _elements(effects.call)
        scaling: int | None = 0
        if factor is not None:
            scaling = 1 if call.has(factors) else scale_operations(call, factor)
        return None if elements is None or scaling is None else (operations + scaling) * elements

    return defined(formula)


def _adam(*, is_decoupled: bool) -> FlopDefinition:
    """Moments m = β₁·m + (1 − β₁)·g 3, v = β₂·v + (1 − β₂)·g² 4; √v/c + ε 3; p − η·m/that 3.

    Weight decay: of AdamW p·(1 − η·λ) 1, of Adam g + λ·p 2. Unscaling a gradient 1.
    """

    def formula(effects: CallEffects) -> int | None:
        elements, decay = _elements(effects.call), effects.call.number("weight_decay")
        if elements is None or decay is None:
            return None
        decaying = (1 if is_decoupled else 2) if decay else 0
        return (13 + decaying + _unscaling(effects.call)) * elements

    return defined(formula)


def _sgd(effects: CallEffects) -> int | None:
    """Buffer b = μ·b + (1 − τ)·g 3, first b = g; Nesterov g + μ·b 2; p − η·d 2; decay g + λ·p 2."""
    call = effects.call
    elements, decay, momentum = _elements(call), call.number("weight_decay"), call.number("momentum")
    is_nesterov, is_first = call.boolean("nesterov"), call.boolean("is_first_step")
    if elements is None or decay is None or momentum is None or is_nesterov is None or is_first is None:
        return None
    buffering = (0 if is_first else 3) + (2 if is_nesterov else 0) if momentum else 0
    return (2 + (2 if decay else 0) + buffering + _unscaling(call)) * elements


def _adagrad(effects: CallEffects) -> int | None:
    """Sums s + g² 2; p − η·g/(√s + ε) 5; weight decay g + λ·p 2."""
    elements, decay = _elements(effects.call), effects.call.number("weight_decay")
    if elements is None or decay is None:
        return None
    return (7 + (2 if decay else 0) + _unscaling(effects.call)) * elements


def _elements(call: CallArguments) -> int | None:
    members = call.tensor_list("self")
    return None if members is None else sum(tensor.element_count for tensor in members)


def _unscaling(call: CallArguments) -> int:
    return int(call.tensor("grad_scale") is not None)


def _mapped(call: CallArguments) -> CallEffects | None:
    """Like the first list; in place the list itself."""
    members = call.tensor_list("self")
    if members is None or call.has_unrecorded_list:
        return None
    if call.name.endswith("_"):
        return effects_of(call, members)
    return effects_of(call, [TensorArgument(member.shape, member.type_name) for member in members])


def _norms(call: CallArguments) -> CallEffects | None:
    """A number for each tensor."""
    members = call.tensor_list("self")
    if members is None or not call.is_omitted("dtype"):
        return None
    return effects_of(call, [TensorArgument((), member.type_name) for member in members])


def _unscaled(call: CallArguments) -> CallEffects | None:
    members, found = call.tensor_list("self"), call.tensor("found_inf")
    return None if members is None or found is None else effects_of(call, (*members, found))


def _norm_flops(effects: CallEffects) -> int | None:
    """Of each tensor, which has one result."""
    tensors, order = effects.call.tensor_list("self"), norm_order(effects.call)
    if tensors is None or order is None:
        return None
    filled = [tensor.element_count for tensor in tensors if tensor.element_count]
    return norm_operations(order, sum(filled), len(filled))


def _stepped(call: CallArguments) -> CallEffects | None:
    """What a fused step may write.

    Empty lists are recorded like those of more than 30 tensors, without members. Lists of one call have as
    many members as there are parameters, or none.
    """
    parameters = call.tensor_list("self")
    lists = [call.tensor_list(name) for name in _written_lists(call)]
    if parameters is None or any(len(one or parameters) != len(parameters) for one in lists):
        return None
    return effects_of(call, [tensor for one in lists for tensor in one or ()])


def _step_traffic(effects: CallEffects) -> tuple[int, int]:
    """Gradients are written only if they are unscaled, the largest second moments only if there are any."""
    call, is_scaled = effects.call, effects.call.tensor("grad_scale") is not None
    if is_scaled and call.tensor_list("grads") is None:
        raise UncountableError("the members of its lists of tensors were not recorded")
    members = (call.members(name) for name in _written_lists(call) if is_scaled or name != "grads")
    return bytes_of(effects.device_inputs), bytes_of(tensor for one in members for tensor in one)


def _written_lists(call: CallArguments) -> list[str]:
    """Names of the lists that a step writes; its numbers of steps were counted before."""
    arguments = () if call.schema is None else call.schema.arguments
    return [one.name for one in arguments if one.is_written and one.name != "state_steps"]


_ARITHMETIC = """
    acos asin atan cos cosh div erf erfc exp expm1 frac lgamma log log10 log1p log2 mul pow reciprocal rsqrt
    sin sinh sqrt tan tanh
"""
_CHOICES = """
    abs ceil clamp_max clamp_min floor maximum minimum neg round sign trunc
"""
_OPERATIONS: Mapping[str, FlopDefinition] = {
    **dict.fromkeys(_ARITHMETIC.split(), _each(1)),
    **dict.fromkeys(_CHOICES.split(), nothing()),
    "sigmoid": _each(3),
    "lerp": _each(3),
    "add": _each(1, "alpha"),
    "sub": _each(1, "alpha"),
    "addcmul": _each(2, "value", "scalars"),
    "addcdiv": _each(2, "value", "scalars"),
}
_STEPS = {
    "adam": _adam(is_decoupled=False),
    "adamw": _adam(is_decoupled=True),
    "sgd": defined(_sgd),
    "adagrad": defined(_adagrad),
}
OPERATORS: Mapping[str, Operator] = {
    **{f"_foreach_{name}": Operator(_mapped, flops) for name, flops in _OPERATIONS.items()},
    **{f"_foreach_{name}": Operator(_mapped, nothing(), without("self")) for name in ("copy", "zero")},
    "_foreach_norm": Operator(_norms, defined(_norm_flops)),
    # Multiplies each gradient by the inverse scale, and looks for what is not finite.
    "_amp_foreach_non_finite_check_and_unscale": Operator(_unscaled, _each(1)),
    "_amp_update_scale": Operator(None, nothing()),
    **{f"_fused_{name}": Operator(_stepped, flops, _step_traffic) for name, flops in _STEPS.items()},
}
