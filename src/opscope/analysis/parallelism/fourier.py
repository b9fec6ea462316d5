"""Kernels of cuFFT, whose names state length and elements per thread. Undocumented: all is inferred."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod

from opscope.analysis.parallelism.account import Expected, Note, checked
from opscope.analysis.parallelism.facts import LaunchFacts
from opscope.analysis.parallelism.wording import (
    ceil_div,
    ceiling,
    computes,
    independent,
    over,
    plural,
    synchronization,
)
from opscope.model.evidence import Grade

__all__ = ["fourier"]

_NAME = re.compile(
    r"(?:vector|regular)_fft(?:_symm)?(?:_[rc]2[rc])?"
    r"<(?P<length>\d+)u?,\s*EPT<(?P<each>\d+)u?>,\s*(?P<together>\d+)u?"
)


def fourier(launch: LaunchFacts) -> Iterator[Note]:
    """`vector_fft<length, EPT<elements per thread>, transforms, ...>` and relatives."""
    match = _NAME.search(launch.kernel.name)
    call = launch.call
    tensor = None if call is None else call.tensor(0)
    dimensions = None if call is None else call.integers(1)
    if match is None or tensor is None or not dimensions or len(dimensions) != 1 or not tensor.shape:
        return
    length = tensor.shape[dimensions[0] % len(tensor.shape)]
    if length != int(match["length"]) or not tensor.element_count:
        return
    count = prod(tensor.shape) // length
    yield over(f"{plural(count, 'transform')} of {length:,} points {independent(count)}.", Grade.INFERRED)
    together = int(match["together"]) or 1
    expected = Expected(f"{ceiling(count, together)} blocks", (ceil_div(count, together), 1, 1))
    for check in checked(launch, [expected], Grade.INFERRED):
        if check.is_explained:
            threads = f" of {launch.thread_count} threads" if launch.thread_count else ""
            yield computes(
                f"A block{threads} computes {plural(together, 'transform')}, {match['each']} elements per "
                "thread at a time.",
                Grade.INFERRED,
            )
            yield synchronization(
                "Elements pass between threads through shared memory between the stages; one launch.",
                Grade.INFERRED,
            )
        yield check
