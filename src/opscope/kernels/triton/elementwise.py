"""Operators that treat every element alike: GELU, square, add.

They do a handful of operations for each element that they read and write, so their time is the time to move
the bytes. What counts is that a program (a block of threads) reads whole stretches of memory, 16 bytes per
thread and instruction, and that each thread has several such reads under way at once.
"""

# Kernels are Triton's language, not Python's: constants are upper-case there, arguments have no types.
# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from opscope.errors import InputError
from opscope.kernels.triton.launching import autotuned, check_arguments, launched

# Elements per program and warps per program. A warp has 32 threads, so 512 elements on 4 warps are 4 a
# thread: one 16-byte read of float32. Many small programs beat few large ones on an H200 (8192² float32:
# 130 µs against 134 to 136), and telling the caches to drop what is read once costs 4 %.
CONFIGS = [
    triton.Config({"BLOCK": block}, num_warps=warps)
    for block, warps in (
        (512, 4),
        (1024, 8),
        (1024, 4),
        (4096, 4),
    )
]

# One element per thread: 4 warps of 32 threads.
TEACHING_BLOCK = 128


@triton.jit
def gelu_of(x, TANH: tl.constexpr):
    """GELU of float32 values: x Φ(x), exactly or by the tanh form."""
    if TANH:
        # 0.5 x (1 + tanh u) = x / (1 + exp(-2u)): the same value, with one exponential.
        u = 0.7978845608028654 * (x + 0.044715 * x * x * x)  # sqrt(2/π)
        result = x / (1.0 + tl.exp(-2.0 * u))
    else:
        result = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))  # 1/sqrt(2)
    return result


@triton.jit
def gelu_teaching_kernel(x_ptr, out_ptr, size, TANH: tl.constexpr, BLOCK: tl.constexpr):
    """Each program computes BLOCK elements, one per thread; the last program masks what is past the end."""
    # 64-bit: more than 2**31 elements are allowed.
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < size
    x = tl.load(x_ptr + offsets, mask=inside).to(tl.float32)
    tl.store(out_ptr + offsets, gelu_of(x, TANH).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def gelu_kernel(x_ptr, out_ptr, size, TANH: tl.constexpr, BLOCK: tl.constexpr):
    """Each program computes BLOCK neighboring elements; the last one as in the simple kernel."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    if start + BLOCK <= size:
        # Nothing to mask, so reads are as wide as the pointer's alignment allows, whatever `size` is.
        offsets = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offsets).to(tl.float32)
        tl.store(out_ptr + offsets, gelu_of(x, TANH).to(out_ptr.dtype.element_ty))
    else:
        gelu_teaching_kernel(x_ptr, out_ptr, size, TANH, BLOCK)


@triton.jit
def square_teaching_kernel(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    """Each program squares BLOCK elements, one per thread."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < size
    x = tl.load(x_ptr + offsets, mask=inside).to(tl.float32)
    tl.store(out_ptr + offsets, (x * x).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def square_kernel(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    """Each program squares BLOCK neighboring elements; see `gelu_kernel` for its two branches."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    if start + BLOCK <= size:
        offsets = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offsets).to(tl.float32)
        tl.store(out_ptr + offsets, (x * x).to(out_ptr.dtype.element_ty))
    else:
        square_teaching_kernel(x_ptr, out_ptr, size, BLOCK)


@triton.jit
def add_teaching_kernel(x_ptr, y_ptr, out_ptr, size, BLOCK: tl.constexpr):
    """Each program adds BLOCK elements, one per thread."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < size
    x = tl.load(x_ptr + offsets, mask=inside).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=inside).to(tl.float32)
    tl.store(out_ptr + offsets, (x + y).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, size, BLOCK: tl.constexpr):
    """Each program adds BLOCK neighboring elements; see `gelu_kernel` for its two branches."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    if start + BLOCK <= size:
        offsets = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offsets).to(tl.float32)
        y = tl.load(y_ptr + offsets).to(tl.float32)
        tl.store(out_ptr + offsets, (x + y).to(out_ptr.dtype.element_ty))
    else:
        add_teaching_kernel(x_ptr, y_ptr, out_ptr, size, BLOCK)


_tuned = autotuned(CONFIGS, key=["size"])
_tuned_gelu = autotuned(CONFIGS, key=["size", "TANH"])(gelu_kernel)
_tuned_square = _tuned(square_kernel)
_tuned_add = _tuned(add_kernel)


def gelu(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """GELU of every element, by erf (`"none"`) or by its tanh form (`"tanh"`).

    Raises:
        InputError: Another form, or a tensor that is not contiguous or of another dtype.
    """
    return _launch(_tuned_gelu, x, TANH=_is_tanh(approximate))


def gelu_teaching(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """Like `gelu`, one element per thread."""
    return _launch(gelu_teaching_kernel, x, TANH=_is_tanh(approximate), BLOCK=TEACHING_BLOCK)


def square(x: torch.Tensor) -> torch.Tensor:
    return _launch(_tuned_square, x)


def square_teaching(x: torch.Tensor) -> torch.Tensor:
    """Like `square`, one element per thread."""
    return _launch(square_teaching_kernel, x, BLOCK=TEACHING_BLOCK)


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return _launch(_tuned_add, x, y)


def add_teaching(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Like `add`, one element per thread."""
    return _launch(add_teaching_kernel, x, y, BLOCK=TEACHING_BLOCK)


def _is_tanh(approximate: str) -> bool:
    if approximate not in {"none", "tanh"}:
        raise InputError(f"GELU has no form '{approximate}'", hint="Use none or tanh")
    return approximate == "tanh"


def _launch(kernel: Any, *inputs: torch.Tensor, **constants: Any) -> torch.Tensor:
    """One program for each BLOCK of elements; a BLOCK that is not given is tuned."""
    check_arguments(**{"xyz"[index]: tensor for index, tensor in enumerate(inputs)})
    first = inputs[0]
    if any(tensor.shape != first.shape for tensor in inputs):
        raise InputError(f"shapes differ: {', '.join(str(tuple(each.shape)) for each in inputs)}")
    out, size = torch.empty_like(first), first.numel()
    return launched(
        out, kernel, lambda meta: (triton.cdiv(size, meta["BLOCK"]),), *inputs, out, size, **constants
    )
