"""NCCL's collectives: channels in parallel, chunks in sequence.

Source: NVIDIA/nccl, src/enqueue.cc (a launch has one block per channel). Algorithm and protocol in a kernel's
name are those it was compiled for, not the call's: nothing is read from them.
"""

from __future__ import annotations

from collections.abc import Iterator

from opscope.analysis.parallelism.account import Note
from opscope.analysis.parallelism.facts import LaunchFacts
from opscope.analysis.parallelism.wording import algorithm, computes, over, plural, synchronization
from opscope.model.evidence import Grade

__all__ = ["collective"]

_REDUCING = frozenset(("AllReduce", "Reduce", "ReduceScatter"))


def collective(launch: LaunchFacts) -> Iterator[Note]:
    """`ncclDevKernel_<Collective>_...`."""
    name = launch.kernel.collective
    if name is None:
        return
    yield over(
        "The buffer is divided among channels, which exchange their parts independently of each other."
    )
    blocks, threads = launch.block_count, launch.thread_count
    if blocks and threads:
        yield computes(
            f"{plural(blocks, 'channel')}: one block of {threads} threads each, moving its part of the "
            "buffer."
        )
        if launch.sm_count:
            yield computes(
                f"While it runs it occupies up to {min(blocks, launch.sm_count)} of {launch.sm_count} "
                "multiprocessors.",
                Grade.INFERRED,
            )
    yield synchronization(
        "Blocks wait for the same channel of other devices, so the launch ends when the slowest rank has "
        "come."
    )
    if name in _REDUCING:
        yield algorithm("Received chunks are combined with the device's own and sent on, chunk by chunk.")
    else:
        yield algorithm("Chunks are received, stored and sent on; nothing is computed.")
