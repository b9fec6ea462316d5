"""A suite: a named family of problems, how a user's request becomes one, and how implementations are made.

Everything is checked here, before anything is built: sizes, dtype, device, parameters and names. What only
this machine can tell (a missing compiler, a backend that a GPU does not offer) an implementation says itself
when it is built, in an error with what to install; nothing here decides by itself to leave one out. Importing
this module does not import torch.
"""

from __future__ import annotations

import functools
import math
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from opscope.benchmarking.problem import Implementation, Inputs, Problem
from opscope.errors import InputError, MeasurementError
from opscope.kernels.triton import decide_interpreter, load_triton
from opscope.model.benchmark import Engine
from opscope.operators.element_types import element_type
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


def only_if(implementation: Implementation, check: Callable[[], object], **facts: Any) -> Implementation:
    """The implementation where a check, made before it is built, does not raise; with further facts of it."""

    def build() -> _Function:
        check()
        return implementation.build()

    return replace(implementation, build=build, **facts)


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
