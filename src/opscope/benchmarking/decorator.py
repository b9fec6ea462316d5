"""`@opscope.benchmark`: marks functions of a file as implementations of one thing.

A mark changes nothing about the function: it stays the plain callable it was. `opscope bench FILE.py` finds
the marked functions of a file and benchmarks each group of them. Imports nothing of torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from opscope.errors import InputError

_ATTRIBUTE = "__opscope_benchmark__"

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class BenchmarkMark:
    """What the decorator was told about one function. None leaves it to the others of the group."""

    name: str | None = None  # of its row; the function's own name if None
    group: str | None = None  # functions of one are compared with each other; one for the file if None
    inputs: Any = None  # makes the arguments; or the arguments themselves
    reference: str | None = None  # name of the group's reference
    is_reference: bool = False  # this is it
    expected: Callable[..., Any] | None = None  # computes the right answer
    params: Mapping[str, tuple[Any, ...]] | None = None  # to sweep over, by parameter of `inputs`


@overload
def benchmark(function: F, /) -> F: ...
@overload
def benchmark(
    *,
    inputs: Any = None,
    reference: str | None = None,
    is_reference: bool = False,
    expected: Callable[..., Any] | None = None,
    params: Mapping[str, Iterable[Any]] | None = None,
    group: str | None = None,
    name: str | None = None,
) -> Callable[[F], F]: ...
def benchmark(
    function: F | None = None,
    /,
    *,
    inputs: Any = None,
    reference: str | None = None,
    is_reference: bool = False,
    expected: Callable[..., Any] | None = None,
    params: Mapping[str, Iterable[Any]] | None = None,
    group: str | None = None,
    name: str | None = None,
) -> F | Callable[[F], F]:
    """Mark a function for `opscope bench FILE.py`; used bare or with arguments.

        @opscope.benchmark(inputs=make_inputs, params={"n": [1024, 4096]}, is_reference=True)
        def slow(x): ...

        @opscope.benchmark
        def fast(x): ...

    What one function of a group says holds for all of them.

    Args:
        function: When used bare.
        inputs: A function that makes the arguments (it is given those of the swept parameters, `device`,
            `dtype` and `seed` that it names), or the arguments themselves.
        reference: Name of the function that ratios refer to; the first of the group if no one says.
        is_reference: This function is it.
        expected: Computes the right answer, given the inputs with floating-point tensors in float64.
        params: Values to sweep over, by parameter name.
        group: Which functions are compared with each other; all of the file without one.
        name: Of its row; the function's own if None.

    Raises:
        InputError: A swept parameter has no values, or `reference` and `is_reference` contradict each other.
    """
    if reference is not None and is_reference:
        raise InputError("reference and is_reference both name a reference", hint="Give one of them")
    swept = None if params is None else values_of(params)
    mark = BenchmarkMark(name, group, inputs, reference, is_reference, expected, swept)

    def decorate(fn: F) -> F:
        return _with_mark(fn, mark)

    return decorate if function is None else decorate(function)


def values_of(parameters: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Parameters given in Python, with one value or several each."""
    found = {
        name: tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
        for name, given in parameters.items()
    }
    for name, values in found.items():
        if not values:
            raise InputError(f"the parameter '{name}' has no values", hint="Give a list such as [1024, 4096]")
    return found


def _with_mark(fn: F, mark: BenchmarkMark) -> F:
    if not callable(fn):
        raise InputError(
            f"'{type(fn).__name__}' is not a function", hint="Write @opscope.benchmark(inputs=…)"
        )
    try:
        setattr(fn, _ATTRIBUTE, mark)
    except (AttributeError, TypeError):  # a builtin such as torch.square holds no attributes

        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs)

        return _with_mark(call, mark)  # type: ignore[return-value]
    return fn


def mark_of(function: Any) -> BenchmarkMark | None:
    mark = getattr(function, _ATTRIBUTE, None)
    return mark if isinstance(mark, BenchmarkMark) else None
