"""Triton programs that torch.compile wrote: pointwise operators and reductions fused into one launch.

Source: torch/_inductor/codegen/triton.py and torch/_inductor/runtime/triton_heuristics.py of PyTorch 2.6.0
(grid: one program per XBLOCK, YBLOCK).
"""

from __future__ import annotations

from math import prod
from typing import Any

from opscope.hardware.architectures import WARP_SIZE
from opscope.launches.facts import LaunchFacts
from opscope.launches.prediction import Expected, Prediction, ceil_div, ceiling
from opscope.operators.arguments import ScalarArgument
from opscope.units import counted

__all__ = ["program"]

_AXES = ("X", "Y", "Z")


def program(launch: LaunchFacts) -> Prediction:
    """`triton_poi_…`, `triton_red_…`, `triton_per_…` of torch.compile: pointwise, looped or persistent.

    Block sizes come from the recorded compile-time arguments (`XBLOCK=1024`), element counts from the call's
    last integer arguments.
    """
    kind = launch.function_name.split("_")[1]
    is_reduction = kind in ("red", "per")
    found: list[int] = []  # XBLOCK, YBLOCK, ZBLOCK as far as they are recorded
    for axis in _AXES:
        if not (size := launch.compile_arguments.get(f"{axis}BLOCK")):
            break
        found.append(size)
    blocks, integers = tuple(found), _integers(launch)
    reduced = integers[-1] if is_reduction and integers and integers[-1] > 0 else None
    # Element counts along x, y, z: the last of the integers, written in the order znumel, ynumel, xnumel.
    counts_recorded = integers[:-1] if is_reduction else integers
    axes = len(blocks)
    sizes = counts_recorded[-axes:][::-1] if axes and len(counts_recorded) >= axes else ()
    sizes = sizes if all(size > 0 for size in sizes) else ()
    threads, fused = launch.thread_count, launch.kernel.fused_operators
    values: dict[str, Any] = {
        "is_pointwise": kind == "poi",
        "is_persistent": kind == "per",
        "is_looped": kind == "red",
        "is_one_warp": is_reduction and threads == WARP_SIZE,
        "has_warps": is_reduction and bool(threads) and threads != WARP_SIZE,
        "fused": ", ".join(fused) if fused else None,
    }
    if sizes and is_reduction == (reduced is not None):
        values["rows" if is_reduction else "count"] = prod(sizes)
        values["reduced"] = reduced
    if blocks and threads:
        values.update(_program_values(launch, blocks, threads, kind, reduced))
    if not sizes or not blocks:
        return Prediction(values)
    pairs = list(zip(sizes, blocks, strict=True))
    counts = [ceil_div(*pair) for pair in pairs] + [1, 1]
    formula = " × ".join(ceiling(*pair) for pair in pairs)
    return Prediction(values, [Expected(f"{formula} programs", (counts[0], counts[1], counts[2]))])


def _integers(launch: LaunchFacts) -> tuple[int, ...]:
    """Integer arguments, in order."""
    given = () if launch.call is None else launch.call.arguments
    values = (one.value for one in given if isinstance(one, ScalarArgument))
    return tuple(one for one in values if isinstance(one, int) and not isinstance(one, bool))


def _program_values(
    launch: LaunchFacts, blocks: tuple[int, ...], threads: int, kind: str, reduced: int | None
) -> dict[str, Any]:
    """What one program computes."""
    tile = prod(blocks)
    shape = "×".join(f"{axis}BLOCK={size}" for axis, size in zip(_AXES, blocks, strict=False))
    values: dict[str, Any] = {"program": counted(threads, "thread"), "blocks_text": shape}
    if kind not in ("red", "per"):
        return {**values, "elements": tile, "elements_each": tile / threads}
    values["tile_rows"] = tile
    if reduced is None:
        return {**values, "has_no_length": True}
    if kind == "per":
        return {**values, "held": reduced, "held_each": tile * reduced / threads}
    piece = launch.compile_arguments.get("R0_BLOCK") or launch.compile_arguments.get("RBLOCK")
    return {
        **values,
        "walked": reduced,
        "piece": piece,
        "pieces": ceil_div(reduced, piece) if piece else None,
    }
