"""Names of AMD's libraries: Tensile multiplications, rocPRIM, MIOpen, Composable Kernel.

`Cijk_Ailk_Bjlk_SB_…_MT64x16x16_MI16x16x1_…_ISA90a_…` names the index order of each matrix, the types, and the
macro tile. Source for the index order: ROCm/Tensile, Kernel Parameters (NN is Ailk_Bljk); types and the rest
are inferred.
"""

from __future__ import annotations

import re
from typing import Any

from opscope.provenance.kernel_names.decoded_kernel import Reading
from opscope.provenance.kernel_names.words import FamilyRules, direction_of

__all__ = ["read_rocm"]

_TENSILE = re.compile(
    r"Cijk_(?P<a>A[il]{2}k)_(?P<b>B[jl]{2}k)(?:_S)?_(?P<types>[A-Z0-9]+)_(?P<rest>.*)", re.DOTALL
)
_TRANSPOSED = {"Ailk": "n", "Alik": "t", "Bljk": "n", "Bjlk": "t"}
_TYPES = re.compile(r"I8|F8|B8|[SDHBCZ]")
_ELEMENTS = {"S": "f32", "D": "f64", "H": "f16", "B": "bf16", "C": "cf32", "Z": "cf64", "I8": "s8"}
_TILE = re.compile(r"(?:^|_)MT(\d+x\d+x\d+)")
_INSTRUCTION = re.compile(r"_MI(\d+x\d+x\d+)")
_ARCHITECTURE = re.compile(r"_ISA(\w+?)_|gfx(\w+?)(?:_|$)")
_FUNCTIONS = FamilyRules("rocm")


def read_rocm(function: str) -> Reading | None:
    """What a kernel of AMD's libraries says; None if the function is not one."""
    tensile = _TENSILE.match(function)
    if tensile is not None:
        return _tensile(tensile)
    family = _FUNCTIONS.find(function)
    if family is None:
        return None
    library = (
        "rocprim" if "rocprim::" in function else "miopen" if re.match("miopen", function, re.I) else None
    )
    return Reading({"library": library}, {"family": family, "direction": direction_of(function)})


def _tensile(match: re.Match[str]) -> Reading:
    rest = match.group("rest")
    types = [_ELEMENTS.get(letter) for letter in _TYPES.findall(match.group("types"))]
    tile, instruction, architecture = (
        _TILE.search(rest),
        _INSTRUCTION.search(rest),
        _ARCHITECTURE.search(rest),
    )
    layout = _TRANSPOSED.get(match.group("a"), "?") + _TRANSPOSED.get(match.group("b"), "?")
    stated: dict[str, Any] = {
        "library": "tensile",
        "family": "gemm",
        "layout": layout if "?" not in layout else None,
    }
    inferred: dict[str, Any] = {
        "operand_type": types[0] if types else None,
        "tile": tile.group(1) if tile else None,
        "mma_shape": instruction.group(1) if instruction else None,
        "architecture": f"gfx{architecture.group(1) or architecture.group(2)}" if architecture else None,
    }
    return Reading(stated, inferred)
