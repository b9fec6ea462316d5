"""Triton programs that torch.compile wrote: pointwise operators and reductions fused into one launch.

Source: torch/_inductor/codegen/triton.py and torch/_inductor/runtime/triton_heuristics.py of PyTorch 2.6.0
(grid: one program per XBLOCK, YBLOCK).
"""

from __future__ import annotations

from itertools import takewhile
from math import prod
from typing import Any

from opscope.hardware.architectures import WARP_SIZE
from opscope.launches.facts import Expected, LaunchFacts, Prediction, ceil_div, ceiling
from opscope.operators.arguments import ScalarArgument
from opscope.units import counted


def program(launch: LaunchFacts) -> Prediction:
    """`triton_poi_…`, `triton_red_…`, `triton_per_…` of torch.compile: pointwise, looped or persistent.

    Block sizes come from the recorded compile-time arguments (`XBLOCK=1024`), element counts from the call's
    last integer arguments, written in the order znumel, ynumel, xnumel, then what is reduced.
    """
    kind, threads, compiled = (
        launch.function_name.split("_")[1],
        launch.thread_count,
        launch.compile_arguments,
    )
    is_reduction = kind in ("red", "per")
    blocks = tuple(takewhile(bool, (compiled.get(f"{axis}BLOCK", 0) for axis in "XYZ")))
    given = () if launch.call is None else launch.call.arguments
    scalars = (one.value for one in given if isinstance(one, ScalarArgument))
    counts = [one for one in scalars if isinstance(one, int) and not isinstance(one, bool)]
    reduced = counts.pop() if is_reduction and counts else 0
    sizes = counts[-len(blocks) :][::-1] if blocks and len(counts) >= len(blocks) else []
    if any(size <= 0 for size in sizes):
        sizes = []
    values: dict[str, Any] = {
        "is_pointwise": kind == "poi",
        "is_persistent": kind == "per",
        "is_looped": kind == "red",
        "is_one_warp": is_reduction and threads == WARP_SIZE,
        "has_warps": is_reduction and bool(threads) and threads != WARP_SIZE,
        "fused": ", ".join(launch.kernel.fused_operators) or None,
    }
    if sizes and is_reduction == (reduced > 0):
        values["rows" if is_reduction else "count"] = prod(sizes)
        values["reduced"] = reduced or None
    if blocks and threads:
        tile = prod(blocks)
        values["program"] = counted(threads, "thread")
        values["blocks_text"] = "×".join(
            f"{axis}BLOCK={size}" for axis, size in zip("XYZ", blocks, strict=False)
        )
        if not is_reduction:
            values.update(elements=tile, elements_each=tile / threads)
        elif reduced <= 0:
            values.update(tile_rows=tile, has_no_length=True)
        elif kind == "per":
            values.update(tile_rows=tile, held=reduced, held_each=tile * reduced / threads)
        else:
            piece = compiled.get("R0_BLOCK") or compiled.get("RBLOCK")
            values.update(tile_rows=tile, walked=reduced, piece=piece)
            values["pieces"] = ceil_div(reduced, piece) if piece else None
    if not sizes:
        return Prediction(values)
    pairs = list(zip(sizes, blocks, strict=True))
    x, y, z = ([ceil_div(*pair) for pair in pairs] + [1, 1])[:3]
    formula = " × ".join(ceiling(*pair) for pair in pairs)
    return Prediction(values, [Expected(f"{formula} programs", (x, y, z))])
