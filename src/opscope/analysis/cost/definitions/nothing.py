"""Operators that do no floating-point arithmetic: they move, choose, compare, count or write constants.

Drawing random integers, bits and permutations is integer arithmetic. Sorting compares.
"""

from __future__ import annotations

from collections.abc import Mapping

from opscope.analysis.cost.definitions.counting import Definition, nothing

__all__ = ["DEFINITIONS"]

_COPIES = """
    copy _to_copy clone cat stack constant_pad_nd pad reflection_pad1d
    reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d repeat
    repeat_interleave flip roll rot90 tril triu tril_indices triu_indices diag diag_embed im2col unfold
    channel_shuffle native_channel_shuffle pixel_shuffle pixel_unshuffle _pin_memory
    _local_scalar_dense item _copy_from_and_resize
    _foreach_copy _foreach_clone
"""
_FILLS = """
    fill zero zeros ones full zeros_like ones_like full_like empty empty_like empty_strided new_zeros new_ones
    new_full scalar_tensor eye one_hot _foreach_zero resize
"""
_GATHERS = """
    gather index index_select embedding take masked_select nonzero masked_fill index_fill index_copy
    masked_scatter where select_backward slice_backward _unsafe_index
    as_strided_scatter slice_scatter select_scatter diagonal_scatter
"""
_COMPARISONS = """
    eq ne lt le gt ge equal maximum minimum fmax fmin max min amax amin aminmax argmax argmin median nanmedian
    mode kthvalue sort argsort topk msort unique_consecutive _unique _unique2 unique_dim searchsorted
    bucketize isin bincount count_nonzero any all isnan isinf isfinite isneginf isposinf is_nonzero
    cummax cummin _cummax_helper _cummin_helper
    _foreach_max _foreach_maximum _foreach_minimum _foreach_clamp_max _foreach_clamp_min
"""
_CHOICES_AND_SIGNS = """
    relu relu6 threshold threshold_backward clamp clamp_min clamp_max clip hardtanh hardtanh_backward
    hardshrink hardshrink_backward abs absolute neg negative positive sign sgn signbit copysign nan_to_num
    heaviside _foreach_abs _foreach_neg _foreach_sign
    max_pool2d_with_indices max_pool3d_with_indices
    adaptive_max_pool2d adaptive_max_pool3d fractional_max_pool2d max_unpool2d max_unpool3d
    upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d
    _upsample_nearest_exact2d _upsample_nearest_exact3d
"""
_ROUNDING_AND_BITS = """
    floor ceil round trunc fix frexp _foreach_floor _foreach_ceil _foreach_round _foreach_trunc
    bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift bitwise_right_shift __and__ __or__
    __xor__ __lshift__ __rshift__ logical_and logical_or logical_xor logical_not gcd lcm
"""
_RANDOM = "random randint randint_like randperm bernoulli"


DEFINITIONS: Mapping[str, Definition] = {
    stem: nothing()
    for group in (
        _COPIES,
        _FILLS,
        _GATHERS,
        _COMPARISONS,
        _CHOICES_AND_SIGNS,
        _ROUNDING_AND_BITS,
        _RANDOM,
    )
    for stem in group.split()
}
