"""The code that compilers make of an implementation, for people to read: PTX, machine code, Triton's forms.

The function is called, and what that call launches is looked up: Triton kernels where Triton keeps them,
kernels of CUDA extensions in the libraries this process has loaded. Importing this module imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from opscope.errors import InputError, MeasurementError
from opscope.kernels.disassembly import (
    cubin_sass,
    kernel_libraries,
    library_ptx,
    library_sass,
    library_symbols,
)
from opscope.kernels.launches import Launches, TritonKernel, observe, observe_compilation
from opscope.kernels.symbols import short_name
from opscope.text_enum import TextEnum

__all__ = ["CodeKind", "CodeText", "generated_code"]


class CodeKind(TextEnum):
    """What to show of an implementation."""

    PTX = "ptx"  # NVIDIA's virtual instruction set
    SASS = "sass"  # the GPU's own instructions
    TRITON = (
        "triton"  # source and intermediate forms of Triton kernels, or the code that torch.compile writes
    )


class CodeText(NamedTuple):
    """One text: what it is, in which language (for highlighting), and itself."""

    title: str
    language: str
    text: str


def generated_code(kind: str, fn: Callable[..., object], inputs: Sequence[Any]) -> list[CodeText]:
    """The code of each kernel that a call of `fn` launches, in order of their launches.

    A kernel whose code cannot be had, such as one of PyTorch's own, has a text that says so.

    Args:
        kind: A CodeKind, or its value.
        fn: Called several times with `inputs`. For `CodeKind.TRITON`, all that torch.compile has compiled in
            this process is forgotten, and compiled again at its next call.
        inputs: Its arguments.

    Raises:
        InputError: There is no such kind of code.
        DependencyError: cuobjdump is missing.
        MeasurementError: The call makes no code of that kind; the text says what it launches.
    """
    try:
        wanted = CodeKind(kind)
    except ValueError:
        kinds = ", ".join(str(one) for one in CodeKind)
        raise InputError(f"'{kind}' is no kind of generated code", hint=f"Choose one of {kinds}") from None
    if wanted is CodeKind.TRITON:
        return _triton_code(fn, inputs)
    return _kernel_code(wanted, observe(fn, inputs))


def _triton_code(fn: Callable[..., object], inputs: Sequence[Any]) -> list[CodeText]:
    launches = observe(fn, inputs)
    texts = [
        text for kernel in launches.triton if kernel.source is not None for text in _triton_texts(kernel)
    ]
    graphs = observe_compilation(fn, inputs)
    texts += [
        CodeText(f"torch.compile: graph {number} of {len(graphs)}", "python", graph)
        for number, graph in enumerate(graphs, 1)
    ]
    if not texts:
        raise MeasurementError(
            "this call launches no compiled Triton kernel, and torch.compile writes nothing for it",
            hint="A Triton kernel in the interpreter is not compiled; other kernels have ptx and sass",
        )
    return texts


def _triton_texts(kernel: TritonKernel) -> list[CodeText]:
    texts = [CodeText(f"{kernel.name}: source", "python", kernel.source or "")]
    for form, title in (("ttir", "Triton IR"), ("ttgir", "Triton GPU IR")):
        text = kernel.forms.get(form)
        if isinstance(text, str):
            texts.append(CodeText(f"{kernel.name}: {title}", "mlir", text))
    return texts


def _kernel_code(kind: CodeKind, launches: Launches) -> list[CodeText]:
    texts = [text for kernel in launches.triton if (text := _compiled_text(kind, kernel)) is not None]
    from_triton = {kernel.name for kernel in launches.triton}
    others = [name for name in launches.kernels if name not in from_triton]
    found = _library_code(kind, others) if others else {}
    if not texts and not found:
        raise MeasurementError(*_nothing_found(kind, others))
    return texts + [
        CodeText(
            short_name(name), str(kind) if name in found else "text", found.get(name, _not_searched(kind))
        )
        for name in others
    ]


def _compiled_text(kind: CodeKind, kernel: TritonKernel) -> CodeText | None:
    title = f"{kernel.name} (Triton)"
    ptx, cubin = kernel.forms.get("ptx"), kernel.forms.get("cubin")
    if kind is CodeKind.PTX and isinstance(ptx, str):
        return CodeText(title, "ptx", ptx)
    if kind is CodeKind.SASS and isinstance(cubin, bytes):
        return CodeText(title, "sass", cubin_sass(cubin))
    return None


def _library_code(kind: CodeKind, names: Sequence[str]) -> dict[str, str]:
    """Code of kernels in this process's libraries, by name; names that none of them holds are missing."""
    dump = library_ptx if kind is CodeKind.PTX else library_sass
    code: dict[str, str] = {}
    for library in kernel_libraries():
        symbols = library_symbols(library)
        wanted = {symbols[name]: name for name in names if name in symbols and name not in code}
        if wanted:
            code |= {wanted[symbol]: text for symbol, text in dump(library, list(wanted)).items()}
    return code


def _not_searched(kind: CodeKind) -> str:
    return f"no extension's library holds its {kind}; those of PyTorch and NVIDIA are not searched"


def _nothing_found(kind: CodeKind, kernels: Sequence[str]) -> tuple[str]:
    if not kernels:
        return (f"there is no {kind} to show: this call launches no kernel on a GPU",)
    launched = ", ".join(short_name(name) for name in kernels)
    return (f"there is no {kind} to show of what this call launches ({launched}): {_not_searched(kind)}",)
