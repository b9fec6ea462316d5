"""Results of functions on lists of tensors, and of fused optimizer steps.

Members have no recorded element type: a kernel of the call may name it (`arguments.with_list_type`). Lists of
more than 30 tensors are recorded without members; then nothing is said here.
"""

from __future__ import annotations

from collections.abc import Mapping

from opscope.analysis.cost.arguments import CallArguments, TensorArgument
from opscope.analysis.cost.effects import CallEffects
from opscope.analysis.cost.rules.results import Rule, effects_of

__all__ = ["RULES"]


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
