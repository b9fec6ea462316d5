"""A compiled file as a whole: its kernels, the occupancy they can reach, and what is to be said of them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from opscope.hardware.occupancy import BLOCK_SIZES, KernelNeed, StaticOccupancy, static_occupancy
from opscope.model.finding import Finding
from opscope.nvcc.compile import Compilation, CompiledKernel
from opscope.nvcc.findings import findings_of


class KernelOutlook(msgspec.Struct, frozen=True):
    """A kernel for one target, and the occupancy it can reach there."""

    kernel: CompiledKernel
    occupancy: StaticOccupancy


class CompiledFile(msgspec.Struct, frozen=True):
    compilation: Compilation  # its facts
    outlooks: tuple[KernelOutlook, ...]  # of its kernels, in their order
    findings: tuple[Finding, ...]  # what is to be said
    dynamic_shared_bytes: int = 0  # of each block, as the occupancy assumes


def examine_compilation(
    compilation: Compilation,
    *,
    block_sizes: Sequence[int] = BLOCK_SIZES,
    dynamic_shared_bytes: int = 0,
) -> CompiledFile:
    outlooks = tuple(
        KernelOutlook(
            kernel,
            static_occupancy(
                KernelNeed(
                    kernel.registers, kernel.use.shared_bytes + dynamic_shared_bytes, kernel.max_threads
                ),
                kernel.target.compute_capability,
                block_sizes,
            ),
        )
        for kernel in compilation.kernels
    )
    return CompiledFile(compilation, outlooks, findings_of(compilation), dynamic_shared_bytes)
