"""What a preprocessor condition comes to in a CUDA build for Linux: true, false, or None where builds differ.

Only the few macros are known that tell such a build from others (ROCm, a build without cuDNN); all else is
undecided, and both branches count as code.
"""

from __future__ import annotations

import re
from functools import lru_cache

__all__ = ["evaluate"]

_KNOWN = {
    "USE_ROCM": False,
    "USE_ROCM_CK_GEMM": False,
    "USE_ROCM_CK_SDPA": False,
    "__HIPCC__": False,
    "__HIP_PLATFORM_AMD__": False,
    "__HIP_PLATFORM_HCC__": False,
    "__HIP_DEVICE_COMPILE__": False,
    # Of the ATen/Config.h and ATen/cuda/CUDAConfig.h in the wheels for x86-64.
    "AT_ROCM_ENABLED": False,
    "AT_CUDNN_ENABLED": True,
    "AT_MAGMA_ENABLED": True,
    "AT_MKL_ENABLED": True,
    "AT_MKLDNN_ENABLED": True,
    "AT_MKLDNN_ACL_ENABLED": False,
    "AT_POCKETFFT_ENABLED": False,
    "AT_NNPACK_ENABLED": True,
    "AT_CUSPARSELT_ENABLED": True,
    "AT_BUILD_WITH_BLAS": True,
    "AT_BUILD_WITH_LAPACK": True,
    "AT_USE_JITERATOR": True,
    "USE_CUDA": True,
    "USE_LINALG_SOLVER": True,
    "USE_FLASH_ATTENTION": True,
    "USE_MEM_EFF_ATTENTION": True,
    "USE_FBGEMM": True,
    "USE_C10D_NCCL": True,
    "_WIN32": False,
    "_MSC_VER": False,
    "__APPLE__": False,
    "C10_MOBILE": False,
    "FBCODE_CAFFE2": False,
    "__ANDROID__": False,
}
# Tested by value, never by `#ifdef`: whether they are defined says nothing.
_CALLED = frozenset(name for name in _KNOWN if name.startswith("AT_"))
_TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.']*|&&|\|\||[!=<>]=|[()!<>]|\S")
_COMPARISONS = frozenset(("==", "!=", "<", ">", "<=", ">=", "+", "-", "*", "/", "%", "?", ":", "&", "|"))
_MAXIMAL_DEPTH = 40


@lru_cache(maxsize=4096)
def evaluate(condition: str) -> bool | None:
    """The value of the text after `#if`, or None if it depends on the build or cannot be read."""
    tokens = _TOKEN.findall(condition)
    if not tokens:
        return None
    value, position = _either(tokens, 0, 0)
    return value if position == len(tokens) else None


def _either(tokens: list[str], position: int, depth: int) -> tuple[bool | None, int]:
    value, position = _both(tokens, position, depth)
    while position < len(tokens) and tokens[position] == "||":
        other, position = _both(tokens, position + 1, depth)
        value = True if value or other else None if None in (value, other) else False
    return value, position


def _both(tokens: list[str], position: int, depth: int) -> tuple[bool | None, int]:
    value, position = _compared(tokens, position, depth)
    while position < len(tokens) and tokens[position] == "&&":
        other, position = _compared(tokens, position + 1, depth)
        value = False if False in (value, other) else None if None in (value, other) else True
    return value, position


def _compared(tokens: list[str], position: int, depth: int) -> tuple[bool | None, int]:
    """A term; comparisons and arithmetic are not computed."""
    value, position = _term(tokens, position, depth)
    while position < len(tokens) and tokens[position] in _COMPARISONS:
        _, position = _term(tokens, position + 1, depth)
        value = None
    return value, position


def _term(tokens: list[str], position: int, depth: int) -> tuple[bool | None, int]:
    if position >= len(tokens) or depth > _MAXIMAL_DEPTH:
        return None, len(tokens) + 1
    token = tokens[position]
    if token == "!":
        value, position = _term(tokens, position + 1, depth + 1)
        return (None if value is None else not value), position
    if token == "(":
        value, position = _either(tokens, position + 1, depth + 1)
        closed = position < len(tokens) and tokens[position] == ")"
        return value, position + 1 if closed else len(tokens) + 1
    if token == "defined":
        return _defined(tokens, position + 1)
    if token[0].isdigit():
        return _number(token), position + 1
    return _macro(tokens, position)


def _number(token: str) -> bool | None:
    return token.rstrip("uUlL") != "0" if token.rstrip("uUlL").isdigit() else None


def _defined(tokens: list[str], position: int) -> tuple[bool | None, int]:
    is_bracketed = tokens[position : position + 1] == ["("]
    names = tokens[position + is_bracketed : position + is_bracketed + 1]
    name = names[0] if names else ""
    value = None if name in _CALLED else _KNOWN.get(name)
    return value, position + 1 + 2 * is_bracketed


def _macro(tokens: list[str], position: int) -> tuple[bool | None, int]:
    """A macro's value; of a call only `NAME()` is known, other arguments are skipped."""
    name = tokens[position]
    value = _KNOWN.get(name)
    if name == "true":
        return True, position + 1
    if name == "false":
        return False, position + 1
    if tokens[position + 1 : position + 2] != ["("]:
        return value, position + 1
    if tokens[position + 2 : position + 3] == [")"]:
        return value, position + 3
    depth, position = 1, position + 2
    while position < len(tokens) and depth:
        depth += {"(": 1, ")": -1}.get(tokens[position], 0)
        position += 1
    return None, position
