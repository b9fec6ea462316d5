"""How long a matrix product or an attention kernel would take in another type, by what the device reaches.

The grid of a product is its result cut into tiles; multiprocessors take tiles in rounds, and a round in which
few have one lasts as long as a full one. So small products stay far below the device's rate in any type, and
the ratio of two peaks promises too much. One attention kernel reaches a share of the peak that grows with the
length of its sequences.
"""

from __future__ import annotations

from enum import Enum
from math import ceil

import msgspec

from opscope.advice.rules import RuleBook, rule_book
from opscope.hardware.devices import DataType
from opscope.hardware.limits import DeviceLimits, Limit, LimitEvidence
from opscope.operators.products import AttentionSizes, MatrixProduct

HALF_TYPES = (DataType.BF16, DataType.FP16)
ITEM_BYTES = {DataType.FP32: 4, DataType.TF32: 4, DataType.FP16: 2, DataType.BF16: 2}
# Tiles that libraries choose from, with the share of a multiprocessor's rate that each reaches: a small one
# reads its operands more often. On an H200 tiles of bf16 products down to 96×64 were seen at the whole rate.
_TILES = (
    (256, 128, 1.0), (192, 128, 1.0), (128, 128, 1.0), (128, 64, 1.0), (64, 128, 1.0), (96, 64, 1.0),
    (64, 64, 0.75),
)  # fmt: skip
# Parts into which libraries cut the inner dimension where tiles are too few for the device.
_SPLITS = (1, 2, 4, 8, 16, 32)
_SUM_BYTES = 4  # of a partial sum
_ATTENTION_TYPES = {"float": DataType.FP32, "c10::Half": DataType.FP16, "c10::BFloat16": DataType.BF16}
# Tensors of the operands' sizes, read or written: query, key, value and out; backward also their gradients,
# sums of them in float32 and what helpers read again.
_ATTENTION_TENSORS = {False: 4, True: 16}
_ATTENTION_PRODUCTS = {False: 2, True: 5}
_ATTENTION_KERNELS = {False: 1, True: 3}
_ATTENTION_BLOCK = 64


class Rates(msgspec.Struct, frozen=True):
    """What work can be expected to reach on one device: its limits, a datasheet's reduced to what is seen."""

    limits: DeviceLimits | None = None  # None if unknown
    sm_count: int | None = None  # multiprocessors; None if unknown
    book: RuleBook = msgspec.field(default_factory=rule_book)

    def flop_per_s(self, data_type: DataType) -> float | None:
        """Operations per second that large products of a type reach."""
        return self._expected(
            None if self.limits is None else self.limits.peaks.get(data_type), "datasheet_peak_share"
        )

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes per second that large copies reach."""
        return self._expected(
            None if self.limits is None else self.limits.memory, "datasheet_bandwidth_share"
        )

    @property
    def half_type(self) -> DataType | None:
        """The 16-bit type to compute in: bfloat16 where there are tensor cores for it."""
        return next((one for one in HALF_TYPES if self.flop_per_s(one) is not None), None)

    def memory_ns(self, size_bytes: float) -> float | None:
        """Time to move bytes, never less than a kernel takes; None if the rate is unknown."""
        rate = self.bytes_per_s
        return None if rate is None else max(self.book.number("kernel_floor_ns"), size_bytes / rate * 1e9)

    def _expected(self, limit: Limit | None, share: str) -> float | None:
        if limit is None:
            return None
        is_measured = limit.evidence is LimitEvidence.MEASURED
        return limit.per_s if is_measured else limit.per_s * self.book.number(share)


def product_ns(product: MatrixProduct, data_type: DataType, rates: Rates) -> float | None:
    """Time of a product in a type; None where the device's rate or its multiprocessors are unknown.

    The best of the tiles: rounds of one tile on each multiprocessor at its share of the device's rate, and
    what filling and emptying the pipeline takes. Where few tiles are left idle multiprocessors, each is cut
    along the inner dimension, and a second kernel adds the parts. Not less than its bytes need.
    """
    flop_per_s = rates.flop_per_s(data_type)
    if flop_per_s is None or rates.sm_count is None:
        return None
    sm_count, per_sm = rates.sm_count, flop_per_s / rates.sm_count

    def split_ns(splits: int) -> float:
        inner, results = ceil(product.k / splits), product.batch * product.m * product.n
        flops = (
            ceil(product.batch * ceil(product.m / rows) * ceil(product.n / columns) * splits / sm_count)
            * 2 * rows * columns * inner / share
            for rows, columns, share in _TILES
        )  # fmt: skip
        # Partial sums are written and read again.
        added_ns = rates.memory_ns(2 * _SUM_BYTES * splits * results) if splits > 1 else 0.0
        return min(flops) / per_sm * 1e9 + (added_ns or 0.0)

    compute_ns = min(split_ns(splits) for splits in _SPLITS if splits <= product.k)
    memory_ns = rates.memory_ns(product.bytes(ITEM_BYTES.get(data_type, 4)))
    return max(rates.book.number("product_fill_ns") + compute_ns, memory_ns or 0.0)


class AttentionMask(Enum):
    """What is added to scores, or filled into them, before the softmax, by its shape."""

    SQUARE = "square"  # one for all heads: what comes later is left out, most often
    KEYS = "keys"  # the same for all queries: padding
    BIAS = "bias"  # of each head its own: positions, often learned


class AttentionWork(msgspec.Struct, frozen=True):
    sizes: AttentionSizes  # of its products
    is_backward: bool = False  # whether it is the gradient
    mask: AttentionMask | None = None  # None for none

    def __str__(self) -> str:
        return str(self.sizes)


def attention_type(type_name: str | None) -> DataType | None:
    """Type of the operands, from its recorded name; None for one that attention kernels do not take."""
    return _ATTENTION_TYPES.get(type_name or "")


def attention_ns(work: AttentionWork, data_type: DataType, rates: Rates) -> float | None:
    """Time of the one kernel that scaled_dot_product_attention chooses; None where the rates are unknown.

    Kernels work on blocks of 64 queries, keys and elements. A score costs as much as some more elements.
    """
    peak = rates.flop_per_s(data_type)
    if peak is None:
        return None
    sizes, is_float32 = work.sizes, data_type is DataType.FP32
    kind = "float32_attention" if is_float32 else "flash"
    kind += "_backward" if work.is_backward else "_forward"
    share = rates.book.number(f"{kind}_share")
    if work.mask is not None:
        share *= rates.book.number(
            "masked_float32_attention_share" if is_float32 else "masked_attention_share"
        )
    scores = sizes.all_heads * _in_blocks(sizes.queries) * _in_blocks(sizes.keys)
    elements = max(_ATTENTION_BLOCK, sizes.head_size) + rates.book.number(f"{kind}_score")
    compute_ns = 2 * _ATTENTION_PRODUCTS[work.is_backward] * scores * elements / (peak * share) * 1e9
    size_bytes = sizes.all_heads * (sizes.queries + sizes.keys) / 2 * sizes.head_size * ITEM_BYTES[data_type]
    memory_ns = rates.memory_ns(_ATTENTION_TENSORS[work.is_backward] * size_bytes) or 0.0
    # The helpers of gradients, which memory bounds, run after one another.
    shared_ns = min(compute_ns, memory_ns) / (1 if work.is_backward else 2)
    fill_ns = rates.book.number("product_fill_ns") * _ATTENTION_KERNELS[work.is_backward]
    return fill_ns + max(compute_ns, memory_ns) + shared_ns


def _in_blocks(length: int) -> int:
    return ceil(length / _ATTENTION_BLOCK) * _ATTENTION_BLOCK
