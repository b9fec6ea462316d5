"""Kernels of cuDNN: the engines compiled at run time, and the templates in its libraries.

Undocumented: what words the names hold is inferred. In
`cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_…` `f16` also stands for bf16, which recorded
traces show, so no element type is read from it.
"""

from __future__ import annotations

import re
from typing import Any

from opscope.provenance.kernel_names.cxx_name import CxxName
from opscope.provenance.kernel_names.decoded_kernel import Reading
from opscope.provenance.kernel_names.element_types import FLOATING, element_type
from opscope.provenance.kernel_names.words import FamilyRules, direction_of

__all__ = ["read_cudnn"]

_ARCHITECTURE = re.compile(r"_sm(\d+)_")
_TILE = re.compile(r"_(\d+x\d+x\d+)_")
_CLUSTER = re.compile(r"_cga(\d+x\d+x\d+)")
_GENERATED_FAMILIES = FamilyRules("cudnn_generated")
_FUNCTIONS = FamilyRules("cudnn")
_ITS_FUNCTIONS = re.compile(
    r"^(?:fft[12]d_[rc]2[rc]|DSE::|op_generic_tensor|op_tensor_kernel|tensorTransformGeneric|folded|nchw|nhwc|add_tensor_kernel"
    r"|(?:implicit|explicit|precomputed)_convolve|convolve_|convolveNd|dgrad_|wgrad_|transposeWarp|transposeBlock|softmax_[fb]w_small"
    r"|full_reduce_tensor|reduce_tensor|RNN|LSTM_|GRU_|GENERIC_elementWise|elemWiseRNN|persistRNN|calc_bias_diff|Sbar|SBAR_"
    r"|arbitrary_fusion_NHWC|combineScaleBias|finalizeBN|xmma_bn|xmma_implicit|Volta_\w*implicit_gemm|conv2d_precomputed|conv2d_c1_k1"
    r"|applyBatchedGemmBias|applyGemmBias|applyOutDropout|fusedSoftmax|multiHeadAttn|setBatchedGemm|computeBiasGradient"
    r"|memcpy2?D?WithType|(?:ampere|volta|turing|hopper)_lstm|fmha_[fd](?:prop|grad)|fmha_cw|im2col4d"
    r"|xmma(?:__\w+)?::(?:ext|implicit_gemm|gemm::(?:warp|split_k|kernel_w)))"
)
# A multiplication given the traits of a convolution.
_CONVOLVES = re.compile(r"implicit_gemm::|batchnorm::")
_NAMESPACE = re.compile(r"cudnn|cask")


def read_cudnn(cxx: CxxName, text: str) -> Reading | None:
    """What a kernel of cuDNN says; None if the name is not one.

    Args:
        cxx: The name, taken apart; its function is not None.
        text: The name as recorded.
    """
    function = cxx.function or ""
    if function.startswith("cudnn_generated_"):
        return _generated(function)
    if "cublas" in function:
        return None
    is_named = _NAMESPACE.search(text[:400]) is not None
    if not is_named and not _ITS_FUNCTIONS.match(function):
        return None
    family = _FUNCTIONS.find(function)
    if family is None:
        return None
    inferred: dict[str, Any] = {"direction": direction_of(function)}
    inferred["family"] = family
    if family == "fft" and (is_named or function.startswith("DSE::")):
        inferred.update(family="convolution", variant="fft")  # cuDNN transforms only to convolve
    if family == "gemm" and _CONVOLVES.search(text[:500]):
        inferred.update(family="convolution", direction=direction_of(text[:300]))
    inferred["operand_type"] = _operand(cxx)
    return Reading({"library": "cudnn"} if is_named else {}, inferred)


def _operand(cxx: CxxName) -> str | None:
    """The one floating type that leads the template arguments; None where several types take part."""
    types = [kind for argument in cxx.template_arguments[:4] if (kind := element_type(argument)) is not None]
    if not types or types[0] not in FLOATING:
        return None
    data = set(types) - {"s32", "s64", "bool"}  # indices and flags
    return types[0] if len(data) == 1 else None


def _generated(function: str) -> Reading:
    inferred: dict[str, Any] = {"direction": direction_of(function)}
    inferred["family"] = _GENERATED_FAMILIES.find(function)
    architecture, tile, cluster = (pattern.search(function) for pattern in (_ARCHITECTURE, _TILE, _CLUSTER))
    stated: dict[str, Any] = {
        "library": "cudnn",
        "architecture": f"sm{architecture.group(1)}" if architecture else None,
    }
    if "wgmma" in function or "_wmma" in function or "_hmma" in function:
        inferred["tensor_core"] = True
    inferred["tile"] = tile.group(1) if tile else None
    inferred["cluster"] = cluster.group(1) if cluster else None
    return Reading(stated, inferred)
