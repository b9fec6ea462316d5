"""How long one attention kernel would take: by the share of the peak that such kernels reach."""

from __future__ import annotations

from dataclasses import dataclass

from opscope.advice.product_time import ITEM_BYTES
from opscope.advice.rates import Rates
from opscope.hardware.devices import DataType

__all__ = ["AttentionSizes", "attention_ns", "attention_type"]

_TYPES = {
    "float": DataType.FP32,
    "c10::Half": DataType.FP16,
    "c10::BFloat16": DataType.BF16,
}
# Products of sizes queries × keys × head size: two forward; five backward, which computes the scores again.
# Source: Dao et al. 2022, arXiv:2205.14135, algorithms 1 and 4.
_PRODUCTS = {False: 2, True: 5}
# Tensors of the operands' sizes, read or written: query, key, value and out; backward also their gradients.
_TENSORS = {False: 4, True: 8}


@dataclass(frozen=True)
class AttentionSizes:
    """One attention call: heads of all sequences of the batch, queries, keys, elements of a head."""

    heads: int
    query_length: int
    key_length: int
    head_size: int
    is_backward: bool = False
    has_mask: bool = False

    @property
    def flop_count(self) -> int:
        """A multiplication and an addition are 2; softmax is left out."""
        one = 2 * self.heads * self.query_length * self.key_length * self.head_size
        return _PRODUCTS[self.is_backward] * one


def attention_type(type_name: str | None) -> DataType | None:
    """Type of the operands, from its recorded name; None for one that attention kernels do not take."""
    return _TYPES.get(type_name or "")


def _kind(sizes: AttentionSizes, data_type: DataType) -> str:
    """Which numbers of the rule book are about such a kernel."""
    direction = "backward" if sizes.is_backward else "forward"
    return f"float32_attention_{direction}" if data_type is DataType.FP32 else f"flash_{direction}"


def attention_ns(sizes: AttentionSizes, data_type: DataType, rates: Rates) -> float | None:
    """Time of one fused kernel; None where the device's rates are unknown.

    16-bit types without a mask run as flash attention, else in the memory-efficient kernel.
    """
    peak = rates.flop_per_s(data_type)
    if peak is None:
        return None
    mean_length = (sizes.query_length + sizes.key_length) / 2
    kind = _kind(sizes, data_type)
    share = rates.number(f"{kind}_share")
    share *= mean_length / (mean_length + rates.number(f"{kind}_half_length"))
    if sizes.has_mask and data_type is not DataType.FP32:
        share *= rates.number("masked_attention_share")
    compute_ns = sizes.flop_count / (peak * share) * 1e9
    elements = _TENSORS[sizes.is_backward] * sizes.heads * mean_length * sizes.head_size
    memory_ns = rates.memory_ns(elements * ITEM_BYTES[data_type])
    return rates.number("product_fill_ns") + max(compute_ns, memory_ns or 0.0)
