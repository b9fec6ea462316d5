"""Operators that treat every element alike: GELU, square, add.

They do a handful of operations for each element that they read and write, so their time is the time to move
the bytes, and they are one kernel, which is compiled for each of them. What counts is that a program (a block
of threads) reads whole stretches of memory, 16 bytes per thread and instruction, and that each thread has
several such reads under way at once.
"""

# Kernels are Triton's language, not Python's: constants are upper-case there, arguments have no types.
# ruff: noqa: N803, PLR0917
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from functools import partial

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
    for block, warps in ((512, 4), (1024, 8), (1024, 4), (4096, 4))
]

# One element per thread: 4 warps of 32 threads.
TEACHING_BLOCK = 128


@triton.jit
def applied(x, y, OPERATOR: tl.constexpr):
    """The operator's result for float32 values; what takes one operand leaves y alone."""
    if OPERATOR == "gelu_tanh":
        # 0.5 x (1 + tanh u) = x / (1 + exp(-2u)): the same value, with one exponential.
        u = 0.7978845608028654 * (x + 0.044715 * x * x * x)  # sqrt(2/π)
        result = x / (1.0 + tl.exp(-2.0 * u))
    elif OPERATOR == "gelu_none":
        result = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))  # 1/sqrt(2)
    elif OPERATOR == "square":
        result = x * x
    else:
        result = x + y
    return result


@triton.jit
def teaching_kernel(x_ptr, y_ptr, out_ptr, size, OPERATOR: tl.constexpr, BLOCK: tl.constexpr):
    """Each program computes BLOCK elements, one per thread; the last program masks what is past the end."""
    # 64-bit: more than 2**31 elements are allowed.
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < size
    x = tl.load(x_ptr + offsets, mask=inside).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=inside).to(tl.float32) if OPERATOR == "add" else x
    tl.store(out_ptr + offsets, applied(x, y, OPERATOR).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def elementwise_kernel(x_ptr, y_ptr, out_ptr, size, OPERATOR: tl.constexpr, BLOCK: tl.constexpr):
    """Each program computes BLOCK neighboring elements; the last one as in the simple kernel."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    if start + BLOCK <= size:
        # Nothing to mask, so reads are as wide as the pointer's alignment allows, whatever `size` is.
        offsets = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offsets).to(tl.float32)
        y = tl.load(y_ptr + offsets).to(tl.float32) if OPERATOR == "add" else x
        tl.store(out_ptr + offsets, applied(x, y, OPERATOR).to(out_ptr.dtype.element_ty))
    else:
        teaching_kernel(x_ptr, y_ptr, out_ptr, size, OPERATOR, BLOCK)


_tuned = autotuned(elementwise_kernel, CONFIGS, key=["size", "OPERATOR"])


def gelu(x: torch.Tensor, approximate: str = "none", *, teaching: bool = False) -> torch.Tensor:
    """GELU of every element, by erf (`"none"`) or by its tanh form (`"tanh"`)."""
    if approximate not in {"none", "tanh"}:
        raise InputError(f"GELU has no form '{approximate}'", hint="Use none or tanh")
    return _launched(f"gelu_{approximate}", x, teaching=teaching)


def square(x: torch.Tensor, *, teaching: bool = False) -> torch.Tensor:
    return _launched("square", x, teaching=teaching)


def add(x: torch.Tensor, y: torch.Tensor, *, teaching: bool = False) -> torch.Tensor:
    return _launched("add", x, y, teaching=teaching)


# The same by the kernel to learn from: one element per thread.
gelu_teaching, square_teaching, add_teaching = (partial(one, teaching=True) for one in (gelu, square, add))


def _launched(operator: str, *inputs: torch.Tensor, teaching: bool) -> torch.Tensor:
    """One program for each BLOCK of elements; that of the good kernel is tuned."""
    check_arguments(**{"xy"[index]: tensor for index, tensor in enumerate(inputs)})
    first = inputs[0]
    if any(tensor.shape != first.shape for tensor in inputs):
        raise InputError(f"shapes differ: {', '.join(str(tuple(each.shape)) for each in inputs)}")
    out, size = torch.empty_like(first), first.numel()
    kernel, constants = (teaching_kernel, {"BLOCK": TEACHING_BLOCK}) if teaching else (_tuned, {})
    return launched(
        out,
        kernel,
        lambda meta: (triton.cdiv(size, meta["BLOCK"]),),
        *(first, inputs[-1], out, size),
        OPERATOR=operator,
        **constants,
    )
