"""Is an implementation's result right? Each is compared with a float64 reference on fresh random inputs.

The error of an element is |output - reference| / max(|reference|, rms of the reference): relative for large
elements, and not blown up where the reference happens to be near zero. Elements that are not finite must be
so in both.

The tensors it allocates hold NaN until it writes to them, so that elements it never writes show. Inputs are
compared bit by bit with copies, so that a function that changes them shows. What an implementation does wrong
becomes a status, never an exception. Imports torch lazily.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from opscope.benchmarking.inputs import copied, map_tensors, named_tensors, tensors_of
from opscope.benchmarking.problem import Inputs, Problem, failure_of, first_line
from opscope.errors import InputError
from opscope.model.benchmark import OutputCheck, Status
from opscope.operators.arguments import element_type
from opscope.workloads.runtime import is_out_of_memory, release_memory, require_torch, synchronize

_CHUNK_ELEMENTS = 1 << 22  # 32 MB of float64 on either side


class Difference(NamedTuple):
    max_relative_error: float  # largest error of an element that is finite in both
    element_count: int  # elements compared
    missing_count: int  # elements that are not finite where the reference is
    unexpected_count: int  # elements that differ from a reference that is not finite there


def difference(output: Any, reference: Any, tolerance: float) -> Difference:
    """The difference of an output from a reference of the same shape, in float64, chunk by chunk.

    An infinity is right where the reference is beyond the range of the output's dtype, or within the
    tolerance of its end. A reference that is zero everywhere has no scale: errors are absolute then.
    """
    if not output.numel():
        return Difference(0.0, 0, 0, 0)
    torch = require_torch()
    flat_output, flat_reference = (_real(one).reshape(-1) for one in (output, reference))
    has_infinity = _has_nan(output)
    largest = torch.finfo(output.dtype).max * max(0.0, 1.0 - tolerance) if has_infinity else math.inf
    rms = _rms(flat_reference, output.device) or 1.0
    totals = []  # of each chunk: error, missing and unexpected counts
    for ours, theirs in _chunks(flat_output, flat_reference, device=output.device):
        is_finite, should_be = ours.isfinite(), theirs.isfinite()
        beyond_range = (theirs.abs() >= largest) & (ours == theirs.sign() * math.inf)
        same = beyond_range | (ours == theirs) | (ours.isnan() & theirs.isnan())
        both = is_finite & should_be
        deviation = torch.where(both, ours - theirs, 0.0).abs_()
        magnitude = torch.where(both, theirs, 0.0).abs_()
        figures = (
            (deviation / magnitude.clamp(min=rms)).max(),
            (should_be & ~is_finite & ~same).sum(),
            (~should_be & ~same).sum(),
        )
        totals.append(tuple(figure.item() for figure in figures))
    errors, missing, unexpected = zip(*totals, strict=True)
    return Difference(
        max_relative_error=max(errors),
        element_count=output.numel(),
        missing_count=sum(missing),
        unexpected_count=sum(unexpected),
    )


def _rms(reference: Any, device: Any) -> float:
    """Root mean square of the finite elements; scaled by the largest, so that no square overflows."""
    torch = require_torch()
    scale, count = 0.0, 0
    for (chunk,) in _chunks(reference, device=device):
        finite = chunk.isfinite()
        scale = max(scale, torch.where(finite, chunk, 0.0).abs().max().item())
        count += int(finite.sum().item())
    if scale == 0.0:
        return 0.0
    total = math.fsum(
        torch.where(chunk.isfinite(), chunk / scale, 0.0).square().sum().item()
        for (chunk,) in _chunks(reference, device=device)
    )
    return scale * math.sqrt(total / count)


def _chunks(*tensors: Any, device: Any) -> Iterator[tuple[Any, ...]]:
    float64 = require_torch().float64
    for start in range(0, tensors[0].numel(), _CHUNK_ELEMENTS):
        yield tuple(one[start : start + _CHUNK_ELEMENTS].to(device, float64) for one in tensors)


def _real(tensor: Any) -> Any:
    """The two parts of complex elements side by side; sparse tensors filled up."""
    torch = require_torch()
    dense = tensor.detach() if tensor.layout is torch.strided else tensor.detach().to_dense()
    return torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense


POISON_NAN = 0xFF  # NaN in every floating-point dtype, -1 in signed integers, true in bool
POISON_ZERO = 0x00


@contextmanager
def poisoned_memory(device: str, byte: int = POISON_NAN) -> Iterator[None]:
    """Tensors that are allocated inside the block hold `byte` until something writes to them.

    Every call of torch's dispatcher that allocates without writing is followed by a fill, in the threads of
    autograd too, and inside of operators that others register. What torch.compile wrote allocates past the
    dispatcher and stays as it was, and so does memory that is not torch's.
    """
    torch = require_torch()
    from torch.utils._python_dispatch import TorchDispatchMode  # noqa: PLC0415 - torch is imported lazily

    aten = torch.ops.aten
    allocating = {
        *(aten.empty.memory_format, aten.empty_like.default, aten.empty_strided.default),
        *(aten.new_empty.default, aten.new_empty_strided.default, aten.empty_permuted.default),
    }
    backend = torch._C._parse_dispatch_key(device.partition(":")[0].upper())

    def allocates_inside(func: Any, arguments: Any) -> bool:
        """Whether this is somebody's operator with a kernel for plain tensors of the device."""
        if not isinstance(func, torch._ops.OpOverload) or func.namespace in {"aten", "prim", "prims"}:
            return False
        tensors = tensors_of(arguments)
        return bool(tensors) and all(torch._C._dispatch_keys(one).has(backend) for one in tensors)

    class Poison(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
        supports_higher_order_operators = True

        @classmethod
        def is_infra_mode(cls) -> bool:
            return True  # or torch.compile gives up on functions that it meets in here

        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            if allocates_inside(func, (args, kwargs)):
                with self:
                    return func.redispatch(torch._C.DispatchKeySet(backend), *args, **(kwargs or {}))
            made = func(*args, **(kwargs or {}))
            if func in allocating and type(made) is torch.Tensor and made.layout is torch.strided:
                is_captured = made.is_cuda and torch.cuda.is_current_stream_capturing()  # and played later
                if made.device.type in {"cpu", "cuda"} and not is_captured:
                    whole = torch.empty(0, dtype=torch.uint8, device=made.device)
                    whole.set_(made.untyped_storage()).fill_(byte)
            return made

    with Poison():
        yield


class CheckOutcome(NamedTuple):
    status: Status  # `ok` if nothing is wrong with it
    reason: str | None  # what is wrong; with `ok`, why nothing could be compared; else None
    check: OutputCheck | None  # None if nothing was compared
    outputs: Any = None  # what was returned; None if it raised. Holds device memory: drop it soon


def default_tolerance(dtype: str) -> float:
    """Largest `max_relative_error` of a right answer in a dtype; 0 for integers and booleans.

    A multiple of the unit roundoff u = 2⁻ᵖ (p binary digits), wide enough for any plain implementation:

    * float64, float32: 1024 u (1.1e-13, 6.1e-5). Adding n products of random numbers one after another errs
      by about 0.6 u √(n/2) of the result's rms: 37 u at n = 8192, and 210 u for the worst of 10⁸ elements.
      TF32, whose inputs have 11 digits, is off by 3e-4 of the rms and fails.
    * float16, bfloat16: 16 u (7.8e-3, 6.2e-2). Rounding the result costs 1 u; naive compositions, which round
      after every operation, reach 2 u (gelu), 3 u (layer_norm) and 5 u (softmax, whose exponential turns the
      rounding of an argument into an error of the result).
    * 8-bit floats: 2 u: one rounding of the result.

    Source: N. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., §2.8 (rounding errors as
    random variables); the figures of compositions are measured, on normal random inputs.
    """
    known = element_type(dtype)
    if known is None:
        raise InputError(f"no tolerance is known for dtype '{dtype}'", hint="Give the tolerance")
    digits = known.digits
    if digits is None:
        return 0.0
    headroom = 1024 if digits >= 24 else 16 if digits >= 8 else 2
    return float(headroom * 2.0**-digits)


def check_output(
    fn: Callable[..., Any],
    problem: Problem,
    *,
    reference: Callable[..., Any] | None,
    tolerance: float | None = None,
    seed: int = 1,
    small: bool = False,
) -> CheckOutcome:
    """Whether a function solves the problem on inputs of a seed.

    The reference is `problem.expected`, or `reference`, on inputs whose floating-point tensors are upcast to
    float64; where that fails, `reference` on the inputs as they are. Outputs pair up with the reference's by
    place. They may be of another floating-point dtype than the inputs (the tolerance judges their
    precision), but not of another kind (floating-point, complex, integer, boolean), shape or device.
    Integers and booleans must be equal, unless a tolerance is given.
    """
    make = problem.small_inputs if small and problem.small_inputs is not None else problem.make_inputs
    try:
        inputs = make(seed)
        expected, how, is_in_place = _answer(problem, reference, inputs)
        copies = [(tensor, copied(tensor)) for tensor in tensors_of(inputs)]
        for byte in (POISON_NAN, POISON_ZERO):
            try:
                with poisoned_memory(problem.device, byte):
                    outputs = fn(*inputs)
                    synchronize()
            except Exception as error:  # noqa: BLE001 - an implementation may raise anything; the others go on
                return CheckOutcome(*failure_of(error, "in its check"), None)
            wrong = _wrong_without_comparing(problem, inputs, copies, outputs, is_in_place=is_in_place)
            if wrong is not None:
                return CheckOutcome(*wrong, None, outputs)
            if expected is None:
                return CheckOutcome(Status.OK, f"not checked: {how}", None, outputs)
            tolerances = _tolerances(problem, tolerance, inputs, outputs)
            reason, check = _compared(outputs, expected, tolerances, seed, how)
            # NaN marks what nobody wrote; integers and booleans have none, so they must come out right twice.
            if reason or all(_has_nan(one) for one in tensors_of(outputs)):
                break
            for tensor, copy in copies if is_in_place else ():
                tensor.detach().copy_(copy)
        return CheckOutcome(Status.WRONG if reason else Status.OK, reason, check, outputs)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        failure = failure_of(error, "in its check")
    release_memory()
    return CheckOutcome(*failure, None)


def _answer(problem: Problem, reference: Callable[..., Any] | None, inputs: Inputs) -> tuple[Any, str, bool]:
    """The right outputs by the first way that works, surest first; None if none does.

    And which way that is, and whether the reference returns an input.
    """
    own_dtype = problem.dtype or "the inputs' dtype"
    attempts = (
        (problem.expected, "the expected result", "float64", _upcast),
        (reference, problem.reference, "float64", _upcast),
        (reference, problem.reference, own_dtype, copied),
    )
    failures: list[str] = []
    for fn, name, dtype, convert in attempts:
        if fn is None:
            continue
        try:
            outputs = fn(*(given := map_tensors(convert, inputs)))
            synchronize()
            if found := {id(one) for one in tensors_of(outputs)}:
                is_in_place = not found.isdisjoint(map(id, tensors_of(given)))
                return outputs, "; ".join([f"{name} in {dtype}", *failures]), is_in_place
            failures.append(f"{name} in {dtype} returned no tensor")
        except Exception as error:  # noqa: BLE001 - a reference may reject float64 in any way
            failures.append(f"{name} in {dtype} failed: {first_line(error)}")
        release_memory()
    return None, "; ".join(failures) or "there is no reference", False


def _wrong_without_comparing(
    problem: Problem, inputs: Inputs, copies: list[tuple[Any, Any]], outputs: Any, *, is_in_place: bool
) -> tuple[Status, str] | None:
    """What can be said without the right answer; None if nothing is wrong so far."""
    # What works in place, and returns what it changes, is compared by that.
    compared = {id(one) for one in tensors_of(outputs)} if is_in_place else set()
    pairs = (
        (number, tensor, copy) for number, (tensor, copy) in enumerate(copies) if id(tensor) not in compared
    )
    changed = [str(number) for number, tensor, copy in pairs if not _same_bits(tensor, copy)]
    if changed:
        reason = f"changed its input tensor {', '.join(changed)} (counted from 0), so repeated calls differ"
        return Status.MUTATES_INPUTS, reason
    if not tensors_of(outputs):
        returned = "None" if outputs is None else f"a value of type {type(outputs).__name__} without tensors"
        return Status.NO_RESULT, f"returned {returned}"
    places = {str(require_torch().device(problem.device)), *(str(one.device) for one in tensors_of(inputs))}
    for place, tensor in named_tensors(outputs):
        if str(tensor.device) not in places:
            return Status.WRONG, f"output{place} is on {tensor.device}, not on {' or '.join(sorted(places))}"
    return None


def _compared(
    outputs: Any, expected: Any, tolerances: tuple[float, float], seed: int, how: str
) -> tuple[str | None, OutputCheck | None]:
    """What is wrong with any output beside its reference; `tolerances` of floating-point and of others."""
    ours, theirs = list(named_tensors(outputs)), list(named_tensors(expected))
    if len(ours) != len(theirs):
        return f"returned {len(ours)} tensors, the reference {len(theirs)}", None
    for (place, one), (_, other) in zip(ours, theirs, strict=True):
        if one.shape != other.shape:
            return f"output{place} has shape {tuple(one.shape)}, the reference {tuple(other.shape)}", None
        if _kind(one) != _kind(other):
            return f"output{place} is {_kind(one)}, the reference is {_kind(other)}", None
    reasons: list[str] = []
    differences: list[Difference] = []
    for (place, output), (_, right) in zip(ours, theirs, strict=True):
        limit = tolerances[0] if _has_nan(output) else tolerances[1]
        one = difference(output, right, limit)
        if not one.max_relative_error and not _has_nan(output) and not output.equal(right.to(output)):
            one = one._replace(max_relative_error=2.0**-53)  # integers that float64 cannot tell apart
        differences.append(one)
        reasons += _objections(f"output{place}", one, limit)
    is_finite = not any(one.missing_count or one.unexpected_count for one in differences)
    check = OutputCheck(
        max_relative_error=max(one.max_relative_error for one in differences) if is_finite else None,
        tolerance=tolerances[0],
        element_count=sum(one.element_count for one in differences),
        seed=seed,
        reference=how,
    )
    return "; ".join(reasons) or None, check


def _objections(name: str, one: Difference, tolerance: float) -> Iterator[str]:
    count = f"of {one.element_count} elements"
    if one.missing_count:
        yield (
            f"{name}: {one.missing_count} {count} are not finite where the reference is "
            "(memory is filled with NaN beforehand: perhaps never written)"
        )
    if one.unexpected_count:
        yield f"{name}: {one.unexpected_count} {count} differ where the reference is not finite"
    if not one.max_relative_error <= tolerance:
        limit = f"the tolerance of {tolerance:.2g}" if tolerance else "the reference, which is exact"
        yield f"{name} differs by {one.max_relative_error:.2g}, more than {limit}"


def _tolerances(
    problem: Problem, tolerance: float | None, inputs: Inputs, outputs: Any
) -> tuple[float, float]:
    """Of floating-point outputs, and of integer ones."""
    given = problem.tolerance if tolerance is None else tolerance
    if given is not None:
        return given, given
    if problem.dtype is not None:
        return default_tolerance(problem.dtype), 0.0
    # Nothing is declared: the coarsest dtype that goes in decides, or that comes out if there is none.
    floating = [tensor for tensor in tensors_of(inputs) if _has_nan(tensor)] or tensors_of(outputs)
    return max(default_tolerance(str(tensor.dtype).removeprefix("torch.")) for tensor in floating), 0.0


def _upcast(tensor: Any) -> Any:
    """A copy in float64 (complex128) of floating-point data; a copy of any other."""
    if not _has_nan(tensor):
        return copied(tensor)
    wide = require_torch().complex128 if tensor.is_complex() else require_torch().float64
    return tensor.detach().to(wide, copy=True).requires_grad_(tensor.requires_grad)


def _same_bits(one: Any, other: Any) -> bool:
    """Whether two tensors agree in shape, dtype and every bit, so that NaN equals NaN."""
    torch = require_torch()
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    first, second = _real(one).resolve_neg(), _real(other).resolve_neg()
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[first.element_size()]
    return bool(torch.equal(first.view(bits), second.view(bits)))


def _has_nan(tensor: Any) -> bool:
    return bool(tensor.is_floating_point() or tensor.is_complex())


def _kind(tensor: Any) -> str:
    if _has_nan(tensor):
        return "complex" if tensor.is_complex() else "floating-point"
    return "boolean" if tensor.dtype is require_torch().bool else "integer"
