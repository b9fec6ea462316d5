"""How long a matrix product of given sizes would take in another type: whole rounds of tiles, or its bytes.

The grid of a product is its result cut into tiles; multiprocessors take tiles in rounds, and a round in which
few have one lasts as long as a full one. So small products stay far below the device's rate in any type, and
the ratio of two peaks promises too much. Sizes come from the recorded shapes of the call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from opscope.advice.rates import Rates
from opscope.analysis.cost.arguments import parse_arguments
from opscope.analysis.efficiency import CallEfficiency
from opscope.hardware.devices import DataType

__all__ = ["ITEM_BYTES", "Product", "padded", "product_ns", "product_of", "recorded_product"]

# Positions of the two operands among an operator's arguments.
_OPERANDS = {
    "aten::mm": (0, 1),
    "aten::bmm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::addmm_": (1, 2),
    "aten::_addmm_activation": (1, 2),
    "aten::baddbmm": (1, 2),
    "aten::baddbmm_": (1, 2),
    "aten::addbmm": (1, 2),
}
ITEM_BYTES = {DataType.FP32: 4, DataType.TF32: 4, DataType.FP16: 2, DataType.BF16: 2}
# Tiles that libraries choose from, with the share of a multiprocessor's rate that each reaches: a small one
# reads its operands more often. On an H200 tiles of bf16 products down to 96×64 were seen at the whole rate.
_TILES = (
    (256, 128, 1.0),
    (192, 128, 1.0),
    (128, 128, 1.0),
    (128, 64, 1.0),
    (64, 128, 1.0),
    (96, 64, 1.0),
    (64, 64, 0.75),
)


@dataclass(frozen=True)
class Product:
    """Sizes of `batch` products of an m×k with a k×n matrix."""

    batch: int
    m: int
    n: int
    k: int

    @property
    def flop_count(self) -> int:
        """A multiplication and an addition are 2."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def operand_elements(self) -> int:
        """Elements of both operands."""
        return self.batch * self.k * (self.m + self.n)

    @property
    def result_elements(self) -> int:
        """Elements of the result."""
        return self.batch * self.m * self.n

    def bytes(self, item_bytes: int) -> int:
        """Operands and result, each once."""
        return item_bytes * (self.operand_elements + self.result_elements)


def product_of(call: CallEfficiency) -> Product | None:
    """The sizes of a call; None for other operators, and where shapes are missing or contradictory."""
    return recorded_product(call.operator, call.shapes, call.types)


def recorded_product(operator: str, shapes: str | None, types: str | None) -> Product | None:
    """The sizes of a recorded call, its shapes and types as JSON text."""
    positions = _OPERANDS.get(operator)
    if positions is None:
        return None
    recorded = parse_arguments(operator, shapes=shapes, types=types)
    left, right = (recorded.tensor(position) for position in positions)
    if left is None or right is None or len(left.shape) != len(right.shape):
        return None
    if len(left.shape) not in (2, 3) or left.shape[-1] != right.shape[-2]:
        return None
    batch = left.shape[0] if len(left.shape) == 3 else 1
    product = Product(batch, left.shape[-2], right.shape[-1], left.shape[-1])
    return product if product.flop_count > 0 else None


def product_ns(product: Product, data_type: DataType, rates: Rates) -> float | None:
    """Time of a product in a type; None where the device's rate or its multiprocessors are unknown.

    The best of the tiles: rounds of one tile on each multiprocessor at its share of the device's rate, and
    what filling and emptying the pipeline takes. Not less than its bytes need.
    """
    flop_per_s = rates.flop_per_s(data_type)
    if flop_per_s is None or rates.sm_count is None:
        return None
    per_sm = flop_per_s / rates.sm_count
    compute_ns = min(_tiled_ns(product, per_sm, rates.sm_count))
    memory_ns = rates.memory_ns(product.bytes(ITEM_BYTES.get(data_type, 4)))
    return max(rates.number("product_fill_ns") + compute_ns, memory_ns or 0.0)


def padded(product: Product, multiple: int) -> Product:
    """The product with every size but the batch rounded up to a multiple."""
    m, n, k = (ceil(size / multiple) * multiple for size in (product.m, product.n, product.k))
    return Product(product.batch, m, n, k)


def _tiled_ns(product: Product, flop_per_s_of_sm: float, sm_count: int) -> Iterator[float]:
    for rows, columns, share in _TILES:
        tiles = product.batch * ceil(product.m / rows) * ceil(product.n / columns)
        rounds = ceil(tiles / sm_count)
        yield rounds * 2 * rows * columns * product.k / (share * flop_per_s_of_sm) * 1e9
