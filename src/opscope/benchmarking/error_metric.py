"""How far outputs lie from a reference of higher precision: one number that every element must satisfy.

The error of an element is |output - reference| / max(|reference|, rms of the reference): relative for large
elements, and not blown up where the reference happens to be near zero. Elements that are not finite must be
so in both. Works through the tensors in chunks, on the output's device. Imports torch lazily.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from opscope.workloads.runtime import require_torch

__all__ = ["Difference", "difference"]

_CHUNK_ELEMENTS = 1 << 22  # 32 MB of float64 on either side


@dataclass(frozen=True)
class Difference:
    """What comparing one output with its reference gave.

    Attributes:
        max_relative_error: Largest error of an element that is finite in both.
        squared_error: Σ (output - reference)², of the same elements.
        squared_reference: Σ reference², of the same elements.
        element_count: Elements compared.
        missing_count: Elements that are not finite where the reference is.
        unexpected_count: Elements that differ from a reference that is not finite there.
    """

    max_relative_error: float
    squared_error: float
    squared_reference: float
    element_count: int
    missing_count: int
    unexpected_count: int


def difference(output: Any, reference: Any, tolerance: float) -> Difference:
    """The difference of an output from a reference of the same shape.

    An infinity is right where the reference is beyond the range of the output's dtype, or within the
    tolerance of its end. A reference that is zero everywhere has no scale: errors are absolute then.

    Args:
        output: Tensor of any dtype.
        reference: Tensor of the same shape; compared in float64.
        tolerance: As `max_relative_error` may reach.
    """
    if not output.numel():
        return Difference(0.0, 0.0, 0.0, 0, 0, 0)
    flat_output, flat_reference = _flat(output), _flat(reference)
    largest = _range_end(output) * max(0.0, 1.0 - tolerance)
    rms = _rms(flat_reference, output.device)
    totals = [
        _chunk_difference(out, ref, rms or 1.0, largest)
        for out, ref in _chunks(flat_output, flat_reference, device=output.device)
    ]
    return Difference(
        max_relative_error=max(error.item() for error, *_ in totals),
        squared_error=math.fsum(one[1].item() for one in totals),
        squared_reference=math.fsum(one[2].item() for one in totals),
        element_count=output.numel(),
        missing_count=sum(int(one[3].item()) for one in totals),
        unexpected_count=sum(int(one[4].item()) for one in totals),
    )


def _chunk_difference(output: Any, reference: Any, rms: float, largest: float) -> tuple[Any, ...]:
    """Scalars of one chunk, left on the device: error, Σ of both squares, missing and unexpected counts."""
    torch = require_torch()
    finite_output, finite_reference = output.isfinite(), reference.isfinite()
    beyond_range = (reference.abs() >= largest) & (output == reference.sign() * math.inf)
    same = beyond_range | (output == reference) | (output.isnan() & reference.isnan())
    both = finite_output & finite_reference
    deviation = torch.where(both, output - reference, 0.0).abs_()
    magnitude = torch.where(both, reference, 0.0).abs_()
    error = (deviation / magnitude.clamp(min=rms)).max()
    return (
        error,
        deviation.square().sum(),
        magnitude.square().sum(),
        (finite_reference & ~finite_output & ~same).sum(),
        (~finite_reference & ~same).sum(),
    )


def _rms(reference: Any, device: Any) -> float:
    """Root mean square of the finite elements; scaled by the largest, so that no square overflows."""
    torch = require_torch()
    scale, count = 0.0, 0
    for (chunk,) in _chunks(reference, device=device):
        finite = chunk.isfinite()
        scale = max(scale, torch.where(finite, chunk, 0.0).abs().max().item())
        count += int(finite.sum().item())
    if scale == 0.0:
        return 0.0
    total = math.fsum(
        torch.where(chunk.isfinite(), chunk / scale, 0.0).square().sum().item()
        for (chunk,) in _chunks(reference, device=device)
    )
    return scale * math.sqrt(total / count)


def _chunks(*tensors: Any, device: Any) -> Iterator[tuple[Any, ...]]:
    """Chunks of flat tensors in float64."""
    float64 = require_torch().float64
    for start in range(0, tensors[0].numel(), _CHUNK_ELEMENTS):
        yield tuple(one[start : start + _CHUNK_ELEMENTS].to(device, float64) for one in tensors)


def _flat(tensor: Any) -> Any:
    """All elements in one row; the two parts of complex ones side by side, sparse ones filled up."""
    torch = require_torch()
    dense = tensor.detach() if tensor.layout is torch.strided else tensor.detach().to_dense()
    if dense.is_complex():
        dense = torch.view_as_real(dense.resolve_conj())
    return dense.reshape(-1)


def _range_end(tensor: Any) -> float:
    """Largest finite number of a tensor's dtype; infinite for integers, which have no infinity."""
    torch = require_torch()
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return math.inf
    return float(torch.finfo(tensor.dtype).max)
