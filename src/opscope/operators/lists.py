"""Operations of fused optimizer steps for each element of the parameters, by the update rules torch states.

Factors that are the same for all elements (step sizes, bias corrections) are computed once and do not count.
"""

from __future__ import annotations

from collections.abc import Mapping

from opscope.operators.arguments import CallArguments, TensorArgument
from opscope.operators.effects import CallEffects, FlopDefinition, Formula, Rule, defined, effects_of

__all__ = ["DEFINITIONS", "RULES"]


def _adam(*, is_decoupled: bool) -> Formula:
    """Moments m = β₁·m + (1 − β₁)·g 3, v = β₂·v + (1 − β₂)·g² 4; √v/c + ε 3; p − η·m/that 3.

    Weight decay: of AdamW p·(1 − η·λ) 1, of Adam g + λ·p 2. Unscaling a gradient 1.
    """

    def formula(effects: CallEffects) -> int | None:
        call = effects.call
        elements, decay = _elements(call), call.value(9)
        if elements is None or not isinstance(decay, (int, float)):
            return None
        decaying = (1 if is_decoupled else 2) if decay else 0
        return (13 + decaying + _unscaling(call, 13)) * elements

    return formula


def _sgd(effects: CallEffects) -> int | None:
    """Buffer b = μ·b + (1 − τ)·g 3, first b = g; Nesterov g + μ·b 2; p − η·d 2; decay g + λ·p 2."""
    call = effects.call
    elements, decay, momentum = _elements(call), call.value(3), call.value(4)
    is_nesterov, is_first = call.boolean(7), call.boolean(9)
    if elements is None or not _are_numbers(decay, momentum) or is_nesterov is None or is_first is None:
        return None
    buffering = (0 if is_first else 3) + (2 if is_nesterov else 0) if momentum else 0
    operations = 2 + (2 if decay else 0) + buffering
    return (operations + _unscaling(call, 10)) * elements


def _adagrad(effects: CallEffects) -> int | None:
    """Sums s + g² 2; p − η·g/(√s + ε) 5; weight decay g + λ·p 2."""
    call = effects.call
    elements, decay = _elements(call), call.value(6)
    if elements is None or not _are_numbers(decay):
        return None
    return (7 + (2 if decay else 0) + _unscaling(call, 9)) * elements


def _elements(call: CallArguments) -> int | None:
    parameters = call.tensor_list(0)
    return None if parameters is None else sum(tensor.element_count for tensor in parameters)


def _unscaling(call: CallArguments, position: int) -> int:
    return int(call.tensor(position) is not None)


def _are_numbers(*values: object) -> bool:
    return all(isinstance(value, (int, float)) for value in values)


# Source of positions: PyTorch 2.11.0, native_functions.yaml.
DEFINITIONS: Mapping[str, FlopDefinition] = {
    "_fused_adam": defined(_adam(is_decoupled=False)),
    "_fused_adamw": defined(_adam(is_decoupled=True)),
    "_fused_sgd": defined(_sgd),
    "_fused_adagrad": defined(_adagrad),
}


def _list_function(call: CallArguments) -> CallEffects | None:
    """_foreach_add(self, …): like the first list; in place the list itself."""
    members = call.tensor_list(0)
    if members is None or call.has_unrecorded_list:
        return None
    if call.name.endswith("_"):
        return effects_of(call, members)
    return effects_of(call, [TensorArgument(member.shape, member.type_name) for member in members])


def _list_norm(call: CallArguments) -> CallEffects | None:
    """_foreach_norm(self, ord, dtype): a number for each tensor."""
    members = call.tensor_list(0)
    if members is None or (len(call) > 2 and not (call.is_absent(2) and call.values_recorded)):
        return None
    return effects_of(call, [TensorArgument((), member.type_name) for member in members])


def _unscaled(call: CallArguments) -> CallEffects | None:
    """_amp_foreach_non_finite_check_and_unscale_(self, found_inf, inv_scale)."""
    members, found = call.tensor_list(0), call.tensor(1)
    return None if members is None or found is None else effects_of(call, (*members, found))


def _step(lists: int) -> Rule:
    """_fused_adam_(self, grads, exp_avgs, …): what it may write.

    Empty lists are recorded like those of more than 30 tensors, without members. Lists of one call have as
    many members as there are parameters, or none.
    """

    def rule(call: CallArguments) -> CallEffects | None:
        written: list[TensorArgument] = []
        parameters = call.tensor_list(0)
        if parameters is None or any(
            len(call.tensor_list(position) or parameters) != len(parameters) for position in range(lists)
        ):
            return None
        for position in range(lists):
            written += call.tensor_list(position) or ()
        return effects_of(call, written)

    return rule


_FUNCTIONS = """
    abs acos add addcdiv addcmul asin atan ceil clamp_max clamp_min cos cosh div erf erfc exp expm1 floor frac
    lerp lgamma log log10 log1p log2 maximum minimum mul neg pow reciprocal round rsqrt sigmoid sign sin sinh
    sqrt sub tan tanh trunc
"""
RULES: Mapping[str, Rule] = {
    **{f"_foreach_{name}{mark}": _list_function for name in _FUNCTIONS.split() for mark in ("", "_")},
    "_foreach_copy_": _list_function,
    "_foreach_zero_": _list_function,
    "_foreach_norm": _list_norm,
    "_amp_foreach_non_finite_check_and_unscale_": _unscaled,
    "_fused_adam_": _step(5),
    "_fused_adamw_": _step(5),
    "_fused_sgd_": _step(3),
    "_fused_adagrad_": _step(3),
}
