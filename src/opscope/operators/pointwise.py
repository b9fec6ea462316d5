"""Elementwise functions: their results; which they are, and their operations, `operators.toml` says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opscope.data import packaged_toml
from opscope.operators.arguments import (
    CallArguments,
    ElementType,
    ScalarArgument,
    TensorArgument,
    broadcast,
    type_of,
)
from opscope.operators.effects import (
    BOOL,
    CallEffects,
    ContradictionError,
    Operator,
    Rule,
    Shape,
    agree,
    bytes_of,
    dimension_of,
    effects_of,
    known,
    like,
    promoted_type,
    real_part,
    require,
    results,
    rows,
    to_float,
    without,
)


def common_shape(tensors: Sequence[TensorArgument]) -> Shape:
    shape = broadcast(tensor.shape for tensor in tensors)
    if shape is None:
        raise ContradictionError
    return shape


def _pointwise(row: Mapping[str, Any]) -> Rule:
    """One function of tensors, or of numbers in their place; typeless ones (masks) only shape it."""
    operands, optional = row["operands"].split(), row.get("optional", "").split()

    def rule(call: CallArguments) -> CallEffects:
        given = {name: call.at(name) for name in operands}
        found = {
            name: one for name, one in given.items() if isinstance(one, (TensorArgument, ScalarArgument))
        }
        omitted = {name for name in optional if call.is_omitted(name)}
        tensors = [one for one in found.values() if isinstance(one, TensorArgument)]
        require(tensors and not given.keys() - found.keys() - omitted)
        typed = [one for name, one in found.items() if name != row.get("typeless")]
        return results(call, (common_shape(tensors), _result_type(call, typed, row["result"])))

    return rule


def _result_type(
    call: CallArguments, operands: Sequence[TensorArgument | ScalarArgument], kind: str
) -> ElementType | None:
    if kind == "bool":
        return BOOL
    if kind == "first":
        return type_of(operands[0]) if isinstance(operands[0], TensorArgument) else None
    element = promoted_type(operands)
    if kind == "float":
        is_rounded = call.has("rounding_mode")  # which is not recorded
        return None if is_rounded and element is not None and not element.is_float else to_float(element)
    return real_part(element) if kind == "real" else element


def _dropout(call: CallArguments) -> CallEffects:
    """native_dropout: the result, and which elements were kept."""
    data = known(call.tensor("input"))
    require(call.boolean("train") or call.is_omitted("train"))
    return results(call, (data.shape, type_of(data)), (data.shape, BOOL))


def _glu(call: CallArguments) -> CallEffects:
    """Half of the dimension."""
    data = known(call.tensor("self"))
    along, shape = dimension_of(data.shape, known(call.integer("dim"))), list(data.shape or (1,))
    agree(shape[along] % 2 == 0)
    shape[along] //= 2
    return results(call, (tuple(shape), type_of(data)))


ELEMENTWISE: Mapping[str, Operator] = {
    **{
        name: operator
        for row in packaged_toml(__package__, "operators.toml")["function"]
        for name, operator in rows(_pointwise(row), row["operations"]).items()
    },
    "native_dropout": Operator(_dropout, 1),
    # Besides the result a buffer that stays empty on a GPU.
    "log_sigmoid_forward": Operator(like("self", beside=lambda data: ((0,), type_of(data))), 4),
    "glu": Operator(_glu, 2),
    "glu_backward": Operator(like("self"), 4),
}


# Functions of lists of tensors, which count as the function of one tensor does, and fused optimizer steps.
#
# Operations of a step are those of the update rules torch states, with weight decay (of SGD with momentum
# too), for each element of the parameters. Factors that are the same for all elements are computed once.


def _mapped(call: CallArguments) -> CallEffects:
    """Like the first list; in place the list itself."""
    members = known(call.tensor_list("self"))
    require(not call.has_unrecorded_list)
    if call.name.endswith("_"):
        return effects_of(call, members)
    return effects_of(call, [TensorArgument(member.shape, member.type_name) for member in members])


def _norms(call: CallArguments) -> CallEffects:
    members = known(call.tensor_list("self"))
    require(call.is_omitted("dtype"))
    return effects_of(call, [TensorArgument((), member.type_name) for member in members])


def _stepped(call: CallArguments) -> CallEffects:
    """What a fused step may write.

    Empty lists are recorded like those of more than 30 tensors, without members. Lists of one call have as
    many members as there are parameters, or none.
    """
    parameters = known(call.tensor_list("self"))
    lists = [call.tensor_list(name) for name in _written_lists(call)]
    require(all(len(one or parameters) == len(parameters) for one in lists))
    return effects_of(call, [tensor for one in lists for tensor in one or ()])


def _step_traffic(effects: CallEffects) -> tuple[int, int]:
    """Gradients are written only if they are unscaled, the largest second moments only if there are any."""
    call, is_scaled = effects.call, effects.call.tensor("grad_scale") is not None
    require(not is_scaled or call.tensor_list("grads") is not None)
    members = (call.members(name) for name in _written_lists(call) if is_scaled or name != "grads")
    return bytes_of(effects.device_inputs), bytes_of(tensor for one in members for tensor in one)


def _written_lists(call: CallArguments) -> list[str]:
    """Names of the lists that a step writes; its numbers of steps were counted before."""
    arguments = () if call.schema is None else call.schema.arguments
    return [one.name for one in arguments if one.is_written and one.name != "state_steps"]


LISTS: Mapping[str, Operator] = {
    **{
        f"_foreach_{name}": row
        for name, row in rows(_mapped, packaged_toml(__package__, "operators.toml")["foreach"]).items()
    },
    **{f"_foreach_{name}": Operator(_mapped, 0, without("self")) for name in ("copy", "zero")},
    "_foreach_norm": Operator(_norms, 2),
    # Multiplies each gradient by the inverse scale, and looks for what is not finite.
    "_amp_foreach_non_finite_check_and_unscale": Operator(
        lambda call: effects_of(call, (*known(call.tensor_list("self")), known(call.tensor("found_inf")))), 1
    ),
    # Moments, their roots, the step, weight decay.
    **rows(
        _stepped, {15: "_fused_adam", 14: "_fused_adamw", 7: "_fused_sgd", 9: "_fused_adagrad"}, _step_traffic
    ),
}


OPERATORS: Mapping[str, Operator] = {**ELEMENTWISE, **LISTS}
