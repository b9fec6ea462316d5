"""Procedural names of CUTLASS, and instances of its kernel templates.

`cutlass_80_tensorop_s1688gemm_256x128_16x3_tn_align4` and
`cutlass3x_sm90_tensorop_s64x128x16gemm_f16_f16_f32_f16_…` are documented. Source: NVIDIA/cutlass,
python/cutlass_library/gemm_operation.py and conv2d_operation.py (`procedural_name`, `core_name`,
`extended_name`), media/docs/cpp/profiler.md. NVIDIA's libraries add the architecture.
"""

from __future__ import annotations

import re
from typing import Any

from opscope.provenance.kernel_names.cxx_name import CxxName
from opscope.provenance.kernel_names.decoded_kernel import Reading
from opscope.provenance.kernel_names.element_types import element_type, letter_type

__all__ = ["read_cutlass"]

_TYPE = r"(?:c?f64|c?f32|tf32|c?f16|bf16|e\dm\d|f4_m6|ue\dm\d|f8|f6|f4|[su](?:4|8|16|32)|b1|void)"
_PROCEDURAL = re.compile(
    rf"cutlass(?P<version>3x)?_(?:(?:sm)?(?P<architecture>\d{{2,3}})_)?"
    rf"(?P<class>simt|tensorop|wmma_tensorop|sptensorop|bstensorop)_(?:(?P<output>{_TYPE})_)?"
    rf"(?P<letters>g[cz]|[sdhczi])(?P<shape>\d+x\d+x\d+|\d{{3,6}})?(?P<math>fastaccum|xor|and)?"
    rf"(?P<intermediate>tf32|bf16|f16)?(?P<kind>gemm|spgemm|fprop|dgrad|wgrad|deconv|syrk|syr2k|herk|her2k|trmm|symm|hemm)"
    rf"(?P<variant>(?:_(?:optimized|analytic|fixed_channels|few_channels|planar_complex(?:_array)?|array|grouped|batched|forwardCompat|relu|gather|scatter|strided))*)"
    rf"(?P<types>(?:_{_TYPE})*)(?P<rest>\w*)"
)
_TILE_2X = re.compile(r"_(\d+x\d+)_(\d+)x(\d+)(?=_|$)")
_TILE_3X = re.compile(r"_(\d+x\d+x\d+)_(\d+x\d+x\d+)_(\d+)(?=_|$)")
_LAYOUT = re.compile(r"_([ntch]{2,4}|nhwc|ndhwc|nchw)(?=_)")
_ALIGNMENT = re.compile(r"_align(\d+)")
_FAMILIES = {
    "fprop": "convolution",
    "dgrad": "convolution",
    "wgrad": "convolution",
    "deconv": "convolution",
    "syrk": "rank_update",
    "syr2k": "rank_update",
    "herk": "rank_update",
    "her2k": "rank_update",
    "trmm": "triangular_multiply",
    "symm": "symmetric_multiply",
    "hemm": "symmetric_multiply",
}
_LETTER_SHAPES = {
    "884": "8x8x4",
    "1688": "16x8x8",
    "16816": "16x8x16",
    "16832": "16x8x32",
    "8816": "8x8x16",
    "8832": "8x8x32",
    "161616": "16x16x16",
}
_ARCHITECTURE = re.compile(
    r"(?:arch::|arch4|arch5|::)Sm(\d{2,3})|\bSM(\d{2,3})_|(?<=Mainloop)Sm(\d{2,3})|\dSm(\d{2,3})E"
)
# What an instance of a template is about, in the order in which the words decide.
_TEMPLATES = (
    ("attention", re.compile(r"fmha|FlashAttn|[fF]lash_?[aA]tt|flash::|Attention|Sm\d+FmhaFwd|Mla")),
    ("split_k_reduction", re.compile(r"ReduceSplitK")),
    ("grouped_gemm", re.compile(r"GemmGrouped|GroupProblemShape|GroupedGemm|grouped_gemm|MoeFCGemm")),
    (
        "convolution",
        re.compile(r"ImplicitGemmConvolution|DirectConvolution|ConvUniversal|4conv6kernel|::conv::"),
    ),
    ("depthwise_convolution", re.compile(r"DepthwiseDirect")),
    ("rank_update", re.compile(r"RankK|Rank2K")),
    ("triangular_multiply", re.compile(r"Trmm")),
    ("symmetric_multiply", re.compile(r"Symm")),
    ("gemm", re.compile(r"[gG]emm|CollectiveMma")),
)


def read_cutlass(cxx: CxxName, text: str) -> Reading | None:
    """What a procedural name, or an instance of a template, says; None if it is neither.

    Args:
        cxx: The name, taken apart.
        text: The name as recorded.
    """
    match = _PROCEDURAL.match(cxx.function or "")
    if match is None and cxx.template_arguments:
        match = _PROCEDURAL.match(cxx.template_arguments[0].rpartition("::")[2])
    return _procedural(match) if match is not None else _template(text)


def _procedural(match: re.Match[str]) -> Reading:
    kind, rest, shape = match.group("kind"), match.group("rest"), match.group("shape")
    stated: dict[str, Any] = {
        "library": "cutlass",
        "family": "grouped_gemm"
        if "_grouped" in match.group("variant") + rest
        else _FAMILIES.get(kind, "gemm"),
        "direction": {"fprop": "forward", "dgrad": "backward", "wgrad": "backward"}.get(kind),
        "architecture": f"sm{match.group('architecture')}" if match.group("architecture") else None,
        "tensor_core": match.group("class") != "simt",
        "mma_shape": shape if shape is None or "x" in shape else _LETTER_SHAPES.get(shape),
        "variant": match.group("variant").strip("_") or None,
        "epilogue": "relu" if "_relu" in rest or "_relu" in match.group("variant") else None,
    }
    stated.update(_types(match))
    stated.update(_shapes(rest, is_3x=match.group("version") is not None))
    return Reading(stated)


def _types(match: re.Match[str]) -> dict[str, str | None]:
    """Types by `extended_name`: 2.x names only those unlike the accumulator's, 3.x names all five."""
    accumulator = letter_type(match.group("letters"))
    named = [element_type(part) for part in match.group("types").split("_") if part]
    if match.group("version") and len(named) == 5:
        first, second, summed, _, result = named
        return {
            "operand_type": first if first == second else None,
            "accumulator_type": summed,
            "output_type": result,
        }
    integer = match.group("letters") == "i"
    output = match.group("output")
    return {
        "operand_type": named[0] if named else (None if integer else accumulator),
        "accumulator_type": accumulator,
        "output_type": element_type(output) if output else accumulator,
        "multiply_type": match.group("intermediate"),
    }


def _shapes(rest: str, *, is_3x: bool) -> dict[str, Any]:
    layout, alignment = _LAYOUT.search(rest), _ALIGNMENT.search(rest)
    fields: dict[str, Any] = {
        "layout": layout.group(1) if layout else None,
        "alignment": int(alignment.group(1)) if alignment else None,
    }
    tile = _TILE_3X.search(rest) if is_3x else _TILE_2X.search(rest)
    if tile is not None and is_3x:
        stages = int(tile.group(3))
        fields.update(
            tile=tile.group(1), cluster=tile.group(2), stages=stages or None
        )  # 0: chosen by the builder
    elif tile is not None:
        fields.update(tile=f"{tile.group(1)}x{tile.group(2)}", stages=int(tile.group(3)))
    return fields


def _template(name: str) -> Reading | None:
    text = name[:1000]  # what it is about stands first; the rest are layouts
    family = next((family for family, pattern in _TEMPLATES if pattern.search(text)), None)
    if family is None:
        return None
    found = _ARCHITECTURE.search(text)
    architecture = next((number for number in found.groups() if number), None) if found else None
    direction = None
    if "conv" in family:
        direction = (
            "forward" if "Fprop" in text else "backward" if "Dgrad" in text or "Wgrad" in text else None
        )
    elif family == "attention":
        direction = (
            "backward" if "Bwd" in text or "Backward" in text else "forward" if "Fwd" in text else None
        )
    return Reading(
        {
            "library": "cutlass",
            "family": family,
            "direction": direction,
            "architecture": f"sm{architecture}" if architecture else None,
            "variant": "template",
        }
    )
