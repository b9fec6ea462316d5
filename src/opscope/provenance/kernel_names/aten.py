"""Kernels of ATen, whose templates are public source: what they compute, on which types, how vectorized.

Generic kernels (elementwise, index, reduction, foreach) are told apart by the functor or lambda they are
given. The positions of template arguments are those of pytorch/aten/src/ATen/native/cuda, releases 2.6 to
2.14.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from opscope.provenance.kernel_names.cxx_name import CxxName, entities, last_part, without_module
from opscope.provenance.kernel_names.decoded_kernel import Reading, integer
from opscope.provenance.kernel_names.vocabulary import (
    FLOATING,
    LAUNCHERS,
    direction_of,
    element_type,
    family_by_rules,
    type_positions,
    words,
)
from opscope.provenance.packaged import lazy_pattern

_QUALIFIED = r"(?:\(anonymous namespace\)|[A-Za-z_]\w*)(?:::(?:\(anonymous namespace\)|[A-Za-z_]\w*))*"
# Classes and launchers that only pass another functor on, with the element types they are given before it.
_ELEMENT = r"(?:c10::complex<[\w:]+>|(?:c10::)?\w+(?: \w+)*)"
_WRAPPER = (
    r"(?:[\w:()]|\(anonymous namespace\))*?\b(?:gpu_kernel_impl(?:_nocast)?|[AB]UnaryFunctor|BinaryFunctor"
    rf"|func_wrapper_t|ReduceOp|CUDAKernelLauncher|gpu_index_kernel|cuda_take_put_kernel)<(?:{_ELEMENT}, )*"
)
_FUNCTOR = lazy_pattern(rf"(?P<wrappers>(?:{_WRAPPER})*)(?P<name>{_QUALIFIED})")
_DISTRIBUTION = lazy_pattern(rf"(?<![\w:]){_QUALIFIED}(?<=_kernel)(?=<|\()")
_FIRST_ARGUMENT = lazy_pattern(r"<((?:[\w:]|<[\w:]+>| )+)[,>]")
_LAMBDA_PARAMETERS = lazy_pattern(r"\{lambda\(([^()]+)\)")
_ARGUMENTS = r"(?:<[^<>()]*(?:<[^<>()]*>[^<>()]*)*>)?"
_OWNS_LAMBDA = lazy_pattern(rf"{_ARGUMENTS}(?:::operator\(\))?{_ARGUMENTS}\(")
_SCATTER_GATHER = lazy_pattern(r"_cuda_scatter_gather_internal_kernel<(\w+), ([\w:]+(?:<[\w:]+>)?)")
_OPERATION_NOISE = lazy_pattern(
    r"^CUDAFunctor(?:OnSelf|OnOther)?_|^launch_|(?:_?(?:CUDA)?Kernel(?:Impl)?(?:Internal)?|Functor|Ops?"
    r"|_functor|_impl|_cuda|_kernel|_out|_internal)+_?$"
)
_CAMEL = lazy_pattern(r"(?<=[a-z0-9])(?=[A-Z])")


def read_aten(cxx: CxxName, last: str) -> Reading | None:
    """What a kernel in ATen's source says; None if the function is not known there."""
    generic = _GENERIC.get(last)
    if generic is not None:
        return generic(cxx)
    family = family_by_rules("aten_function", last)
    if "::native::internal::" in (cxx.function or ""):
        family = "unique"
    elif last == "RowwiseMomentsCUDAKernel":
        family = "group_norm" if len(cxx.template_arguments) == 1 else "layer_norm"
    if family is None:
        return None
    reading = _reading(family=family, direction=direction_of(last))
    _read_types(cxx, last, reading)
    arguments = cxx.template_arguments
    position = _VECTOR_WIDTHS.get(last)
    if position is not None and len(arguments) > position:
        reading.stated.update(variant="vectorized", vector_width=integer(arguments[position]))
    # The flag that makes a layer normalization one of root mean squares.
    has_flag = family == "layer_norm" and len(arguments) in (3, 8)
    if has_flag and arguments[-1] in ("true", "(bool)1"):
        reading.inferred["family"] = "rms_norm"
        del reading.stated["family"]
    return reading


def _reading(**stated: Any) -> Reading:
    return Reading({"library": "aten", **stated})


def _read_types(cxx: CxxName, last: str, reading: Reading) -> None:
    """Types by position in the template; elsewhere the first two floating ones are data and accumulator."""
    arguments = cxx.template_arguments
    positions = type_positions(last)
    if positions is not None:
        for field, position in positions.items():
            if position < len(arguments):
                reading.stated[field] = element_type(arguments[position])
        return
    if last in words("index_first"):
        return
    floating = [kind for argument in arguments[:8] if (kind := element_type(argument)) in FLOATING]
    if floating:
        reading.stated["operand_type"] = floating[0]
        if len(floating) > 1:
            reading.inferred["accumulator_type"] = floating[1]
    elif last in words("integer_data"):
        first = next((argument for argument in arguments if not argument.lstrip("-").isdigit()), "")
        reading.stated["operand_type"] = element_type(first)


# Position of the elements of one vector.
_VECTOR_WIDTHS = {"CatArrayBatchedCopy_vectorized": 6, "fused_dropout_kernel_vec": 4}


# Generic kernels: how each is given its functor.


def _launcher(cxx: CxxName, family: str, position: int, variant: str | None = None) -> Reading:
    """A kernel given its functor at a position; without a variant the functor gets an index, no data."""
    arguments = cxx.template_arguments
    reading = _reading(family=family, variant=variant)
    if len(arguments) > position:
        if variant == "vectorized":
            reading.stated["vector_width"] = integer(arguments[0])
        casts = variant == "unrolled" and any("WithCast<" in argument for argument in arguments)
        _read_functor(arguments[position], reading, types_are_data=variant is not None and not casts)
    return reading


def _applied(qualified: str) -> dict[str, str | None]:
    functor = without_module(qualified)
    return {"functor": functor, "operation": _operation(last_part(functor))}


def _read_functor(argument: str, reading: Reading, *, types_are_data: bool = True) -> None:
    match = _FUNCTOR.match(argument)
    if match is None:
        return
    applied, wrappers, stated = _applied(match.group("name")), match.group("wrappers"), reading.stated
    functor = applied["functor"] or ""
    if element_type(functor) is not None:
        return
    last = last_part(functor)
    stated.update(applied, direction="backward" if direction_of(last) == "backward" else None)
    stated["family"] = family_by_rules("aten_functor", last) or stated["family"]
    # Types of the data a functor works on, as its wrapper, its lambda or its own template argument says.
    if not types_are_data or "gpu_kernel_impl<" in wrappers:
        return  # that casts while it loads and stores: the types are the functor's, not the data's
    passed = [element_type(spelling) for spelling in wrappers.rpartition("<")[2].split(", ")]
    if len(passed) >= 3 and passed[0] is not None:
        stated["operand_type"] = passed[1] if "AUnaryFunctor<" in wrappers or passed[0] == passed[1] else None
        if "BUnaryFunctor<" in wrappers:
            stated["operand_type"] = passed[0]
        stated["output_type"] = passed[2]
        return
    end = match.end()
    if _OWNS_LAMBDA.match(argument, end):
        parameters = _LAMBDA_PARAMETERS.search(argument, end)
        types = {element_type(part) for part in parameters.group(1).split(", ")} if parameters else set()
        data = types - {"bool"} or types
        stated["operand_type"] = next(iter(data)) if len(data) == 1 else None
    elif own := _FIRST_ARGUMENT.match(argument, end):
        stated["operand_type"] = element_type(own.group(1))


def _reduction(cxx: CxxName) -> Reading:
    """`reduce_kernel<threads, outputs, ReduceOp<data, operation, index, output, loads[, vector]>>`."""
    arguments = cxx.template_arguments
    reading = _reading(family="reduction")
    stated = reading.stated
    if len(arguments) != 3:
        return reading
    stated["output_vector_width"] = integer(arguments[1])
    match = _FUNCTOR.match(arguments[2])
    if match is not None and match.group("wrappers"):
        stated.update(_applied(match.group("name")))
        parameters = _LAMBDA_PARAMETERS.search(arguments[2], match.end())
        if parameters is not None:
            types = {element_type(part) for part in parameters.group(1).split(", ")}
            stated["accumulator_type"] = types.pop() if len(types) == 1 else None
    inner = _FIRST_ARGUMENT.search(arguments[2])
    stated["operand_type"] = element_type(inner.group(1)) if inner else None
    tail = arguments[2].rstrip("> ").rsplit(", ", 4)
    if tail[-1].isdigit() and len(tail) == 5:
        has_vector = tail[-2].isdigit()
        stated["vector_width"] = int(tail[-1]) if has_vector else None
        stated["output_type"] = element_type(tail[-3] if has_vector else tail[-2])
    return reading


def _foreach(cxx: CxxName) -> Reading:
    """`multi_tensor_apply_kernel<tensor lists, functor<data, …>, arguments of the functor…>`."""
    arguments = cxx.template_arguments
    is_own = (cxx.function or "").startswith("at::")
    reading = _reading(family="foreach") if is_own else Reading({"family": "foreach"})
    match = _FUNCTOR.match(arguments[1]) if len(arguments) > 1 else None
    if match is None:
        return reading
    last = last_part(match.group("name"))
    operation = next((entity.name for entity in entities(arguments[2:]) if "::" in entity.name), "")
    family = family_by_rules("foreach_functor", f"{last} {operation}") or "foreach"
    reading.stated.update(_applied(match.group("name")), family=family)
    if operation:
        reading.stated["operation"] = _operation(last_part(operation))
    own = _FIRST_ARGUMENT.match(arguments[1], match.end())
    if own is not None and last != "CopyFunctor":
        reading.stated["operand_type"] = element_type(own.group(1))
    return reading


def _scatter_gather(cxx: CxxName) -> Reading:
    """`_cuda_scatter_gather_internal_kernel<is scatter, data[, index]>::operator()<reduction>`."""
    reading = _reading()
    stated = reading.stated
    found = entities(cxx.template_arguments[2:3])
    if found:
        stated.update(functor=without_module(found[0].name), operation=_operation(last_part(found[-1].name)))
    own = _SCATTER_GATHER.search(cxx.template_arguments[-1]) if cxx.template_arguments else None
    if own is not None:
        stated["family"] = "gather" if own.group(1) == "false" else "scatter"
        stated["operand_type"] = element_type(own.group(2))
    elif found:
        stated["family"] = "scatter"  # `_cuda_scatter_fill_internal_kernel`
    return reading


def _distribution(cxx: CxxName) -> Reading:
    """`distribution_elementwise_grid_stride_kernel<accumulator, unroll, distribution, transform>`."""
    found = next(filter(None, map(_DISTRIBUTION.search, cxx.template_arguments)), None)
    return _reading(family="random", **({} if found is None else _applied(found.group())))


_GENERIC: dict[str, Callable[[CxxName], Reading]] = {
    "_scatter_gather_elementwise_kernel": _scatter_gather,
    "distribution_elementwise_grid_stride_kernel": _distribution,
    "distribution_binary_elementwise_kernel": _distribution,
    "reduce_kernel": _reduction,
    "multi_tensor_apply_kernel": _foreach,
    **{name: partial(_launcher, **given) for name, given in LAUNCHERS.items()},
}


@lru_cache(maxsize=4096)
def _operation(functor: str) -> str | None:
    """`gelu_backward` of `GeluBackwardCUDAKernelImpl`, `add` of `CUDAFunctor_add`."""
    return _CAMEL.sub("_", _OPERATION_NOISE.sub("", functor)).lower().strip("_") or None
