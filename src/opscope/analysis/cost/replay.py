"""Replay: a recorded call runs again on tensors without data, which gives its exact results.

Nothing of the user's runs: only operators of torch itself, with modes and functions of the user switched off;
no device is touched and no memory is taken, for tensors of the device "meta" have none. Whatever cannot be
replayed has a reason, never an exception. Imports torch: to be imported only when needed.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from opscope.analysis.cost.arguments import CallArguments, TensorArgument, is_number
from opscope.analysis.cost.effects import CallEffects
from opscope.analysis.cost.replay_equivalents import equivalent
from opscope.analysis.cost.replay_values import Bound, UnfitError, bind, fits, numbers_are_decisive
from opscope.analysis.cost.replayable import obstacle

__all__ = ["Replayed", "replay"]

# Results of operators that give further ones on the host only.
_DEVICE_RESULTS = {"aten::log_sigmoid_forward": 1}
# Composed of other operators in loops whose length is recorded, which may be absurd.
_LOOPS = frozenset(
    f"aten::{name}"
    for name in (
        "lstm",
        "gru",
        "rnn_tanh",
        "rnn_relu",
        "quantized_lstm",
        "quantized_gru",
        "matrix_power",
        "linalg_matrix_power",
        "combinations",
        "istft",
    )
)
# Kernels that serve tensors without data: made for them, or composed of operators that have such.
_SHAPE_KEYS = (
    "Meta",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
    "CompositeImplicitAutograd",
)


@dataclass(frozen=True)
class Replayed:
    """What became of one replay: its effects, or why there are none."""

    effects: CallEffects | None = None
    reason: str | None = None


def replay(calls: Sequence[CallArguments]) -> tuple[Replayed, ...]:
    """The effects of each call, in order."""
    with _undisturbed():
        return tuple(map(_replay_one, calls))


@contextmanager
def _undisturbed() -> Iterator[None]:
    """No gradients, no modes of the user, no warnings."""
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        # First, for turning gradients off is itself a function that modes see.
        stack.enter_context(torch._C.DisableTorchFunction())
        stack.enter_context(_disable_current_modes())
        stack.enter_context(torch.no_grad())
        yield


def _replay_one(call: CallArguments) -> Replayed:
    found = obstacle(call)
    if found is not None:
        return Replayed(reason=found)
    schemas = _schemas(call)
    if not schemas:
        return Replayed(reason=f"{_release()} has no such overload of {call.name}")
    return _agreed([_run(call, schema) for schema in schemas])


def _release() -> str:
    return f"torch {torch.__version__.partition('+')[0]}"


def _schemas(call: CallArguments) -> list[Any]:
    """The overloads a call may be of: the recorded one, else all that take arguments of these kinds.

    The interpreter has further functions in torch's namespace, which do anything but compute on tensors.
    """
    schemas = torch._C._jit_get_schemas_for_operator(call.name)
    if call.overload is not None:
        schemas = [schema for schema in schemas if schema.overload_name == call.overload]
    return [
        schema for schema in schemas if fits(call, schema) and torch._C._dispatch_has_kernel(_label(schema))
    ]


def _label(schema: Any) -> str:
    overload = schema.overload_name
    return f"{schema.name}.{overload}" if overload else str(schema.name)


def _agreed(outcomes: list[Replayed]) -> Replayed:
    """What all overloads that ran agree on."""
    effects = [outcome.effects for outcome in outcomes if outcome.effects is not None]
    if not effects:
        return outcomes[0]
    if any((one.inputs, one.outputs) != (effects[0].inputs, effects[0].outputs) for one in effects[1:]):
        return Replayed(reason="several overloads take these arguments, with different results")
    return Replayed(effects[0])


def _run(call: CallArguments, schema: Any) -> Replayed:
    namespace, _, name = call.name.partition("::")
    try:
        overload = getattr(getattr(getattr(torch.ops, namespace), name), schema.overload_name or "default")
        if _only_views(schema) or torch.Tag.inplace_view in overload.tags:
            return Replayed(CallEffects(call, (), ()))
        bound, result = _result(call, overload, schema)
        return Replayed(_effects(call, schema, bound, result))
    except UnfitError as error:
        return Replayed(reason=str(error))
    except NotImplementedError:
        return Replayed(reason=_no_results(call.name, overload.tags))
    # Shape functions raise whatever they like on arguments that no device would take.
    except Exception as error:  # noqa: BLE001
        return Replayed(reason=f"{_release()} does not take these arguments: {_first_line(error)}")


def _result(call: CallArguments, overload: Any, schema: Any) -> tuple[Bound, Any]:
    bound = bind(call, schema)
    _refuse_long_results(schema, bound)
    try:
        return bound, _called(call.name, overload, schema, bound)
    # How an operator says that it takes no numbers for tensors differs.
    except (RuntimeError, TypeError):
        if not any(map(is_number, call.tensors)):
            raise
        if numbers_are_decisive(call):
            raise UnfitError("a number among its tensors decides the type of its result") from None
    bound = bind(call, schema, passes_numbers=False)
    return bound, _called(call.name, overload, schema, bound)


def _called(name: str, overload: Any, schema: Any, bound: Bound) -> Any:
    general = equivalent(name)
    if general is not None:
        return general(
            {one.name: bound.value(position, schema) for position, one in enumerate(schema.arguments)}
        )
    label = _label(schema)
    has_key = torch._C._dispatch_has_kernel_for_dispatch_key
    if name in _LOOPS or not any(has_key(label, key) for key in _SHAPE_KEYS):
        raise NotImplementedError
    return overload(*bound.positional, **bound.named)


def _no_results(name: str, tags: Sequence[Any]) -> str:
    if torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags:
        return "the size of its results depends on the data"
    return f"{_release()} cannot tell the results of {name} without running it"


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:120] if text else type(error).__name__


def _only_views(schema: Any) -> bool:
    """Whether all it gives back are views of its arguments; running it could make a great many."""
    returns = schema.returns
    return bool(returns) and all(
        str(one.type) == "List[Tensor]" and one.alias_info is not None and not one.alias_info.is_write
        for one in returns
    )


def _refuse_long_results(schema: Any, bound: Bound) -> None:
    """Refuse a list of results whose length recorded numbers decide."""
    if not any(str(one.type) == "List[Tensor]" for one in schema.returns):
        return
    if not any(
        len(tensors) and "List" in str(schema.arguments[at].type) for at, tensors in bound.tensors.items()
    ):
        raise UnfitError("the number of its results is decided by recorded numbers")


def _effects(call: CallArguments, schema: Any, bound: Bound, result: Any) -> CallEffects:
    inputs: list[TensorArgument] = []
    changed: list[TensorArgument] = []
    known: set[int] = set()
    for position, recorded in bound.tensors.items():
        declared = schema.arguments[position]
        value = bound.value(position, schema)
        tensors = value if isinstance(value, list) else [value]
        known.update(map(_storage, _tensors(tensors)))
        is_written = declared.alias_info is not None and declared.alias_info.is_write
        if not (is_written and _is_out(declared)):
            inputs += recorded
        if is_written:
            described = [_described(tensor) for tensor in tensors]
            _refuse_resized(recorded, described)
            changed += described
    given_back = list(_tensors(result))[: _DEVICE_RESULTS.get(call.name)]
    made = [_described(tensor) for tensor in given_back if _storage(tensor) not in known]
    if given_back and not made and not changed:  # nothing but views
        inputs = []
    return CallEffects(call, tuple(inputs), (*changed, *made))


def _refuse_resized(before: Sequence[TensorArgument], after: Sequence[TensorArgument]) -> None:
    """Refuse a result of another size than the tensor given for it, unless that was given to be allocated."""
    for old, new in zip(before, after, strict=True):
        if old.element_count and old.shape != new.shape:
            raise UnfitError("a tensor given for a result is not of its size")


def _is_out(declared: Any) -> bool:
    return bool(getattr(declared, "is_out", declared.kwarg_only))


def _tensors(result: Any) -> Iterator[Any]:
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, (tuple, list)):
        for item in result:
            yield from _tensors(item)


def _storage(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


def _described(tensor: Any) -> TensorArgument:
    return TensorArgument(
        tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), tuple(tensor.stride())
    )
