"""Least bytes of a call: each byte of its inputs read once, each byte of its results written once.

The exceptions are tables by operator: what is overwritten unread, what only lends its sizes, gathers and
scatters that touch part of a tensor. What children of the operator do (the zeros a gradient is added to, the
copy a scatter writes into) is theirs. Python numbers stay on the host and count nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from opscope.operators.arguments import (
    CallArguments,
    TensorArgument,
    TensorListArgument,
    distinct_bytes,
    type_of,
)
from opscope.operators.convolutions import convolution_form, touched_elements
from opscope.operators.effects import CallEffects
from opscope.operators.element_types import ElementKind

__all__ = ["Traffic", "least_traffic"]


@dataclass(frozen=True)
class Traffic:
    """Least bytes of one call; both None, with a reason, where unknown."""

    read_bytes: int | None = None
    written_bytes: int | None = None
    reason: str | None = None


class _UncountableError(Exception):
    """The bytes do not follow from the effects; its text is the reason."""


_Pair: TypeAlias = tuple[int, int]
_Rule: TypeAlias = Callable[[CallEffects], _Pair]


def least_traffic(effects: CallEffects) -> Traffic:
    """Least bytes of one call."""
    operator = effects.call.name.rpartition("::")[2]
    try:
        read_bytes, written_bytes = _RULES.get(operator, _whole)(effects)
    except _UncountableError as error:
        return Traffic(reason=str(error))
    return Traffic(read_bytes, written_bytes)


_BATCH_NORM_RESULTS = 3


def _whole(effects: CallEffects) -> _Pair:
    return _bytes(effects.device_inputs), _bytes(effects.outputs)


def _without(*positions: int) -> _Rule:
    """All but the arguments at some positions is read: they are overwritten, or only their sizes matter."""

    def rule(effects: CallEffects) -> _Pair:
        return _bytes(_inputs_but(effects, positions)), _bytes(effects.outputs)

    return rule


def _scaled_addend(effects: CallEffects) -> _Pair:
    """β·C + A·B: of β = 0 C is not read."""
    skipped = (0,) if effects.call.value(3) == 0 else ()
    return _bytes(_inputs_but(effects, skipped)), _bytes(effects.outputs)


def _nothing(effects: CallEffects) -> _Pair:
    """It allocates, or changes how existing bytes are looked at."""
    del effects
    return 0, 0


def _one_element(effects: CallEffects) -> _Pair:
    """One element goes to the host."""
    return _item_bytes(_first(effects)), 0


def _gathering(effects: CallEffects) -> _Pair:
    """Of the first argument as many elements are read as there are results, at most all of it."""
    table, written = _first(effects), _bytes(effects.outputs)
    return _bytes(_inputs_but(effects, (0,))) + min(written, _bytes((table,))), written


def _indexing(effects: CallEffects) -> _Pair:
    if not isinstance(effects.call.at(1), TensorListArgument):
        raise _UncountableError("its index tensors were not recorded")
    return _gathering(effects)


def _putting(effects: CallEffects) -> _Pair:
    """Writes elements that unrecorded indices choose."""
    raise _UncountableError("its index tensors were not recorded")


def _scattering(source_position: int, *, reads_target: bool) -> _Rule:
    """Elements of the first argument are written, one for each of the source, or of the index without one."""

    def rule(effects: CallEffects) -> _Pair:
        call = effects.call
        index, source = call.tensor(2), call.tensor(source_position)
        moved = source if source is not None and source.shape else index
        if index is None or moved is None:
            raise _UncountableError("its index was not recorded")
        touched = min(moved.element_count * _item_bytes(_first(effects)), _bytes((_first(effects),)))
        given = _bytes(_inputs_but(effects, (0,)))
        return given + (touched if reads_target else 0), touched

    return rule


def _scattering_rows(effects: CallEffects) -> _Pair:
    """embedding_dense_backward: sums of gradients, at most a row for each index, into zeros that exist."""
    gradient = _first(effects)
    return _bytes(effects.device_inputs), min(_bytes((gradient,)), _bytes(effects.outputs))


def _target_elements(effects: CallEffects) -> _Pair:
    """nll_loss_forward: of the probabilities one for each target."""
    data, target = _first(effects), effects.call.tensor(1)
    if target is None:
        raise _UncountableError("its target was not recorded")
    chosen = min(target.element_count * _item_bytes(data), _bytes((data,)))
    return chosen + _bytes(_inputs_but(effects, (0,))), _bytes(effects.outputs)


def _target_gradients(effects: CallEffects) -> _Pair:
    """nll_loss_backward: one gradient for each target, into zeros that are there."""
    target = effects.call.tensor(2)
    if target is None or not effects.outputs:
        raise _UncountableError("its target was not recorded")
    written = min(target.element_count * _item_bytes(effects.outputs[0]), _bytes(effects.outputs))
    return _bytes(_inputs_but(effects, (1,))), written


def _running_statistics(effects: CallEffects) -> _Pair:
    """Batch norm: running statistics are updated in training, and only then, whatever the schema says."""
    call = effects.call
    running = [tensor for tensor in (call.tensor(3), call.tensor(4)) if tensor is not None]
    results = list(effects.outputs)
    if len(results) == _BATCH_NORM_RESULTS + len(running) and not call.name.startswith("aten::cudnn"):
        del results[: len(running)]  # what a replay tells as changed
    written = _bytes(results)
    if call.boolean(5):
        written += _bytes(running)
    return _bytes(effects.device_inputs), written


def _convolution(effects: CallEffects) -> _Pair:
    """Kernels that strides set apart leave elements between them unread."""
    return _bytes(_inputs_but(effects, (0,))) + _touched(effects, 0, 1), _bytes(effects.outputs)


def _convolution_gradients(effects: CallEffects) -> _Pair:
    """The gradient of the weight needs the input, that of the input the weight."""
    mask = effects.call.value(10)
    if not isinstance(mask, list) or len(mask) != 3:
        raise _UncountableError("which gradients are wanted was not recorded")
    read = _bytes(_inputs_but(effects, (1, 2)))
    read += _bytes(_members(effects.call, 2)) if mask[0] else 0
    read += _touched(effects, 1, 2) if mask[1] else 0
    return read, _bytes(effects.outputs)


def _touched(effects: CallEffects, data_position: int, weight_position: int) -> int:
    """Bytes of the data that some weight meets; all of them where the strides are not recorded."""
    data, weight = effects.call.tensor(data_position), effects.call.tensor(weight_position)
    if data is None or weight is None:
        raise _UncountableError("its data was not recorded as a tensor")
    whole = _bytes((data,))
    is_plain = len(data.shape) == len(weight.shape) and len(data.shape) > 2
    form = convolution_form(effects.call, effects.stem or "", len(data.shape) - 2) if is_plain else None
    if form is None:
        return whole
    return min(whole, touched_elements(form, data, weight) * _item_bytes(data))


def _attention(effects: CallEffects) -> _Pair:
    """Integer results are the state of random numbers: kept on the host, or a few bytes."""
    results = [tensor for tensor in effects.outputs if not _is_integer(tensor)]
    return _bytes(effects.device_inputs), _bytes(results)


def _optimizer_step(list_position: int, scale_position: int) -> _Rule:
    """Gradients are written only if they are unscaled, the largest second moments only if there are any."""

    def rule(effects: CallEffects) -> _Pair:
        call = effects.call
        lists = [call.tensor_list(position) for position in range(list_position)]
        if call.tensor(scale_position) is None:
            lists[1] = ()
        if lists[0] is None or lists[1] is None:
            raise _UncountableError("the members of its lists of tensors were not recorded")
        return _bytes(effects.device_inputs), sum(_bytes(tensors or ()) for tensors in lists)

    return rule


def _named(rule: _Rule, names: str) -> dict[str, _Rule]:
    return dict.fromkeys(names.split(), rule)


_RULES: Mapping[str, _Rule] = {
    **_named(
        _without(0),
        """
        copy copy_ fill fill_ zero zero_ uniform_ normal_ random_ bernoulli_ exponential_ geometric_ cauchy_
        log_normal_ eye_ zeros_like ones_like full_like rand_like randn_like randint_like new_zeros new_ones
        new_full _foreach_copy_ _foreach_zero_
        """,
    ),
    **_named(
        _without(1),
        """
        avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward
        max_pool2d_with_indices_backward max_pool3d_with_indices_backward adaptive_max_pool2d_backward
        adaptive_max_pool3d_backward
        """,
    ),
    "native_layer_norm_backward": _without(6),  # the bias has no part in any gradient
    **_named(
        _scaled_addend, "addmm addmm_ baddbmm baddbmm_ addbmm addbmm_ addmv addmv_ addr _addmm_activation"
    ),
    **_named(
        _nothing,
        "empty empty_like empty_strided empty_permuted new_empty new_empty_strided resize_ resize_as_ set_",
    ),
    **_named(_one_element, "_local_scalar_dense item"),
    **_named(
        _gathering,
        """
        gather index_select take upsample_nearest1d upsample_nearest2d upsample_nearest3d
        _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d embedding
        """,
    ),
    **_named(_indexing, "index _unsafe_index"),
    **_named(
        _putting, "index_put index_put_ _index_put_impl_ _unsafe_index_put masked_scatter masked_scatter_"
    ),
    **_named(_scattering(3, reads_target=False), "scatter scatter_ index_copy index_copy_"),
    **_named(
        _scattering(3, reads_target=True),
        """
        scatter_add scatter_add_ scatter_reduce scatter_reduce_ index_add index_add_ index_reduce
        index_reduce_
        """,
    ),
    "embedding_dense_backward": _scattering_rows,
    **_named(_target_elements, "nll_loss_forward nll_loss2d_forward"),
    **_named(_target_gradients, "nll_loss_backward nll_loss2d_backward"),
    **_named(
        _running_statistics,
        "native_batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit",
    ),
    **_named(
        _convolution,
        """
        convolution _convolution cudnn_convolution cudnn_convolution_relu cudnn_convolution_add_relu
        miopen_convolution miopen_depthwise_convolution _slow_conv2d_forward slow_conv3d_forward
        slow_conv_dilated2d slow_conv_dilated3d _conv_depthwise2d conv_depthwise3d
        """,
    ),
    "convolution_backward": _convolution_gradients,
    **_named(
        _attention,
        """
        _flash_attention_forward _efficient_attention_forward _cudnn_attention_forward
        _scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention
        _scaled_dot_product_cudnn_attention
        """,
    ),
    **_named(_optimizer_step(5, 13), "_fused_adam_ _fused_adamw_"),
    "_fused_sgd_": _optimizer_step(3, 10),
    "_fused_adagrad_": _optimizer_step(3, 9),
}


def _first(effects: CallEffects) -> TensorArgument:
    first = effects.call.tensor(0)
    if first is None:
        raise _UncountableError("its first argument was not recorded as a tensor")
    return first


def _inputs_but(effects: CallEffects, positions: Iterable[int]) -> list[TensorArgument]:
    """Inputs without the arguments at some positions."""
    skipped = set(positions)
    left = list(effects.device_inputs)
    for position in skipped:
        for tensor in _members(effects.call, position):
            if tensor in left:
                left.remove(tensor)
    return left


def _members(call: CallArguments, position: int) -> tuple[TensorArgument, ...]:
    tensor = call.tensor(position)
    return (call.tensor_list(position) or ()) if tensor is None else (tensor,)


def _bytes(tensors: Iterable[TensorArgument]) -> int:
    total = 0
    for tensor in tensors:
        size_bytes = distinct_bytes(tensor)
        if size_bytes is None:
            raise _UncountableError(_uncounted(tensor))
        total += size_bytes
    return total


def _item_bytes(tensor: TensorArgument) -> int:
    known = type_of(tensor)
    if known is None:
        raise _UncountableError(_uncounted(tensor))
    return known.size_bytes


def _is_integer(tensor: TensorArgument) -> bool:
    known = type_of(tensor)
    return known is not None and known.kind is ElementKind.INTEGER


def _uncounted(tensor: TensorArgument) -> str:
    if tensor.type_name is None:
        return "the element type of its list of tensors was not recorded"
    if type_of(tensor) is None:
        return f"element type {tensor.type_name} is unknown"
    return "strides of an argument overlap irregularly"
