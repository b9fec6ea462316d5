"""Matrix product of M×K by K×N: tensor cores, TF32 beside float32, and one output element per thread."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from opscope.benchmarking.check import default_tolerance
from opscope.benchmarking.limits import float32_products
from opscope.benchmarking.problem import Implementation, Problem
from opscope.benchmarking.suite import (
    Settings,
    Suite,
    by_torch,
    cuda,
    problem_of,
    triton,
)
from opscope.errors import MeasurementError
from opscope.workloads.runtime import require_torch

# TF32 keeps 10 bits of the mantissa of float32 operands, as many as float16 has.
_TF32_TOLERANCE = default_tolerance("float16")


def _make(settings: Settings) -> Problem:
    m, n, k = settings.shape
    is_float32 = settings.dtype == "float32"
    return problem_of(
        "matmul",
        settings,
        (
            by_torch("torch", require_torch().matmul, "torch.matmul(a, b)"),
            *((_torch_tf32(settings),) if is_float32 else ()),
            _triton(settings, "Triton, autotuned tiles", name="triton"),
            *((_triton_tf32(settings),) if is_float32 else ()),
            cuda(settings, "matmul", "CUDA C++, one output element per thread", teaching=True),
            _triton(settings, "Triton, textbook tiles", name="triton_teaching", teaching=True),
        ),
        expected=operator.matmul,
        shapes=lambda m, n, k: ((m, k), (k, n)),
        output_shape=(m, n),
        small_shape=(70, 90, 50),  # no multiples of a tile
        flop_count=2 * m * n * k,
        matrix_ceiling=f"matrix_{settings.dtype}",
    )


def _torch_tf32(settings: Settings) -> Implementation:
    torch = require_torch()

    def product(a: Any, b: Any) -> Any:
        with float32_products("tf32"):
            return torch.matmul(a, b)

    def build() -> Callable[..., Any]:
        _check_tf32(torch, settings)
        return product

    note = "torch.matmul(a, b) with TF32 allowed"
    implementation = by_torch("torch_tf32", product, note, tolerance=_TF32_TOLERANCE)
    return replace(implementation, build=build, matrix_ceiling="matrix_tf32")


def _triton_tf32(settings: Settings) -> Implementation:
    note = "Triton, autotuned tiles, TF32"
    implementation = _triton(settings, note, name="triton_tf32", tolerance=_TF32_TOLERANCE, precision="tf32")
    build_kernel = implementation.build

    def build() -> Callable[..., Any]:
        if settings.is_cuda:
            _check_tf32(require_torch(), settings)
        return build_kernel()

    return replace(implementation, build=build, matrix_ceiling="matrix_tf32")


def _triton(settings: Settings, note: str, **options: Any) -> Implementation:
    implementation = triton(settings, "matmul", note, **options)
    if settings.is_cuda or settings.dtype != "bfloat16":
        return implementation
    return replace(implementation, build=_refuse_interpreted_bfloat16)


def _refuse_interpreted_bfloat16() -> Callable[..., Any]:
    # NumPy has no bfloat16: the interpreter keeps its bits in integers, and `tl.dot` multiplies those
    # (seen in Triton 3.2, 3.6 and 3.9).
    raise MeasurementError(
        "Triton's interpreter cannot multiply bfloat16 matrices", hint="Use --dtype float16 or float32"
    )


def _check_tf32(torch: Any, settings: Settings) -> None:
    has_it = settings.is_cuda and torch.cuda.get_device_capability(settings.device) >= (8, 0)
    if not has_it:
        raise MeasurementError("TF32 needs a CUDA device of compute capability 8.0 or newer")


SUITE = Suite(
    name="matmul",
    shape_names=("M", "N", "K"),
    cuda_shape=(4096, 4096, 4096),
    cpu_shape=(512, 512, 512),
    implementations=("torch", "torch_tf32", "triton", "triton_tf32", "cuda_teaching", "triton_teaching"),
    make=_make,
    cuda_dtype="bfloat16",
)
