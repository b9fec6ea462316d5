"""Operations of matrix products: a multiplication and an addition for each pair of elements that meet.

The product of m×k and k×n counts 2·m·n·k; what is added to it (a bias, an activation) does not count. Equal
to torch.utils.flop_counter (PyTorch 2.13.0) for the operators it knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from opscope.analysis.cost.call_cost import FlopSource
from opscope.analysis.cost.definitions.counting import Definition, Formula, registered
from opscope.analysis.cost.effects import CallEffects

__all__ = ["DEFINITIONS", "batched_product_flops", "operand_position"]


def batched_product_flops(batch: int, rows: int, inner: int, columns: int) -> int:
    """Operations of `batch` products of rows×inner and inner×columns."""
    return 2 * batch * rows * inner * columns


def operand_position(stem: str) -> int | None:
    """Position of the left operand of a product, whose type decides its peak; None of anything else."""
    return _LEFT_OPERANDS.get(stem)


def _matrix(left: int) -> Formula:
    """Two matrices, or two batches of them, next to each other in the arguments."""

    def formula(effects: CallEffects) -> int | None:
        a, b = effects.call.tensor(left), effects.call.tensor(left + 1)
        if a is None or b is None or len(a.shape) not in (2, 3) or len(a.shape) != len(b.shape):
            return None
        *batch, rows, inner = a.shape
        *other_batch, other_inner, columns = b.shape
        if inner != other_inner or batch != other_batch:
            return None
        return batched_product_flops(prod(batch), rows, inner, columns)

    return formula


def _vector(left: int) -> Formula:
    """A matrix or vector, and a vector: each element of the left one meets one of the right one."""

    def formula(effects: CallEffects) -> int | None:
        a, b = effects.call.tensor(left), effects.call.tensor(left + 1)
        if a is None or b is None or len(b.shape) != 1 or not a.shape or a.shape[-1] != b.shape[0]:
            return None
        return 2 * a.element_count

    return formula


def _linear(effects: CallEffects) -> int | None:
    """x·Wᵀ: the last dimensions of both meet."""
    x, weight = effects.call.tensor(0), effects.call.tensor(1)
    if x is None or weight is None or len(weight.shape) != 2 or x.shape[-1:] != weight.shape[1:]:
        return None
    return 2 * x.element_count * weight.shape[0]


def _outer(effects: CallEffects) -> int | None:
    """addr: M + u·vᵀ: a multiplication and an addition for each element."""
    return 2 * effects.output_elements


_LEFT_OPERANDS = {
    "mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1, "_scaled_mm": 0, "_addmm_activation": 1, "addbmm": 1,
    "mv": 0, "dot": 0, "vdot": 0, "addmv": 1, "linear": 0, "addr": 1, "_int_mm": 0,
}  # fmt: skip
_REGISTERED = ("mm", "bmm", "addmm", "baddbmm", "_scaled_mm")


def _own(formula: Formula) -> Definition:
    return Definition(formula, FlopSource.DEFINITION, needs_floats=False)


DEFINITIONS: Mapping[str, Definition] = {
    **{stem: registered(_matrix(_LEFT_OPERANDS[stem])) for stem in _REGISTERED},
    **{stem: _own(_matrix(_LEFT_OPERANDS[stem])) for stem in ("_addmm_activation", "addbmm", "_int_mm")},
    **{stem: _own(_vector(_LEFT_OPERANDS[stem])) for stem in ("mv", "dot", "vdot", "addmv")},
    "linear": _own(_linear),
    "addr": _own(_outer),
}
