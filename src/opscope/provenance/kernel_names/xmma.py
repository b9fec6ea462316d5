"""Names of NVIDIA's xmma kernels, `sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x64x8_…_ffma_…`.

Undocumented: everything is inferred. The type groups read as operands and output, multiplied type and
accumulator, epilogue; the reading agrees with recorded operand types (`tf32f32_tf32f32_f32`,
`bf16bf16_bf16f32_f32`, `f32f32_tf32f32_f32`, `e4m3e5m2bf16_e4m3e5m2f32_f32`). `ff` and `ffma` stand for plain
multiply-adds.
"""

from __future__ import annotations

import re
from typing import Any

from opscope.provenance.kernel_names.decoded_kernel import Reading
from opscope.provenance.kernel_names.element_types import element_type

__all__ = ["read_xmma"]

_TYPE = r"(?:c?b?f\d+|tf32|ue\dm\d|e\dm\d|c?[isu]\d+)"
_NAME = re.compile(
    rf"(?:\w+::)?sm(?P<architecture>\d+)_xmma_(?P<kind>[a-z0-9_]+?)"
    rf"_(?P<outer>{_TYPE}{{1,3}})_(?P<inner>{_TYPE}{{1,3}})_(?P<epilogue>{_TYPE})_(?P<rest>\w+)"
)
_UNTYPED = re.compile(r"(?:\w+::)?sm(?P<architecture>\d+)_xmma_(?P<kind>gemm)_(?P<rest>\w+)")
_ONE_TYPE = re.compile(_TYPE)
_KINDS = (
    ("depthwise", "depthwise_convolution"),
    ("implicit_gemm", "convolution"),
    ("convolution", "convolution"),
    ("image_first_layer", "convolution"),
    ("syr", "rank_update"),
    ("her", "rank_update"),
    ("trmm", "triangular_multiply"),
    ("symm", "symmetric_multiply"),
    ("hemm", "symmetric_multiply"),
    ("trsm", "triangular_solve"),
    ("pooling", "pooling"),
    ("bn", "batch_norm"),
)
_PARTS = {
    "tile": re.compile(r"tilesize(\d+x\d+x\d+)"),
    "stages": re.compile(r"_stage(\d+)"),
    "cluster": re.compile(r"cgasize(\d+x\d+x\d+)"),
    "mma_shape": re.compile(r"_tensor(\d+x\d+x\d+)"),
    "epilogue": re.compile(r"_(bias(?:_\w+?)??_(?:d?gelu|d?relu)|d?gelu|d?relu|bias|bgrad[ab])(?=_)"),
    "alignment": re.compile(r"_aligna(\d+)"),
}
_LAYOUT = re.compile(r"([ntc]{2})_([ntc])_|(nhwckrsc|nchwkcrs|nchwkrsc)_(nhwc|nchw)")


def read_xmma(text: str) -> Reading | None:
    """What a name of this grammar says; None if it is not one."""
    match = _NAME.match(text) or _UNTYPED.match(text)
    if match is None:
        return None
    groups = match.groupdict()
    kind, rest = groups["kind"], groups["rest"]
    family = _family(kind)
    if family is None:
        return None
    inferred: dict[str, Any] = {"family": family, "direction": _direction(kind), "library": _library(rest)}
    for name, pattern in _PARTS.items():
        found = pattern.search(rest)
        if found is not None:
            inferred[name] = int(found.group(1)) if name in ("stages", "alignment") else found.group(1)
    inferred["layout"] = _layout(rest)
    inferred["split_k"] = "split_k" in rest or (None if "segment_k_on" in rest else False)
    inferred["tensor_core"] = _tensor_core(rest, groups["architecture"])
    if "outer" in groups:
        inferred.update(_types(groups["outer"], groups["inner"]))
    return Reading({"architecture": f"sm{groups['architecture']}"}, inferred)


def _family(kind: str) -> str | None:
    if kind.startswith("gemm"):
        return "gemm"
    return next((family for word, family in _KINDS if word in kind), None)


def _direction(kind: str) -> str | None:
    if kind.startswith("fprop") or "_fprop" in kind:
        return "forward"
    return "backward" if "dgrad" in kind or "wgrad" in kind else None


def _library(rest: str) -> str | None:
    """The suffix says who had it built; cuDNN ships some of cuBLAS's."""
    return (
        "cudnn"
        if rest.endswith(("_cudnn", "_cudnn_infer", "_cudnn_train"))
        else ("cublas" if rest.endswith("_cublas") else None)
    )


def _layout(rest: str) -> str | None:
    found = _LAYOUT.match(rest)
    if found is None:
        return None
    return found.group(1) or f"{found.group(3)}_{found.group(4)}"


def _tensor_core(rest: str, architecture: str) -> bool | None:
    """Matrix instructions are named; Hopper's warp-group kernels are built on them."""
    if re.search(r"(?:^|_)ff(?:ma)?(?:_|$)", rest):
        return False
    if "_tensor" in rest or "_hmma" in rest or ("warpgroupsize" in rest and architecture == "90"):
        return True
    return None


def _types(outer: str, inner: str) -> dict[str, str | None]:
    """Operand, multiplied, accumulated and output type from `<operands><output>_<operands><accumulator>`."""
    memory = [element_type(part) for part in _ONE_TYPE.findall(outer)]
    compute = [element_type(part) for part in _ONE_TYPE.findall(inner)]
    operand = memory[0] if len(memory) == 2 else None
    multiplied = compute[0] if len(compute) == 2 else None
    return {
        "operand_type": operand,
        "output_type": memory[-1] if len(memory) >= 2 else None,
        "accumulator_type": compute[-1],
        "multiply_type": multiplied if operand is not None and multiplied != operand else None,
    }
