"""How long a matrix product or an attention kernel would take in another type, by what the device reaches.

The grid of a product is its result cut into tiles; multiprocessors take tiles in rounds, and a round in which
few have one lasts as long as a full one. So small products stay far below the device's rate in any type, and
the ratio of two peaks promises too much. One attention kernel reaches a share of the peak that grows with the
length of its sequences.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil

from opscope.advice.rules import RuleBook, rule_book
from opscope.hardware.devices import DataType
from opscope.hardware.limits import DeviceLimits, Limit, LimitEvidence
from opscope.operators.arguments import parse_arguments

__all__ = [
    "ITEM_BYTES",
    "AttentionWork",
    "Product",
    "Rates",
    "attention_ns",
    "attention_type",
    "padded",
    "product_ns",
    "recorded_product",
]

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
    (256, 128, 1.0), (192, 128, 1.0), (128, 128, 1.0), (128, 64, 1.0), (64, 128, 1.0), (96, 64, 1.0),
    (64, 64, 0.75),
)  # fmt: skip
_ATTENTION_TYPES = {"float": DataType.FP32, "c10::Half": DataType.FP16, "c10::BFloat16": DataType.BF16}
# Products of sizes queries × keys × head size: two forward; five backward, which computes the scores again.
# Source: Dao et al. 2022, arXiv:2205.14135, algorithms 1 and 4.
_ATTENTION_PRODUCTS = {False: 2, True: 5}
# Tensors of the operands' sizes, read or written: query, key, value and out; backward also their gradients.
_ATTENTION_TENSORS = {False: 4, True: 8}


@dataclass(frozen=True)
class Rates:
    """What work can be expected to reach on one device: its limits, a data sheet's reduced to what is seen.

    Attributes:
        limits: None if unknown.
        sm_count: Multiprocessors; None if unknown.
    """

    limits: DeviceLimits | None = None
    sm_count: int | None = None
    book: RuleBook = field(default_factory=rule_book, repr=False)

    def number(self, name: str) -> float:
        """A shared number of the rule book."""
        return self.book.number(name)

    def flop_per_s(self, data_type: DataType) -> float | None:
        """Operations per second that large products of a type reach."""
        peak = None if self.limits is None else self.limits.peaks.get(data_type)
        return self._expected(peak, "datasheet_peak_share")

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes per second that large copies reach."""
        memory = None if self.limits is None else self.limits.memory
        return self._expected(memory, "datasheet_bandwidth_share")

    @property
    def half_type(self) -> DataType | None:
        """The 16-bit type to compute in: bfloat16 where there are tensor cores for it."""
        known = (DataType.BF16, DataType.FP16)
        return next((one for one in known if self.flop_per_s(one) is not None), None)

    def memory_ns(self, size_bytes: float) -> float | None:
        """Time to move bytes, never less than a kernel takes; None if the rate is unknown."""
        rate = self.bytes_per_s
        return None if rate is None else max(self.number("kernel_floor_ns"), size_bytes / rate * 1e9)

    def _expected(self, limit: Limit | None, share: str) -> float | None:
        if limit is None:
            return None
        is_measured = limit.evidence is LimitEvidence.MEASURED
        return limit.per_s if is_measured else limit.per_s * self.number(share)


@dataclass(frozen=True)
class Product:
    """Sizes of `batch` products of an m×k with a k×n matrix."""

    batch: int
    m: int
    n: int
    k: int

    def __str__(self) -> str:
        """`1024×768 by 768×3072`."""
        return f"{self.m}×{self.k} by {self.k}×{self.n}"

    @property
    def flop_count(self) -> int:
        """A multiplication and an addition are 2."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def elements(self) -> tuple[int, int, int]:
        """Elements of the result and of the two operands."""
        return self.batch * self.m * self.n, self.batch * self.m * self.k, self.batch * self.k * self.n

    def bytes(self, item_bytes: int) -> int:
        """Operands and result, each once."""
        return item_bytes * sum(self.elements)


def recorded_product(operator: str, shapes: str | None, types: str | None) -> Product | None:
    """The sizes of a recorded call, its shapes and types as JSON text.

    None for other operators, and where shapes are missing or contradictory.
    """
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


@dataclass(frozen=True)
class AttentionWork:
    """One attention call.

    Attributes:
        heads: Heads of all sequences of the batch.
        query_length: Rows of the scores.
        key_length: Columns of the scores.
        head_size: Elements of one head.
        is_backward: Whether it is the gradient.
        has_mask: Whether something was added to the scores, or filled into them, before the softmax.
    """

    heads: int
    query_length: int
    key_length: int
    head_size: int
    is_backward: bool = False
    has_mask: bool = False

    def __str__(self) -> str:
        """`96 heads of 128×128 scores and 64 elements`."""
        scores = f"{self.query_length}×{self.key_length}"
        return f"{self.heads} heads of {scores} scores and {self.head_size} elements"

    @property
    def flop_count(self) -> int:
        """A multiplication and an addition are 2; softmax is left out."""
        one = 2 * self.heads * self.query_length * self.key_length * self.head_size
        return _ATTENTION_PRODUCTS[self.is_backward] * one


def attention_type(type_name: str | None) -> DataType | None:
    """Type of the operands, from its recorded name; None for one that attention kernels do not take."""
    return _ATTENTION_TYPES.get(type_name or "")


def attention_ns(sizes: AttentionWork, data_type: DataType, rates: Rates) -> float | None:
    """Time of one fused kernel; None where the device's rates are unknown.

    16-bit types without a mask run as flash attention, else in the memory-efficient kernel.
    """
    peak = rates.flop_per_s(data_type)
    if peak is None:
        return None
    mean_length = (sizes.query_length + sizes.key_length) / 2
    kind = "float32_attention" if data_type is DataType.FP32 else "flash"
    kind += "_backward" if sizes.is_backward else "_forward"
    share = rates.number(f"{kind}_share")
    share *= mean_length / (mean_length + rates.number(f"{kind}_half_length"))
    if sizes.has_mask and data_type is not DataType.FP32:
        share *= rates.number("masked_attention_share")
    compute_ns = sizes.flop_count / (peak * share) * 1e9
    elements = _ATTENTION_TENSORS[sizes.is_backward] * sizes.heads * mean_length * sizes.head_size
    memory_ns = rates.memory_ns(elements * ITEM_BYTES[data_type])
    return rates.number("product_fill_ns") + max(compute_ns, memory_ns or 0.0)
