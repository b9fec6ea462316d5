"""Operations of fused optimizer steps for each element of the parameters, by the update rules torch states.

Factors that are the same for all elements (step sizes, bias corrections) are computed once and do not count.
"""

from __future__ import annotations

from collections.abc import Mapping

from opscope.analysis.cost.arguments import CallArguments
from opscope.analysis.cost.definitions.counting import Definition, Formula, defined
from opscope.analysis.cost.effects import CallEffects

__all__ = ["DEFINITIONS"]


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
DEFINITIONS: Mapping[str, Definition] = {
    "_fused_adam": defined(_adam(is_decoupled=False)),
    "_fused_adamw": defined(_adam(is_decoupled=True)),
    "_fused_sgd": defined(_sgd),
    "_fused_adagrad": defined(_adagrad),
}
