"""What each reason to stall means, and what helps.

Source: Nsight Compute 2025.3, Profiling Guide, "Warp Stall Reasons"; the names are those of its metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["NO_STALL", "STALLS", "Stall"]

# States of a warp that has nothing to wait for: it issues, or another warp was taken.
NO_STALL = frozenset({"selected", "not_selected"})


@dataclass(frozen=True)
class Stall:
    """One reason."""

    meaning: str
    remedy: str | None = None


STALLS: Mapping[str, Stall] = {
    "long_scoreboard": Stall(
        "loads from global or local memory", "Have more loads in flight: more warps, or several per thread"
    ),
    "short_scoreboard": Stall(
        "shared memory and special functions", "Fewer or wider accesses to shared memory"
    ),
    "barrier": Stall("other warps of the block at a barrier", "Smaller blocks, or fewer barriers"),
    "wait": Stall("the fixed latency of the instruction before", "More independent instructions per thread"),
    "math_pipe_throttle": Stall("a busy arithmetic unit", "Spread the work over other kinds of instructions"),
    "mio_throttle": Stall(
        "the queue of shared memory and special instructions", "Fewer, wider accesses to shared memory"
    ),
    "lg_throttle": Stall("the queue of global and local memory", "Fewer, wider accesses to global memory"),
    "tex_throttle": Stall("the queue of the texture unit", "Fewer, wider texture accesses"),
    "branch_resolving": Stall("the target of a branch", "Fewer branches: unroll loops"),
    "no_instruction": Stall("instructions to be fetched", "A shorter kernel, or one without jumps"),
    "imc_miss": Stall("a constant that is not in its cache", "Fewer distinct constants"),
    "membar": Stall("a memory barrier", "Fewer fences, or of narrower scope"),
    "drain": Stall("stores to finish after the last instruction", "Fewer bytes stored at the end of threads"),
    "dispatch_stall": Stall("the dispatcher"),
    "gmma": Stall("a matrix instruction of a warp group", "Deeper pipelining of tiles"),
    "sleeping": Stall("its own sleep instruction", "Shorter sleeps"),
    "misc": Stall("other hardware reasons"),
}
