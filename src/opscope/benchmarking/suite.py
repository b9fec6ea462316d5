"""A suite: a named family of problems, how a user's options become one, and how implementations are made.

Everything is checked here, before anything is built: sizes, dtype, device, parameters and names. What only
this machine can tell (a missing compiler, a backend that a GPU does not offer) an implementation says itself
when it is built, in an error with what to install; nothing here decides by itself to leave one out. Importing
this module does not import torch.
"""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from opscope.benchmarking.problem import Implementation, Inputs, Problem
from opscope.errors import DependencyError, InputError, MeasurementError
from opscope.kernels.triton_loader import interpreted, load_triton, require_triton
from opscope.model.benchmark import Engine
from opscope.workloads.runtime import require_torch, resolve_device, resolve_dtype

_Function = Callable[..., Any]
# The implementations that `elementwise` and `rowwise` make.
HAND_WRITTEN = ("cuda", "cuda_teaching", "triton", "triton_teaching")
# Small shapes for such kernels: one full program and a part of one; rows that are no power of two, and more
# than one program takes at a time.
ELEMENTWISE_SMALL_SHAPE, ROWWISE_SMALL_SHAPE = (33, 129), (9, 300)


@dataclass(frozen=True)
class SuiteOptions:
    """What a user asks of a suite. What is left out, the suite decides."""

    shape: tuple[int, ...] | None = None  # Sizes, one for each of the suite's `shape_names`
    dtype: str | None = None  # float32, float16 or bfloat16, also written fp32, fp16 and bf16
    device: str = "auto"  # `"auto"`, `"cpu"`, `"cuda"` or `"cuda:N"`
    # Names of those to run, in this order; all if empty. The reference is put before them if it was asked for
    # and is not among them
    implementations: tuple[str, ...] = ()
    # What ratios refer to; the suite's own if None and it runs, or else the first that does
    reference: str | None = None
    # Values by name, such as `{"approximate": "erf"}`
    parameters: Mapping[str, str] = field(default_factory=dict)
    interpret: bool = False  # Only the Triton implementations, in Triton's interpreter, on the CPU


@dataclass(frozen=True)
class Settings:
    """Options that were checked: what a suite's `make` gets."""

    shape: tuple[int, ...]  # One size for each of the suite's `shape_names`, all at least 1
    dtype: str  # Full name
    device: str  # `"cpu"` or `"cuda:N"`, which is there
    parameters: Mapping[str, str] = field(default_factory=dict)  # A value for every parameter of the suite

    @property
    def is_cuda(self) -> bool:
        """Whether the device is a CUDA device."""
        return self.device.startswith("cuda")


@dataclass(frozen=True)
class Parameter:
    """A choice a suite offers besides shape and dtype."""

    values: tuple[str, ...]  # The names it goes by in results; the first is the default
    summary: str  # What it chooses, in a few words
    aliases: Mapping[str, str] = field(default_factory=dict)  # Other names → the value they stand for

    @property
    def default(self) -> str:
        """The value where none is given."""
        return self.values[0]


@dataclass(frozen=True)
class Suite:
    """A family of problems."""

    name: str  # What `opscope bench` calls it
    # Names of all implementations it has in any dtype, in the order they are reported
    implementations: tuple[str, ...]
    # The problem of some settings, with every implementation of that dtype
    make: Callable[[Settings], Problem]
    shape_names: tuple[str, ...] = ("rows", "columns")  # What the sizes of a shape are, in order
    # Default on a GPU: large enough that launches and caches do not decide
    cuda_shape: tuple[int, ...] = (8192, 8192)
    # Default on a CPU: about a million elements, or a second of work
    cpu_shape: tuple[int, ...] = (1024, 1024)
    # What it is defined for; the first is the default on a CPU
    dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16")
    cuda_dtype: str = "float32"  # Default on a GPU
    reference: str = "torch"  # Implementation that ratios refer to
    parameters: Mapping[str, Parameter] = field(default_factory=dict)  # Further choices by name
    summary: str = ""  # What it compares, one line

    def problem(self, options: SuiteOptions | None = None) -> Problem:
        """The problem the options ask for, restricted to the implementations they name."""
        asked = options or SuiteOptions()
        settings = self._settle(asked)
        problem = self.make(settings)
        if asked.interpret:
            problem = _interpreted(problem, self, at_given_shape=asked.shape is not None)
        return _chosen(problem, self, asked)

    def _settle(self, options: SuiteOptions) -> Settings:
        parameters = self._checked_parameters(options.parameters)
        shape = None if options.shape is None else self._checked_shape(options.shape)
        dtype = None if options.dtype is None else self._checked_dtype(options.dtype)
        device = _interpreter_device(options.device) if options.interpret else resolve_device(options.device)
        is_cuda = device.startswith("cuda")
        return Settings(
            shape=shape or (self.cuda_shape if is_cuda else self.cpu_shape),
            dtype=dtype or (self.cuda_dtype if is_cuda else self.dtypes[0]),
            device=device,
            parameters=parameters,
        )

    def _checked_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        names = " ".join(self.shape_names)
        if len(shape) != len(self.shape_names):
            given = " ".join(map(str, shape)) or "none"
            raise InputError(
                f"the shape of '{self.name}' is {len(self.shape_names)} sizes ({names}), not {given}",
                hint=f"For example --shape {' '.join(map(str, self.cuda_shape))}",
            )
        for name, size in zip(self.shape_names, shape, strict=True):
            if size < 1:
                raise InputError(f"{name}={size} is not a size for '{self.name}'", hint="Sizes start at 1")
        return shape

    def _checked_dtype(self, name: str) -> str:
        dtype = resolve_dtype(name)
        if dtype not in self.dtypes:
            raise InputError(f"'{self.name}' is not defined for {dtype}", hint=f"Use {_either(self.dtypes)}")
        return dtype

    def _checked_parameters(self, given: Mapping[str, str]) -> Mapping[str, str]:
        for name in given:
            if name not in self.parameters:
                known = f"It has {', '.join(self.parameters)}" if self.parameters else "It has none"
                raise InputError(f"'{self.name}' has no parameter '{name}'", hint=known)
        settled = {}
        for name, parameter in self.parameters.items():
            asked = given.get(name, parameter.default)
            value = parameter.aliases.get(asked, asked)
            if value not in parameter.values:
                names = (*parameter.values, *parameter.aliases)
                raise InputError(f"{name} cannot be '{asked}'", hint=f"Use {_either(names)}")
            settled[name] = value
        return settled


def _interpreter_device(name: str) -> str:
    if name not in {"auto", "cpu"}:
        raise InputError(f"Triton's interpreter runs on the CPU, not on '{name}'", hint="Leave --device out")
    return "cpu"


def _interpreted(problem: Problem, suite: Suite, *, at_given_shape: bool) -> Problem:
    """Only the Triton implementations; a shape that was asked for is the one that is checked."""
    kept = tuple(each for each in problem.implementations if each.engine is Engine.TRITON)
    if not kept:
        raise InputError(f"'{suite.name}' has no Triton implementation", hint="Leave --interpret out")
    small = problem.make_inputs if at_given_shape else problem.small_inputs
    return replace(problem, implementations=kept, small_inputs=small)


def _chosen(problem: Problem, suite: Suite, options: SuiteOptions) -> Problem:
    """The problem with the implementations and the reference that were asked for."""
    by_name = {each.name: each for each in problem.implementations}
    names = list(dict.fromkeys(options.implementations)) or list(by_name)
    if options.reference is not None and options.reference not in names:
        names.insert(0, options.reference)
    for name in names:
        if name not in by_name:
            raise _unknown_implementation(name, problem, suite)
    chosen: list[Implementation] = [by_name[name] for name in names]
    reference = options.reference or (suite.reference if suite.reference in names else names[0])
    return replace(problem, implementations=tuple(chosen), reference=reference)


def _unknown_implementation(name: str, problem: Problem, suite: Suite) -> InputError:
    here = _either([each.name for each in problem.implementations])
    if name in suite.implementations:
        what = f"'{suite.name}' has no implementation '{name}' for these options (dtype {problem.dtype})"
    else:
        what = f"'{name}' is not an implementation of '{suite.name}'"
    return InputError(what, hint=f"Use {here}")


def _either(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


_ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def problem_of(
    name: str,
    settings: Settings,
    implementations: Sequence[Implementation],
    *,
    expected: _Function,
    shapes: Callable[..., Sequence[Sequence[int]]] = lambda *shape: (shape,),
    output_shape: Sequence[int] | None = None,
    small_shape: tuple[int, ...] | None = None,
    flop_count: int | None = None,
    matrix_ceiling: str | None = None,
) -> Problem:
    """The problem of some settings, on normally distributed inputs.

    Never zeros: on constant data a GPU draws less power and keeps higher clocks than on real data.
    """

    def make_inputs(shape: tuple[int, ...], seed: int) -> Inputs:
        torch = require_torch()
        generator = torch.Generator(settings.device).manual_seed(seed)
        dtype = getattr(torch, settings.dtype)
        return tuple(
            torch.randn(tuple(one), generator=generator, dtype=dtype, device=settings.device)
            for one in shapes(*shape)
        )

    inputs = shapes(*settings.shape)
    elements = sum(map(math.prod, inputs)) + math.prod(output_shape or inputs[0])
    return Problem(
        name=name,
        device=settings.device,
        make_inputs=functools.partial(make_inputs, settings.shape),
        small_inputs=None if small_shape is None else functools.partial(make_inputs, small_shape),
        implementations=tuple(implementations),
        reference="torch",
        expected=expected,
        shape=settings.shape,
        dtype=settings.dtype,
        parameters=settings.parameters,
        min_bytes=elements * _ELEMENT_BYTES[settings.dtype],
        flop_count=flop_count,
        matrix_ceiling=matrix_ceiling,
    )


def by_torch(name: str, function: _Function, note: str, *, tolerance: float | None = None) -> Implementation:
    """A function that calls torch's operators; there is nothing to build."""
    return Implementation(name, lambda: function, Engine.TORCH, note=note, tolerance=tolerance)


def cuda(
    settings: Settings, kernel: str, note: str, *, teaching: bool = False, **constants: Any
) -> Implementation:
    """An operator of `opscope.kernels.build`, of that name or `<name>_teaching`, with further arguments."""
    attribute = f"{kernel}_teaching" if teaching else kernel

    def build() -> _Function:
        if not settings.is_cuda:
            raise MeasurementError(
                "CUDA C++ needs a CUDA device", hint="Use --device cuda on a machine with a GPU"
            )
        from opscope.kernels.build import load_cuda_kernels  # noqa: PLC0415 - it looks for a compiler

        function: _Function = getattr(load_cuda_kernels(), attribute)
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
    tolerance: float | None = None,
    **constants: Any,
) -> Implementation:
    """A Triton kernel, compiled for a GPU; on a CPU, in Triton's interpreter."""
    attribute = f"{kernel}_teaching" if teaching else kernel

    def build() -> _Function:
        function: _Function = getattr(
            load_triton(module or kernel, interpret=not settings.is_cuda), attribute
        )
        if constants:
            function = functools.partial(function, **constants)
        if not settings.is_cuda:
            return interpreted(function)
        _check_triton_driver()
        return function

    return Implementation(
        name or ("triton_teaching" if teaching else "triton"),
        build,
        Engine.TRITON,
        teaching=teaching,
        note=note,
        tolerance=tolerance,
        is_interpreted=not settings.is_cuda,
    )


def elementwise(settings: Settings, kernel: str, **constants: Any) -> tuple[Implementation, ...]:
    """The implementations of HAND_WRITTEN of a kernel that takes one element after another."""
    notes = (
        "CUDA C++, 16-byte accesses",
        "CUDA C++, one element per thread",
        "Triton, autotuned",
        "Triton, one element per thread",
    )
    return _hand_written(settings, kernel, notes, "elementwise", constants)


def rowwise(settings: Settings, kernel: str, **constants: Any) -> tuple[Implementation, ...]:
    """The implementations of HAND_WRITTEN of a kernel that reduces rows."""
    notes = (
        "CUDA C++, rows in registers",
        "CUDA C++, textbook form",
        "Triton, rows in registers, autotuned",
        "Triton, each row read three times",
    )
    return _hand_written(settings, kernel, notes, kernel, constants)


def _hand_written(
    settings: Settings, kernel: str, notes: Sequence[str], module: str, constants: Mapping[str, Any]
) -> tuple[Implementation, ...]:
    """A kernel in CUDA C++ and in Triton, each beside its simple version."""
    good_cuda, simple_cuda, good_triton, simple_triton = notes
    return (
        cuda(settings, kernel, good_cuda, **constants),
        cuda(settings, kernel, simple_cuda, teaching=True, **constants),
        triton(settings, kernel, good_triton, module=module, **constants),
        triton(settings, kernel, simple_triton, module=module, teaching=True, **constants),
    )


def compiled(settings: Settings, function: _Function) -> Implementation:
    """A composition of torch's operators through torch.compile, for exactly the sizes it is called with."""

    def build() -> _Function:
        _check_code_generator(settings)
        torch: Any = require_torch()
        result: _Function = torch.compile(_fresh(function), fullgraph=True, dynamic=False)
        return result

    return Implementation("compile", build, Engine.COMPILE, note="torch.compile of naive")


def _fresh(function: _Function) -> _Function:
    """The function with a code object of its own.

    torch keeps what it compiled by code object: functions that share one are recompiled for every new size,
    and after eight sizes run eagerly instead.
    """
    if isinstance(function, functools.partial):
        return functools.partial(_fresh(function.func), *function.args, **function.keywords)
    assert isinstance(function, types.FunctionType)
    fresh = types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    fresh.__kwdefaults__ = function.__kwdefaults__
    return fresh


def _check_code_generator(settings: Settings) -> None:
    """What torch.compile hands its code to: Triton for a GPU, a C++ compiler for a CPU."""
    if settings.is_cuda:
        require_triton()
        _check_triton_driver()
        return
    from torch._inductor import cpp_builder  # noqa: PLC0415 - imports torch

    try:
        cpp_builder.get_cpp_compiler()
    except RuntimeError as error:  # torch._inductor.exc.InvalidCxxCompiler
        raise DependencyError(
            "torch.compile needs a C++ compiler on a CPU, and torch finds none",
            hint="Install g++, or name one in the environment variable CXX",
        ) from error


def _check_triton_driver() -> None:
    """Triton reaches the GPU: it compiles a small C module for that, at its first use."""
    triton_module = require_triton()
    try:
        triton_module.runtime.driver.active.get_current_target()
    except RuntimeError as error:
        message = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DependencyError(
            f"Triton cannot use this GPU ({message})",
            hint="It needs an NVIDIA driver and a C compiler (gcc, clang or the one named in CC)",
        ) from error
