"""Functions of lists of tensors, which count as the function of one tensor does, and fused optimizer steps.

Operations of a step are those of the update rules torch states, with weight decay (of SGD with momentum too),
for each element of the parameters. Factors that are the same for all elements are computed once.
"""

from __future__ import annotations

from collections.abc import Mapping

from opscope.operators.arguments import CallArguments, TensorArgument
from opscope.operators.effects import CallEffects, Operator, UnrecordedError, effects_of, known
from opscope.operators.traffic import bytes_of, without


def _mapped(call: CallArguments) -> CallEffects:
    """Like the first list; in place the list itself."""
    members = known(call.tensor_list("self"))
    if call.has_unrecorded_list:
        raise UnrecordedError
    if call.name.endswith("_"):
        return effects_of(call, members)
    return effects_of(call, [TensorArgument(member.shape, member.type_name) for member in members])


def _norms(call: CallArguments) -> CallEffects:
    """A number for each tensor."""
    members = known(call.tensor_list("self"))
    if not call.is_omitted("dtype"):
        raise UnrecordedError
    return effects_of(call, [TensorArgument((), member.type_name) for member in members])


def _unscaled(call: CallArguments) -> CallEffects:
    return effects_of(call, (*known(call.tensor_list("self")), known(call.tensor("found_inf"))))


def _stepped(call: CallArguments) -> CallEffects:
    """What a fused step may write.

    Empty lists are recorded like those of more than 30 tensors, without members. Lists of one call have as
    many members as there are parameters, or none.
    """
    parameters = known(call.tensor_list("self"))
    lists = [call.tensor_list(name) for name in _written_lists(call)]
    if any(len(one or parameters) != len(parameters) for one in lists):
        raise UnrecordedError
    return effects_of(call, [tensor for one in lists for tensor in one or ()])


def _step_traffic(effects: CallEffects) -> tuple[int, int]:
    """Gradients are written only if they are unscaled, the largest second moments only if there are any."""
    call, is_scaled = effects.call, effects.call.tensor("grad_scale") is not None
    if is_scaled and call.tensor_list("grads") is None:
        raise UnrecordedError
    members = (call.members(name) for name in _written_lists(call) if is_scaled or name != "grads")
    return bytes_of(effects.device_inputs), bytes_of(tensor for one in members for tensor in one)


def _written_lists(call: CallArguments) -> list[str]:
    """Names of the lists that a step writes; its numbers of steps were counted before."""
    arguments = () if call.schema is None else call.schema.arguments
    return [one.name for one in arguments if one.is_written and one.name != "state_steps"]


_FOREACH = {
    0: "abs ceil clamp_max clamp_min floor maximum minimum neg round sign trunc",
    1: """
        acos add asin atan cos cosh div erf erfc exp expm1 frac lgamma log log10 log1p log2 mul pow reciprocal
        rsqrt sin sinh sqrt sub tan tanh
    """,
    3: "addcdiv addcmul lerp sigmoid",
}
# Moments, their roots, the step, weight decay.
_STEPS = {"adam": 15, "adamw": 14, "sgd": 7, "adagrad": 9}
OPERATORS: Mapping[str, Operator] = {
    **{
        f"_foreach_{name}": Operator(_mapped, count)
        for count, names in _FOREACH.items()
        for name in names.split()
    },
    **{f"_foreach_{name}": Operator(_mapped, 0, without("self")) for name in ("copy", "zero")},
    "_foreach_norm": Operator(_norms, 2),
    # Multiplies each gradient by the inverse scale, and looks for what is not finite.
    "_amp_foreach_non_finite_check_and_unscale": Operator(_unscaled, 1),
    "_amp_update_scale": Operator(None, 0),
    **{f"_fused_{name}": Operator(_stepped, count, _step_traffic) for name, count in _STEPS.items()},
}
