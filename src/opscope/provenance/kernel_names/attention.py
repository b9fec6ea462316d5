"""Kernels of FlashAttention, of the memory-efficient attention and of the inference engines' attention.

Source: pytorch_flash / Dao-AILab flash-attention csrc/flash_attn/src/kernel_traits.h
(`Flash_fwd_kernel_traits<head dimension, rows of a block, columns of a block, warps, …, element>`), and the
generator of pytorch/aten/src/ATen/native/transformers/cuda/mem_eff_attention/kernels
(`fmha_cutlassF_<type>_<aligned>_<queries>x <keys>_<where>_sm<number>`). Other engines' names are observed.
"""

from __future__ import annotations

import re
from typing import Any

from opscope.provenance.kernel_names.cxx_name import CxxName
from opscope.provenance.kernel_names.decoded_kernel import Reading
from opscope.provenance.kernel_names.element_types import element_type
from opscope.provenance.kernel_names.libraries import library_of_namespace
from opscope.provenance.kernel_names.words import FamilyRules, direction_of

__all__ = ["read_attention"]

_FLASH_TRAITS = re.compile(
    r"Flash_(?:fwd|bwd)_kernel_traits<\(?(?:int\))?(?P<head>\d+), (?:\(int\))?(?P<rows>\d+)"
    r", (?:\(int\))?(?P<columns>\d+)"
    r"[^<>]*?, (?P<element>(?:cutlass::)?(?:half_t|bfloat16_t|float_e[45]m[23]_t))\b"
)
_MEMORY_EFFICIENT = re.compile(
    r"fmha_cutlass(?P<pass>[FB])_(?P<element>f32|f16|bf16)_(?P<aligned>aligned|notaligned)_(?P<tile>\d+x\d+)"
    r"(?:_k(?P<head>\d+))?(?P<words>\w*?)_sm(?P<architecture>\d+)"
)
_MEMORY_EFFICIENT_TEMPLATE = re.compile(
    r"AttentionKernel<(?P<element>[\w:]+), [\w:]*?Sm(?P<architecture>\d+)"
)
_CUDNN = re.compile(r"cudnn|^fmha_(?:fprop|dgrad|cw)")
_FLASH = re.compile(
    r"\bflash_(?:fwd|bwd)_\w*kernel|pytorch_flash::|FlashAttn(?:Fwd|Bwd)|\bflash::|FlashAttnFwdCombine|fmha_v2_flash|flash_attn"
)
_OTHERS = FamilyRules("attention")


def read_attention(cxx: CxxName, text: str) -> Reading | None:
    """What an attention kernel says; None if the name names none.

    Args:
        cxx: The name, taken apart; its function is not None.
        text: The name as recorded.
    """
    function = cxx.function or ""
    memory_efficient = _MEMORY_EFFICIENT.match(function)
    if memory_efficient is not None:
        return _memory_efficient(memory_efficient)
    if _CUDNN.search(function):
        return None  # told by the grammar of cuDNN
    head = text[:600]
    if "AttentionKernel<" in head or "AttentionBackwardKernel<" in head:
        return _memory_efficient_template(head)
    if _FLASH.search(function) or _FLASH.search(head):
        return _flash(function, head)
    family = _OTHERS.find(function)
    if family is None:
        return None
    stated = {"library": library_of_namespace(function)}
    return Reading(stated, {"family": family, "direction": direction_of(function)})


def _memory_efficient(match: re.Match[str]) -> Reading:
    stated: dict[str, Any] = {
        "family": "attention_mem_efficient",
        "direction": "forward" if match.group("pass") == "F" else "backward",
        "operand_type": match.group("element"),
        "tile": match.group("tile"),
        "architecture": f"sm{match.group('architecture')}",
        "variant": "_".join(filter(None, (match.group("aligned"), match.group("words").strip("_")))),
    }
    head = match.group("head")
    if head is not None and int(head) < 65536:  # 65536: no limit
        stated["head_dimension"] = int(head)
    return Reading(stated)


def _memory_efficient_template(text: str) -> Reading:
    found = _MEMORY_EFFICIENT_TEMPLATE.search(text)
    stated: dict[str, Any] = {
        "family": "attention_mem_efficient",
        "direction": "backward" if "Backward" in text or "attention_kernel_backward" in text else "forward",
    }
    if found is not None:
        stated["operand_type"] = element_type(found.group("element"))
        stated["architecture"] = f"sm{found.group('architecture')}"
    return Reading(stated)


def _flash(function: str, text: str) -> Reading:
    stated: dict[str, Any] = {"family": "attention_flash", "direction": _flash_direction(function, text)}
    traits = _FLASH_TRAITS.search(text)
    if traits is not None:
        stated.update(
            head_dimension=int(traits.group("head")),
            tile=f"{traits.group('rows')}x{traits.group('columns')}",
            operand_type=element_type(traits.group("element")),
            tensor_core=True,
        )
    return Reading(stated)


def _flash_direction(function: str, text: str) -> str | None:
    if "flash_bwd" in function or "FlashAttnBwd" in text or "Bwd" in function:
        return "backward"
    return "forward" if "flash_fwd" in function or "FlashAttnFwd" in text else direction_of(function)
