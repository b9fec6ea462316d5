"""Why a compilation failed, in the compiler's words, and what to do where that is known."""

from __future__ import annotations

import re
from collections.abc import Sequence

from opscope.errors import DependencyError, InputError, OpscopeError
from opscope.toolchain.nvcc.command import Product
from opscope.toolchain.nvcc.messages import Message, error_text
from opscope.toolchain.nvcc.values import Request

__all__ = ["compile_error"]

_NO_MAIN = re.compile(r"undefined reference to \W?main\b|undefined symbol: main$", re.MULTILINE)
_HOST_MISSING = re.compile(
    r"Failed to preprocess host compiler properties|Cannot find (?:the )?compiler|"
    r"^(?:sh: (?:\d+: )?)?(?:\S*/)?(?:gcc|g\+\+|cc|c\+\+|clang\+*)[-.\d]*: (?:No such file|.*not found)",
    re.MULTILINE,
)
_HOST_UNSUPPORTED = re.compile(
    r"unsupported (?:GNU|clang|ICC|Intel|PGI|Microsoft)[^!]*version|unsupported compiler"
)
_HOST_CHOICE = "--nvcc-option=-ccbin=PATH"
# What the compilers say, and what helps.
_REMEDIES: tuple[tuple[str, str], ...] = (
    (
        r"uses too much shared data",
        "A block has 48 KiB of static shared memory; for more declare `extern __shared__`, give the bytes at "
        "the launch and raise cudaFuncAttributeMaxDynamicSharedMemorySize",
    ),
    (
        r"Unresolved extern function|nvlink error\s*: Undefined reference",
        "A device function of another file needs --nvcc-option=-rdc=true, and its file compiled with it",
    ),
    (
        r"not supported on \.target|requires \.target|[Ff]eature .* not supported",
        "The code needs a newer GPU or features of one: --arch sm_90a has those of Hopper alone",
    ),
    (r"no instance of overloaded function \"atomicAdd\"", "atomicAdd of double needs --arch sm_60 or newer"),
    (r"experimental flag '--expt-relaxed-constexpr'", "--nvcc-option=--expt-relaxed-constexpr"),
    (r"extended-lambda|extended lambda", "--nvcc-option=--extended-lambda"),
    (
        r"requires at least C\+\+(\d+)|requires C\+\+(\d+)",
        "--nvcc-option=-std=c++17 or c++20 chooses the language",
    ),
    (r"torch/extension\.h: No such file", "A PyTorch extension: torch.utils.cpp_extension.load compiles it"),
)


def compile_error(request: Request, messages: Sequence[Message], output: str) -> OpscopeError:
    """The error of a compilation that failed.

    Args:
        request: What was compiled.
        messages: What was said.
        output: All of it, for what is not understood.
    """
    said = error_text(messages, output)
    source = request.source.name
    if _HOST_UNSUPPORTED.search(output):
        remedy = f"Choose an older one with {_HOST_CHOICE}, or try --nvcc-option=-allow-unsupported-compiler"
        return DependencyError(_told("the host compiler does not fit this nvcc", said, remedy))
    if _HOST_MISSING.search(output):
        remedy = (
            "Install one (apt install g++, dnf install gcc-c++, conda install gxx), or name yours with "
            f"{_HOST_CHOICE}"
        )
        return DependencyError(_told("nvcc finds no host compiler", said, remedy))
    if request.product is Product.PROGRAM and _NO_MAIN.search(output):
        return InputError(
            f"{source} has no main, so no program can be made of it",
            hint="--emit object makes an object to link, --emit shared a library, --emit nothing looks at "
            "the kernels alone",
        )
    names = ", ".join(target.name for target in request.targets)
    remedy = next((text for pattern, text in _REMEDIES if re.search(pattern, output)), "")
    return InputError(_told(f"{source} does not compile for {names}", said, remedy))


def _told(what: str, said: str, remedy: str) -> str:
    """What happened, the compiler's words in lines of their own, what to do."""
    return "\n".join(filter(None, (f"{what}:", said, remedy)))
