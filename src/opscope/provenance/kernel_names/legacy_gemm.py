"""Names of NVIDIA's hand-tuned kernels, `ampere_fp16_s16816gemm_fp16_64x64_…_stages_64x6_tn`.

Undocumented, so inferred: the letters and the instruction shape resemble CUTLASS names (`s` accumulates in
f32, `h` in f16; digits are M, N, K of one matrix instruction, absent without tensor cores); a type before
them is the output's, one after `gemm` the operands'. `sliced1x4` splits K among the warps of a block, which
is not split-K.
"""

from __future__ import annotations

import re
from typing import Any

from opscope.provenance.kernel_names.decoded_kernel import Reading
from opscope.provenance.kernel_names.element_types import element_type, letter_type

__all__ = ["read_legacy_gemm"]

_ARCHITECTURES = {
    "maxwell": "sm50",
    "pascal": "sm60",
    "volta": "sm70",
    "turing": "sm75",
    "ampere": "sm80",
    "ada": "sm89",
    "hopper": "sm90",
}
_TYPE = r"fp64|fp32|tf32|fp16|bf16|uint8x4|uint8|int8x\d+|int8|int32"
_NAME = re.compile(
    rf"(?P<library>_?\w*?cudnn_(?:infer_|train_)?)?(?P<generation>{'|'.join(_ARCHITECTURES)})_"
    rf"(?:(?P<output>{_TYPE})_)?(?P<letters>g[cz]|[sdhcziu])(?P<shape>\d{{3,6}})?(?P<multiply>tf32|bf16|f16)?"
    rf"(?P<kind>gemm|cudnn)(?:_(?P<operand>{_TYPE})(?:_(?:{_TYPE}))?)?(?P<rest>(?:_\w+)?)"
)
_TILE = re.compile(r"_(\d+x\d+)(?=_)")
_STAGES = re.compile(r"_stages_(\d+)x(\d+)")
_LAYOUT = re.compile(r"_([ntc]{2})(?:_v\d+)?$")
_SHAPES = {
    "884": "8x8x4",
    "1688": "16x8x8",
    "16816": "16x8x16",
    "16832": "16x8x32",
    "8816": "8x8x16",
    "8832": "8x8x32",
}
_FIRST_LAYER = re.compile(
    r"(?P<generation>volta|turing|ampere)_first_layer_\w*?(?P<direction>fwd|wgrad|dgrad)"
)


def read_legacy_gemm(text: str) -> Reading | None:
    """What a name of this grammar says; None if it is not one."""
    first_layer = _FIRST_LAYER.match(text)
    if first_layer is not None:
        direction = "forward" if first_layer.group("direction") == "fwd" else "backward"
        architecture = _ARCHITECTURES[first_layer.group("generation")]
        return Reading(
            inferred={"family": "convolution", "direction": direction, "architecture": architecture}
        )
    match = _NAME.fullmatch(text)
    if match is None:
        return None
    rest = match.group("rest")
    is_convolution = match.group("kind") == "cudnn"
    inferred: dict[str, Any] = {
        "family": "convolution" if is_convolution else "gemm",
        "library": "cudnn" if match.group("library") else None,
        "architecture": _ARCHITECTURES[match.group("generation")],
        "direction": "backward" if "dgrad" in rest or "wgrad" in rest else None,
        "tensor_core": match.group("shape") is not None,
        "mma_shape": _SHAPES.get(match.group("shape") or ""),
        "split_k": "splitK" in rest or None,
        "epilogue": "relu" if "_relu" in rest and not is_convolution else None,
    }
    inferred.update(_types(match))
    inferred.update(_shapes(rest))
    return Reading(inferred=inferred)


def _types(match: re.Match[str]) -> dict[str, str | None]:
    letters = match.group("letters")
    accumulator = letter_type(letters)
    operand = match.group("operand") or (None if letters in ("i", "u") else accumulator)
    output = match.group("output")
    return {
        "accumulator_type": accumulator,
        "operand_type": element_type(operand.partition("x")[0]) if operand else None,
        "output_type": element_type(output.partition("x")[0])
        if output
        else (None if match.group("operand") else accumulator),
        "multiply_type": match.group("multiply"),
    }


def _shapes(rest: str) -> dict[str, Any]:
    tile, stages, layout = _TILE.search(rest), _STAGES.search(rest), _LAYOUT.search(rest)
    shape = tile.group(1) if tile else None
    return {
        "tile": f"{shape}x{stages.group(1)}" if shape and stages else shape,
        "stages": int(stages.group(2)) if stages else None,
        "layout": layout.group(1) if layout else None,
    }
