"""Suites, which `opscope bench NAME` knows: operators of the guides, each solved in several ways.

Everything is checked here, before anything is built: sizes, dtype, device, parameters and names. What only
this machine can tell (a missing compiler, a type that its GPU lacks) an implementation says itself when it is
built, in an error with what to install; nothing here decides by itself to leave one out. Importing this
module does not import torch.
"""

from __future__ import annotations

import functools
import math
import operator
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from opscope.benchmarking.check import default_tolerance
from opscope.benchmarking.limits import float32_products
from opscope.benchmarking.problem import Implementation, Inputs, Problem
from opscope.errors import InputError, MeasurementError
from opscope.kernels.triton import decide_interpreter, load_triton
from opscope.model.benchmark import Engine
from opscope.operators.arguments import element_type
from opscope.workloads.runtime import require_torch, resolve_device, resolve_dtype

_Function = Callable[..., Any]


@dataclass(frozen=True)
class Settings:
    """A request that was checked: what a suite's `make` gets."""

    shape: tuple[int, ...]  # one size for each of the suite's `shape_names`, all at least 1
    dtype: str  # full name
    device: str  # `"cpu"` or `"cuda:N"`, which is there
    parameters: Mapping[str, str] = field(default_factory=dict)  # a value for every parameter of the suite

    @property
    def is_cuda(self) -> bool:
        return self.device.startswith("cuda")


@dataclass(frozen=True)
class Suite:
    name: str  # what `opscope bench` calls it
    summary: str  # what it compares, one line
    implementations: tuple[str, ...]  # of any dtype, in the order they are reported
    # Of some settings: what computes the right answer, and every implementation of that dtype.
    make: Callable[[Settings], tuple[_Function, Sequence[Implementation]]]
    shapes: Callable[..., Sequence[Sequence[int]]] = lambda *shape: (shape,)  # of the inputs, by the sizes
    output_shape: Callable[..., Sequence[int]] = lambda *shape: shape
    small_shape: tuple[int, ...] | None = None  # that Triton's interpreter finishes soon
    flop_count: Callable[[Settings], int | None] = lambda _: None
    has_product: bool = False  # a matrix product is the most of it
    shape_names: tuple[str, ...] = ("rows", "columns")  # what the sizes of a shape are, in order
    cuda_shape: tuple[int, ...] = (8192, 8192)  # large enough that launches and caches do not decide
    cpu_shape: tuple[int, ...] = (1024, 1024)  # about a million elements, or a second of work
    dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16")  # the first is the default on a CPU
    cuda_dtype: str = "float32"  # default on a GPU
    reference: str = "torch"  # implementation that ratios refer to
    # Further choices by name, with their values; the first is the default
    parameters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def problem(
        self,
        values: Mapping[str, Any] = types.MappingProxyType({}),
        *,
        device: str = "auto",
        implementations: Sequence[str] = (),
        reference: str | None = None,
    ) -> Problem:
        """The problem at values of parameters, restricted to the implementations that are named.

        Parameters are the shape or its sizes, `dtype` (also written fp32, fp16 and bf16) and the suite's own.
        """
        known = ("shape", *self.shape_names, "dtype", *self.parameters)
        for name in values:
            if name not in known:
                raise InputError(
                    f"'{self.name}' has no parameter '{name}'", hint=f"It has {', '.join(known)}"
                )
        is_interpreted = device == "interpreter"
        place = "cpu" if is_interpreted else resolve_device(device)
        is_cuda = place.startswith("cuda")
        default = self.cuda_dtype if is_cuda else self.dtypes[0]
        dtype = resolve_dtype(str(values["dtype"])) if "dtype" in values else default
        if dtype not in self.dtypes:
            raise InputError(f"'{self.name}' is not defined for {dtype}", hint=f"Use {_either(self.dtypes)}")
        shape = self._shape(values, self.cuda_shape if is_cuda else self.cpu_shape)
        own = {
            name: choices[0] if values.get(name) is None else str(values[name])
            for name, choices in self.parameters.items()
        }
        for name, value in own.items():
            if value not in self.parameters[name]:
                raise InputError(f"{name} cannot be '{value}'", hint=f"Use {_either(self.parameters[name])}")
        settings = Settings(shape, dtype, place, own)
        expected, made = self.make(settings)
        small_shape = self.small_shape
        if is_interpreted:
            made = [one for one in made if one.engine is Engine.TRITON]
            if not made:
                raise InputError(
                    f"'{self.name}' has no Triton implementation", hint="Leave --device interpreter out"
                )
            # A shape that was asked for is the one that is checked.
            is_asked = not values.keys().isdisjoint(("shape", *self.shape_names))
            small_shape = shape if is_asked else small_shape
        by_name = {one.name: one for one in made}
        names = list(dict.fromkeys(implementations)) or list(by_name)
        if reference is not None and reference not in names:
            names.insert(0, reference)
        for name in names:
            if name not in by_name:
                what = f"'{name}' is not an implementation of '{self.name}'"
                if name in self.implementations:
                    what = f"'{self.name}' has no implementation '{name}' for these options (dtype {dtype})"
                raise InputError(what, hint=f"Use {_either(list(by_name))}")
        inputs = functools.partial(self._inputs, settings)
        elements = sum(map(math.prod, (*self.shapes(*shape), self.output_shape(*shape))))
        kind = element_type(dtype)
        return Problem(
            name=self.name,
            device=place,
            make_inputs=functools.partial(inputs, shape),
            small_inputs=None if small_shape is None else functools.partial(inputs, small_shape),
            implementations=tuple(by_name[name] for name in names),
            reference=reference or (self.reference if self.reference in names else names[0]),
            expected=expected,
            shape=shape,
            dtype=dtype,
            parameters=own,
            min_bytes=None if kind is None else elements * kind.size_bytes,
            flop_count=self.flop_count(settings),
            matrix_ceiling=f"matrix_{dtype}" if self.has_product else None,
        )

    def _inputs(self, settings: Settings, shape: tuple[int, ...], seed: int) -> Inputs:
        """Normally distributed ones.

        Never zeros: on constant data a GPU draws less power and keeps higher clocks than on real data.
        """
        torch = require_torch()
        generator = torch.Generator(settings.device).manual_seed(seed)
        dtype = getattr(torch, settings.dtype)
        return tuple(
            torch.randn(tuple(one), generator=generator, dtype=dtype, device=settings.device)
            for one in self.shapes(*shape)
        )

    def _shape(self, values: Mapping[str, Any], default: tuple[int, ...]) -> tuple[int, ...]:
        """The shape asked for, as numbers or as `8192x8192`, with the sizes asked for in its place."""
        given = values.get("shape", default)
        if isinstance(given, str | int):
            if not re.fullmatch(r"-?\d+(x\d+)*", str(given)):
                raise InputError(f"'{given}' is not a shape", hint="Such as --param shape=8192x8192")
            given = tuple(map(int, str(given).split("x")))
        if len(given) != len(self.shape_names):
            names, text = " ".join(self.shape_names), " ".join(map(str, given)) or "none"
            raise InputError(
                f"the shape of '{self.name}' is {len(self.shape_names)} sizes ({names}), not {text}",
                hint=f"For example --param shape={'x'.join(map(str, self.cuda_shape))}",
            )
        sizes = {name: values.get(name, size) for name, size in zip(self.shape_names, given, strict=True)}
        for name, size in sizes.items():
            if not isinstance(size, int) or size < 1:
                raise InputError(
                    f"{name}={size} is not a size for '{self.name}'", hint="Sizes are integers from 1 on"
                )
        return tuple(sizes.values())


def _either(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def by_torch(name: str, function: _Function, note: str) -> Implementation:
    return Implementation(name, lambda: function, Engine.TORCH, note=note)


def unless(obstacle: MeasurementError | None, implementation: Implementation) -> Implementation:
    """The implementation; one that says so when it is built where something is in its way."""

    def refuse() -> _Function:
        assert obstacle is not None
        raise obstacle

    return implementation if obstacle is None else replace(implementation, build=refuse)


def cuda(
    settings: Settings, kernel: str, note: str, *, teaching: bool = False, **constants: Any
) -> Implementation:
    """An operator of `opscope.kernels.build`, of that name or `<name>_teaching`, with further arguments."""

    def build() -> _Function:
        if not settings.is_cuda:
            raise MeasurementError(
                "CUDA C++ needs a CUDA device", hint="Use --device cuda on a machine with a GPU"
            )
        from opscope.kernels.build import load_cuda_kernels  # noqa: PLC0415 - it looks for a compiler

        function = getattr(load_cuda_kernels(), f"{kernel}_teaching" if teaching else kernel)
        return functools.partial(function, **constants)

    name = "cuda_teaching" if teaching else "cuda"
    return Implementation(name, build, Engine.CUDA, teaching=teaching, note=note)


def triton(
    settings: Settings,
    kernel: str,
    note: str,
    *,
    module: str | None = None,
    name: str | None = None,
    teaching: bool = False,
    **constants: Any,
) -> Implementation:
    """A Triton kernel, or `<kernel>_teaching`, compiled for a GPU; on a CPU, in Triton's interpreter.

    It is of `opscope.kernels.triton`'s `module`, which is named like the kernel if None is given; `constants`
    are further arguments.
    """
    # Before another implementation imports Triton.
    decide_interpreter(interpret=not settings.is_cuda)

    def build() -> _Function:
        loaded = load_triton(module or kernel, interpret=not settings.is_cuda)
        function: _Function = getattr(loaded, f"{kernel}_teaching" if teaching else kernel)
        if constants:
            function = functools.partial(function, **constants)
        if not settings.is_cuda:  # as on a GPU, overflow is infinity and no warning
            quiet: _Function = np.errstate(all="ignore")(function)
            return quiet
        return function

    return Implementation(
        name or ("triton_teaching" if teaching else "triton"),
        build,
        Engine.TRITON,
        teaching=teaching,
        note=note,
        is_interpreted=not settings.is_cuda,
    )


def compiled(function: _Function, **constants: Any) -> Implementation:
    """A composition of torch's operators through torch.compile, for exactly the sizes it is called with.

    The constants are keyword-only arguments of it.
    """

    def build() -> _Function:
        # torch keeps what it compiled by code object: functions that share one are recompiled for every new
        # size, and after eight sizes run eagerly instead.
        assert isinstance(function, types.FunctionType)
        fresh = types.FunctionType(function.__code__.replace(), function.__globals__)
        fresh.__kwdefaults__ = constants
        result: _Function = require_torch().compile(fresh, fullgraph=True, dynamic=False)
        return result

    return Implementation("compile", build, Engine.COMPILE, note="torch.compile of naive")


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
    torch, is_cuda = require_torch(), settings.is_cuda
    no_tf32 = no_bfloat16 = None
    if not is_cuda or torch.cuda.get_device_capability(settings.device) < (8, 0):
        no_tf32 = MeasurementError("TF32 needs a CUDA device of compute capability 8.0 or newer")
    if not is_cuda and settings.dtype == "bfloat16":
        # NumPy has no bfloat16: the interpreter keeps its bits in integers, and `tl.dot` multiplies those
        # (seen in Triton 3.2, 3.6 and 3.9).
        no_bfloat16 = MeasurementError(
            "Triton's interpreter cannot multiply bfloat16 matrices", hint="Use float16 or float32"
        )

    def by_tf32(a: Any, b: Any) -> Any:
        with float32_products("tf32"):
            return torch.matmul(a, b)

    of_torch = by_torch("torch_tf32", by_tf32, "torch.matmul(a, b) with TF32 allowed")
    of_triton = triton(
        settings, "matmul", "Triton, autotuned tiles, TF32", name="triton_tf32", precision="tf32"
    )
    every = (
        by_torch("torch", torch.matmul, "torch.matmul(a, b)"),
        unless(no_tf32, replace(of_torch, **_TF32)),
        unless(no_bfloat16, triton(settings, "matmul", "Triton, autotuned tiles")),
        unless(no_tf32 if is_cuda else None, replace(of_triton, **_TF32)),
        cuda(settings, "matmul", "CUDA C++, one output element per thread", teaching=True),
    )
    is_float32 = settings.dtype == "float32"
    return operator.matmul, [one for one in every if is_float32 or not one.name.endswith("_tf32")]


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
