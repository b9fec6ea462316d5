"""The suites `opscope bench NAME` knows: operators of the guides, each solved in several ways.

Importing this module does not import torch.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from opscope.benchmarking.check import default_tolerance
from opscope.benchmarking.limits import float32_products
from opscope.benchmarking.problem import Implementation
from opscope.benchmarking.suite import Settings, Suite, by_torch, compiled, cuda, only_if, triton
from opscope.errors import InputError, MeasurementError
from opscope.workloads.runtime import require_torch

_Solutions = tuple[Callable[..., Any], Sequence[Implementation]]  # what is right, and the ways to it

# A kernel in CUDA C++ and in Triton, each beside its simple version.
_HAND_WRITTEN = ("cuda", "cuda_teaching", "triton", "triton_teaching")
_ELEMENTWISE_NOTES = (
    "CUDA C++, 16-byte accesses",
    "CUDA C++, one element per thread",
    "Triton, autotuned",
    "Triton, one element per thread",
)
_ROWWISE_NOTES = (
    "CUDA C++, rows in registers",
    "CUDA C++, textbook form",
    "Triton, rows in registers, autotuned",
    "Triton, each row read three times",
)
# Small shapes for such kernels: one full program and a part of one; rows that are no power of two, and more
# than one program takes at a time.
_ELEMENTWISE_SMALL_SHAPE, _ROWWISE_SMALL_SHAPE = (33, 129), (9, 300)


def _hand_written(
    settings: Settings, kernel: str, notes: Sequence[str], module: str | None = None, **constants: Any
) -> tuple[Implementation, ...]:
    return (
        cuda(settings, kernel, notes[0], **constants),
        cuda(settings, kernel, notes[1], teaching=True, **constants),
        triton(settings, kernel, notes[2], module=module, **constants),
        triton(settings, kernel, notes[3], module=module, teaching=True, **constants),
    )


def _gelu(settings: Settings) -> _Solutions:
    approximate = settings.parameters["approximate"]
    naive = _gelu_tanh if approximate == "tanh" else _gelu_erf
    by_operator = functools.partial(require_torch().nn.functional.gelu, approximate=approximate)
    return naive, (
        by_torch("naive", naive, "the formula, one operator after another"),
        by_torch("torch", by_operator, "torch.nn.functional.gelu"),
        *_hand_written(settings, "gelu", _ELEMENTWISE_NOTES, "elementwise", approximate=approximate),
        compiled(naive),
    )


def _gelu_tanh(x: Any) -> Any:
    return 0.5 * x * (1 + (math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)).tanh())


def _gelu_erf(x: Any) -> Any:
    return 0.5 * x * (1 + (x * math.sqrt(0.5)).erf())


def _square(settings: Settings) -> _Solutions:
    def multiplied(x: Any) -> Any:
        return x * x

    return multiplied, (
        by_torch("torch", require_torch().square, "torch.square(x)"),
        by_torch("multiply", multiplied, "x * x"),
        by_torch("power", lambda x: x**2, "x ** 2"),
        *_hand_written(settings, "square", _ELEMENTWISE_NOTES, "elementwise"),
    )


def _add(settings: Settings) -> _Solutions:
    return operator.add, (
        by_torch("torch", require_torch().add, "torch.add(x, y)"),
        *_hand_written(settings, "add", _ELEMENTWISE_NOTES, "elementwise"),
    )


def _softmax(settings: Settings) -> _Solutions:
    by_operator = functools.partial(require_torch().softmax, dim=-1)
    return _softmax_naive, (
        by_torch("naive", _softmax_naive, "largest, difference, exp, sum, quotient"),
        by_torch("torch", by_operator, "torch.softmax(x, dim=-1)"),
        *_hand_written(settings, "softmax", _ROWWISE_NOTES),
        compiled(_softmax_naive),
    )


def _softmax_naive(x: Any) -> Any:
    exponentials = (x - x.amax(dim=-1, keepdim=True)).exp()
    return exponentials / exponentials.sum(dim=-1, keepdim=True)


def _layer_norm(settings: Settings) -> _Solutions:
    torch, eps = require_torch(), 1e-5

    def by_operator(x: Any, weight: Any, bias: Any) -> Any:
        return torch.nn.functional.layer_norm(x, (x.shape[-1],), weight, bias, eps)

    naive = functools.partial(_layer_norm_naive, eps=eps)
    return naive, (
        by_torch("naive", naive, "mean, variance, scale, one operator after another"),
        by_torch("torch", by_operator, "torch.nn.functional.layer_norm"),
        *_hand_written(settings, "layer_norm", _ROWWISE_NOTES, eps=eps),
        compiled(_layer_norm_naive, eps=eps),
    )


def _layer_norm_naive(x: Any, weight: Any, bias: Any, *, eps: float) -> Any:
    centered = x - x.mean(dim=-1, keepdim=True)
    variance = (centered * centered).mean(dim=-1, keepdim=True)
    return centered / (variance + eps).sqrt() * weight + bias


# TF32 keeps 10 bits of the mantissa of float32 operands, as many as float16 has.
_TF32: dict[str, Any] = {"tolerance": default_tolerance("float16"), "matrix_ceiling": "matrix_tf32"}


def _matmul(settings: Settings) -> _Solutions:
    torch = require_torch()

    def by_tf32(a: Any, b: Any) -> Any:
        with float32_products("tf32"):
            return torch.matmul(a, b)

    of_torch = by_torch("torch_tf32", by_tf32, "torch.matmul(a, b) with TF32 allowed")
    of_triton = _triton_matmul(
        settings, "Triton, autotuned tiles, TF32", name="triton_tf32", precision="tf32"
    )
    every = (
        by_torch("torch", torch.matmul, "torch.matmul(a, b)"),
        _with_tf32(settings, of_torch),
        _triton_matmul(settings, "Triton, autotuned tiles"),
        _with_tf32(settings, of_triton),
        cuda(settings, "matmul", "CUDA C++, one output element per thread", teaching=True),
    )
    is_float32 = settings.dtype == "float32"
    return operator.matmul, [one for one in every if is_float32 or not one.name.endswith("_tf32")]


def _with_tf32(settings: Settings, implementation: Implementation) -> Implementation:
    if implementation.is_interpreted:
        return replace(implementation, **_TF32)

    def check() -> None:
        if not settings.is_cuda or require_torch().cuda.get_device_capability(settings.device) < (8, 0):
            raise MeasurementError("TF32 needs a CUDA device of compute capability 8.0 or newer")

    return only_if(implementation, check, **_TF32)


def _triton_matmul(settings: Settings, note: str, **options: Any) -> Implementation:
    implementation = triton(settings, "matmul", note, **options)
    if settings.is_cuda or settings.dtype != "bfloat16":
        return implementation

    def refuse() -> None:
        # NumPy has no bfloat16: the interpreter keeps its bits in integers, and `tl.dot` multiplies those
        # (seen in Triton 3.2, 3.6 and 3.9).
        raise MeasurementError(
            "Triton's interpreter cannot multiply bfloat16 matrices", hint="Use float16 or float32"
        )

    return only_if(implementation, refuse)


# ‖x - y‖² = ‖x‖² + ‖y‖² - 2 xᵀy turns distances of all pairs of points into a matrix product.
def _cdist(settings: Settings) -> _Solutions:
    return _cdist_row_by_row, (
        by_torch("torch", require_torch().cdist, "torch.cdist(x, y)"),
        by_torch("expanded", _cdist_expanded, "‖x‖² + ‖y‖² - 2xᵀy, by a matrix product"),
        by_torch("naive", _cdist_naive, "all differences at once: M·N·features elements"),
    )


def _cdist_naive(x: Any, y: Any) -> Any:
    return (x[:, None, :] - y[None, :, :]).square().sum(dim=-1).sqrt()


def _cdist_expanded(x: Any, y: Any) -> Any:
    squares = x.square().sum(dim=-1)[:, None] + y.square().sum(dim=-1)[None, :] - 2 * (x @ y.T)
    return squares.clamp_min(0).sqrt()  # rounding can leave a difference of equal points below 0


def _cdist_row_by_row(x: Any, y: Any) -> Any:
    """The differences themselves, a few rows at a time; no cancellation, and 256 MB in float64 at once."""
    rows = max(1, (1 << 25) // max(1, y.numel()))
    return require_torch().cat([_cdist_naive(chunk, y) for chunk in x.split(rows)])


def _one_each(settings: Settings) -> int:
    return math.prod(settings.shape)


_ALL = (
    Suite(
        "gelu",
        "GELU: a composition of operators, torch's, CUDA C++, Triton, torch.compile",
        ("naive", "torch", *_HAND_WRITTEN, "compile"),
        _gelu,
        small_shape=_ELEMENTWISE_SMALL_SHAPE,
        parameters={"approximate": ("tanh", "none")},  # tanh form, or exact by erf
    ),
    Suite(
        "square",
        "x²: torch.square, x * x, x ** 2, CUDA C++, Triton",
        ("torch", "multiply", "power", *_HAND_WRITTEN),
        _square,
        small_shape=_ELEMENTWISE_SMALL_SHAPE,
        flop_count=_one_each,
    ),
    Suite(
        "add",
        "x + y: torch, CUDA C++, Triton",
        ("torch", *_HAND_WRITTEN),
        _add,
        shapes=lambda *shape: (shape, shape),
        small_shape=_ELEMENTWISE_SMALL_SHAPE,
        flop_count=_one_each,
    ),
    Suite(
        "softmax",
        "softmax of rows: a composition of operators, torch's, CUDA C++, Triton, torch.compile",
        ("naive", "torch", *_HAND_WRITTEN, "compile"),
        _softmax,
        small_shape=_ROWWISE_SMALL_SHAPE,
    ),
    Suite(
        "layer_norm",
        "layer norm of rows: a composition of operators, torch's, CUDA C++, Triton, torch.compile",
        ("naive", "torch", *_HAND_WRITTEN, "compile"),
        _layer_norm,
        shapes=lambda rows, columns: ((rows, columns), (columns,), (columns,)),
        small_shape=_ROWWISE_SMALL_SHAPE,
    ),
    Suite(
        "matmul",
        "matrix product: torch, Triton, one element per thread; TF32 beside float32",
        ("torch", "torch_tf32", "triton", "triton_tf32", "cuda_teaching"),
        _matmul,
        shapes=lambda m, n, k: ((m, k), (k, n)),
        output_shape=lambda m, n, k: (m, n),
        small_shape=(70, 90, 50),  # no multiples of a tile
        flop_count=lambda settings: 2 * math.prod(settings.shape),
        has_product=True,
        shape_names=("M", "N", "K"),
        cuda_shape=(4096, 4096, 4096),
        cpu_shape=(512, 512, 512),
        cuda_dtype="bfloat16",
    ),
    Suite(
        "cdist",
        "distances of all pairs of points: torch.cdist, by a matrix product, by broadcasting",
        ("torch", "expanded", "naive"),
        _cdist,
        shapes=lambda m, n, features: ((m, features), (n, features)),
        output_shape=lambda m, n, features: (m, n),
        # Of the products xᵀy alone: the least that any form computes.
        flop_count=lambda settings: 2 * math.prod(settings.shape),
        has_product=True,
        shape_names=("M", "N", "features"),
        cuda_shape=(4096, 4096, 128),
        cpu_shape=(512, 512, 64),
        dtypes=("float32",),  # torch.cdist has no 16-bit kernels
    ),
)
SUITES = {suite.name: suite for suite in _ALL}


def suite(name: str) -> Suite:
    if name not in SUITES:
        raise InputError(f"'{name}' is not a suite", hint=f"Use {', '.join(SUITES)}, or FILE.py:function")
    return SUITES[name]
