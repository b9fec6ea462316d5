"""Triton kernels written by torch.compile: pointwise, looped and persistent reductions.

Block sizes come from the recorded compile-time arguments (`XBLOCK=1024`), element counts from the call's last
integer arguments. Source: torch/_inductor/codegen/triton.py and torch/_inductor/runtime/triton_heuristics.py
of PyTorch 2.6.0 (grid: one program per XBLOCK, YBLOCK).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from opscope.analysis.parallelism.account import Expected, Note, checked
from opscope.analysis.parallelism.facts import Extent, LaunchFacts
from opscope.analysis.parallelism.wording import (
    algorithm,
    ceil_div,
    ceiling,
    computes,
    every,
    independent,
    memory,
    over,
    plural,
    synchronization,
)

__all__ = ["parse_compile_arguments", "triton_kernel"]

_AXES = ("X", "Y", "Z")
_REDUCTIONS = ("red", "per")


def parse_compile_arguments(text: str | None) -> dict[str, int]:
    """Numbers of the recorded `XBLOCK=4,RBLOCK=256`; other values are left out."""
    found = {}
    for part in (text or "").split(","):
        name, _, value = part.partition("=")
        if value.strip().lstrip("-").isdecimal():
            found[name.strip()] = int(value)
    return found


def triton_kernel(launch: LaunchFacts) -> Iterator[Note]:
    """`triton_poi_…`, `triton_red_…`, `triton_per_…`."""
    kind = launch.function_name.split("_")[1] if "_" in launch.function_name else ""
    is_reduction = kind in _REDUCTIONS
    sizes = _axis_sizes(launch, is_reduction=is_reduction)
    blocks = _axis_blocks(launch)
    reduced = _reduced_size(launch) if is_reduction else None
    threads = launch.thread_count
    if sizes and is_reduction == (reduced is not None):
        yield from _parallel(sizes, reduced)
    if blocks and threads:
        yield from _program(launch, kind, blocks, reduced)
    if sizes and blocks and len(sizes) == len(blocks):
        yield from checked(launch, [_grid(sizes, blocks)])
    if kind == "per":
        yield memory("The reduced values are loaded once and stay in registers between the fused operations.")
    elif kind == "red":
        yield memory(
            "The reduced dimension is walked in pieces; values are loaded again for each pass over it."
        )
    yield from _waiting(kind, threads)
    fused = launch.kernel.fused_operators
    if fused:
        yield algorithm(f"Fused from {', '.join(fused)}: intermediate results stay in registers.")


def _axis_blocks(launch: LaunchFacts) -> tuple[int, ...]:
    """XBLOCK, YBLOCK, ZBLOCK as far as they are recorded."""
    found = []
    for axis in _AXES:
        size = launch.compile_arguments.get(f"{axis}BLOCK")
        if not size:
            break
        found.append(size)
    return tuple(found)


def _axis_sizes(launch: LaunchFacts, *, is_reduction: bool) -> tuple[int, ...]:
    """Element counts along x, y, z: the last integers of the call, the reduced count last of all."""
    integers = launch.call.scalars() if launch.call is not None else ()
    if is_reduction:
        integers = integers[:-1]
    count = len(_axis_blocks(launch))
    # Written in the order znumel, ynumel, xnumel.
    sizes = tuple(reversed(integers[-count:])) if count and len(integers) >= count else ()
    return sizes if all(size > 0 for size in sizes) else ()


def _reduced_size(launch: LaunchFacts) -> int | None:
    integers = launch.call.scalars() if launch.call is not None else ()
    return integers[-1] if integers and integers[-1] > 0 else None


def _grid(sizes: tuple[int, ...], blocks: tuple[int, ...]) -> Expected:
    counts = [ceil_div(size, block) for size, block in zip(sizes, blocks, strict=True)]
    grid: Extent = (counts[0], counts[1] if len(counts) > 1 else 1, counts[2] if len(counts) > 2 else 1)
    formula = " × ".join(ceiling(size, block) for size, block in zip(sizes, blocks, strict=True))
    return Expected(f"{formula} programs", grid)


def _parallel(sizes: tuple[int, ...], reduced: int | None) -> Iterator[Note]:
    count = prod(sizes)
    if reduced is None:
        yield over(f"{every(count, 'element')} of the fused operators {independent(count)}.")
    else:
        yield over(
            f"{plural(count, 'row')} of {reduced:,} elements {independent(count)}; each is reduced inside "
            "one program."
        )


def _program(launch: LaunchFacts, kind: str, blocks: tuple[int, ...], reduced: int | None) -> Iterator[Note]:
    tile, threads = prod(blocks), launch.thread_count or 1
    shape = "×".join(f"{axis}BLOCK={size}" for axis, size in zip(_AXES, blocks, strict=False))
    program = f"A program of {plural(threads, 'thread')} computes"
    if kind not in _REDUCTIONS:
        yield computes(f"{program} {plural(tile, 'element')} ({shape}): {tile / threads:g} per thread.")
    elif reduced is None:
        yield computes(f"{program} {plural(tile, 'row')} ({shape}).")
    elif kind == "per":
        yield computes(
            f"{program} {plural(tile, 'row')} ({shape}), each of {plural(reduced, 'element')} held at once: "
            f"at least {tile * reduced / threads:g} per thread."
        )
    else:
        piece = launch.compile_arguments.get("R0_BLOCK") or launch.compile_arguments.get("RBLOCK")
        steps = f" in {plural(ceil_div(reduced, piece), 'piece')} of {piece:,}" if piece else ""
        yield computes(f"{program} {plural(tile, 'row')} ({shape}) of {plural(reduced, 'element')}{steps}.")


def _waiting(kind: str, threads: int | None) -> Iterator[Note]:
    if kind == "poi":
        yield synchronization("None needed: elements are independent.")
    elif kind in _REDUCTIONS and threads:
        if threads == 32:
            yield synchronization(
                "One warp per program: its reductions need warp shuffles alone. Programs are independent."
            )
        else:
            yield synchronization(
                "Reductions combine the warps of a program through shared memory. Programs are independent."
            )
