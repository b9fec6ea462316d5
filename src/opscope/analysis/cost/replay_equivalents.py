"""Operators whose results torch cannot tell without a device, and the general ones that give the same.

Libraries' own variants (cudnn_convolution) have no shape functions; the operator they stand for has one.
Imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

__all__ = ["equivalent"]

_Values: TypeAlias = Mapping[str, Any]


def equivalent(name: str) -> Callable[[_Values], Any] | None:
    """What gives the same results as `name`, from its arguments by name; None if nothing does."""
    return _EQUIVALENTS.get(name)


def _convolution(values: _Values) -> Any:
    return _general_convolution(values, is_transposed=False, output_padding=[0] * len(values["stride"]))


def _transposed_convolution(values: _Values) -> Any:
    return _general_convolution(values, is_transposed=True, output_padding=values["output_padding"])


def _general_convolution(values: _Values, *, is_transposed: bool, output_padding: list[int]) -> Any:
    return torch.ops.aten.convolution.default(
        values["self"],
        values["weight"],
        None,
        values["stride"],
        values["padding"],
        values["dilation"],
        is_transposed,
        output_padding,
        values["groups"],
    )


def _attention(values: _Values) -> Any:
    results = torch.ops.aten._scaled_dot_product_cudnn_attention.default(
        values["query"],
        values["key"],
        values["value"],
        values["attn_bias"],
        values["compute_log_sumexp"],
        values["dropout_p"],
        values["is_causal"],
        values["return_debug_mask"],
        scale=values["scale"],
    )
    # The general operator tells of sums that this one leaves out where they are not asked for.
    return results if values["compute_log_sumexp"] else results[0]


_EQUIVALENTS: Mapping[str, Callable[[_Values], Any]] = {
    "aten::cudnn_convolution": _convolution,
    "aten::cudnn_convolution_transpose": _transposed_convolution,
    "aten::miopen_convolution": _convolution,
    "aten::miopen_convolution_transpose": _transposed_convolution,
    "aten::_cudnn_attention_forward": _attention,
}
