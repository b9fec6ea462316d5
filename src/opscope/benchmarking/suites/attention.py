"""Attention written out, and each backend that scaled_dot_product_attention may choose."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from opscope.benchmarking.problem import Implementation, Problem
from opscope.benchmarking.suite import (
    Parameter,
    Settings,
    Suite,
    by_torch,
    problem_of,
)
from opscope.errors import MeasurementError
from opscope.workloads.runtime import is_out_of_memory, require_torch

# Implementation → torch.nn.attention.SDPBackend, and what it is.
_BACKENDS = {
    "sdpa_math": ("MATH", "torch's composition of operators"),
    "sdpa_efficient": ("EFFICIENT_ATTENTION", "memory-efficient attention"),
    "sdpa_flash": ("FLASH_ATTENTION", "FlashAttention"),
    "sdpa_cudnn": ("CUDNN_ATTENTION", "cuDNN's attention"),
}


def _make(settings: Settings) -> Problem:
    is_causal = settings.parameters["causal"] == "true"
    batch, heads, sequence, head_dim = settings.shape
    pairs = sequence * (sequence + 1) // 2 if is_causal else sequence * sequence
    by_operator = functools.partial(_chosen_by_torch, is_causal=is_causal)
    naive = functools.partial(_naive, is_causal=is_causal)
    return problem_of(
        "attention",
        settings,
        (
            by_torch("naive", naive, "two matrix products and a softmax: all scores in memory"),
            by_torch("torch", by_operator, "scaled_dot_product_attention, torch's choice"),
            *(_backend(settings, name, is_causal=is_causal) for name in _BACKENDS),
        ),
        expected=functools.partial(_head_by_head, is_causal=is_causal),
        shapes=lambda *shape: (shape, shape, shape),
        # Two products over the pairs that are attended to; masked pairs are work that need not be done.
        flop_count=4 * batch * heads * pairs * head_dim,
        matrix_ceiling=f"matrix_{settings.dtype}",
    )


def _naive(query: Any, key: Any, value: Any, *, is_causal: bool) -> Any:
    scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    if is_causal:
        sequence = query.shape[-2]
        above = require_torch().ones(sequence, sequence, dtype=bool, device=query.device).triu(1)
        scores = scores.masked_fill(above, float("-inf"))
    return scores.softmax(dim=-1) @ value


def _head_by_head(query: Any, key: Any, value: Any, *, is_causal: bool) -> Any:
    """The formula for one head at a time: the scores of all heads may not fit in float64."""
    heads = zip(query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1), strict=True)
    outputs = [_naive(*head, is_causal=is_causal) for head in heads]
    return require_torch().stack(outputs).view_as(query)


def _chosen_by_torch(query: Any, key: Any, value: Any, *, is_causal: bool) -> Any:
    return require_torch().nn.functional.scaled_dot_product_attention(query, key, value, is_causal=is_causal)


def _backend(settings: Settings, name: str, *, is_causal: bool) -> Implementation:
    member, what = _BACKENDS[name]

    def build() -> Callable[..., Any]:
        attend = _attend_with(member, what, is_causal=is_causal)
        _try(attend, settings, what)
        return attend

    implementation = by_torch(name, _chosen_by_torch, f"scaled_dot_product_attention, {what}")
    return replace(implementation, build=build)


def _attend_with(member: str, what: str, *, is_causal: bool) -> Callable[..., Any]:
    from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: PLC0415 - imports torch

    backend = getattr(SDPBackend, member, None)
    if backend is None:
        raise MeasurementError(f"this PyTorch has no {what}", hint="Install a newer one")

    def attend(query: Any, key: Any, value: Any) -> Any:
        with sdpa_kernel([backend]):
            return _chosen_by_torch(query, key, value, is_causal=is_causal)

    return attend


def _try(attend: Callable[..., Any], settings: Settings, what: str) -> None:
    """Call a backend once, on one head. Torch says in warnings why it refuses, and then raises."""
    torch = require_torch()
    _, _, sequence, head_dim = settings.shape
    dtype = getattr(torch, settings.dtype)
    head = torch.zeros(1, 1, sequence, head_dim, dtype=dtype, device=settings.device)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            attend(head, head, head)
            refusal = None
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            refusal = error
    if refusal is not None:
        reasons = [_plain(str(warning.message)) for warning in caught] + [_plain(str(refusal))]
        raise MeasurementError(
            f"{what} is not offered here for {settings.dtype}, head_dim {head_dim}: {' '.join(reasons)}"
        ) from refusal
    for warning in caught:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def _plain(message: str) -> str:
    """A message of torch without the place in its source."""
    text = " ".join(re.sub(r"\(Triggered internally at [^)]*\)", "", message).split())
    return text if text.endswith((".", ":")) else f"{text}."


SUITE = Suite(
    name="attention",
    shape_names=("batch", "heads", "sequence", "head_dim"),
    cuda_shape=(4, 16, 4096, 128),
    cpu_shape=(1, 4, 256, 64),
    implementations=("naive", "torch", *_BACKENDS),
    make=_make,
    cuda_dtype="bfloat16",
    parameters={"causal": Parameter(("false", "true"), "whether a position attends only to earlier ones")},
)
