"""[aten_types] What ATen's kernels are given as template arguments, where it is not data type, accumulator type.

Source: the templates of pytorch/aten/src/ATen/native/cuda, releases 2.6 to 2.14.

[aten] Kernels of ATen, whose templates are public source: what they compute, on which types, how vectorized.

Generic kernels (elementwise, index, reduction, foreach) are told apart by the functor or lambda they are
given. The positions of template arguments are those of pytorch/aten/src/ATen/native/cuda, releases 2.6 to
2.14.

[jiterator] Names of the kernels ATen compiles at run time: `erfcx_vectorized4_kernel`, `i0_kernel`.

Source: pytorch/aten/src/ATen/native/cuda/jit_utils.cpp, whose templates write
`${name}_vectorized${vec_size}_kernel` and `${name}_kernel`. The plain form is everybody's, so it counts only
for the functions ATen gives to the jiterator.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from opscope.provenance.kernel_names.cxx_name import CxxName, entities, last_part, without_module
from opscope.provenance.kernel_names.decoded_kernel import Reading
from opscope.provenance.kernel_names.element_types import FLOATING, element_type
from opscope.provenance.kernel_names.families import FamilyRules, direction_of


# ---- aten_types

# Kernels whose first element type is that of their indices.
INDEX_FIRST = frozenset(
    (
        *("compute_num_of_partial_segments", "krn_partial_segment_offset"),
        *("krn_partial_to_segment_idx", "krn_partials_per_segment", "compute_cuda_kernel"),
        *("write_indices", "reduce_crow_indices_dim1_cuda_kernel", "adaptive_average_pool_nhwc"),
        *("adaptive_average_gradinput_nhwc", "embedding_bag_nbits_rowwise_offsets_kernel"),
        *("jagged_dense_dense_elementwise_jagged_output_opt_gather_kernel_",),
        *("jagged_dense_dense_elementwise_jagged_output_opt_search_kernel_",),
        *("computeBlockwiseKthCounts", "computeBlockwiseWithinKCounts"),
        *("convert_indices_from_coo_to_csr_cuda_kernel", "convert_indices_from_csr_to_coo_cuda_kernel"),
        *("vectorized_gather_kernel", "vectorized_scatter_add_kernel"),
        *("randperm_handle_duplicate_keys_kernel", "elementwise_kernel_with_index"),
        *("distribution_elementwise_grid_stride_kernel", "bounds_check_indices_kernel"),
        *("rand_uniform_kernel", "embedding_renorm_wrap_indices_kernel", "fill"),
        *("jagged_dense_dense_elementwise_jagged_output_kernel_",),
        *("jagged_dense_elementwise_dense_output_kernel_",),
    )
)  # fmt: skip
# Kernels whose data may be integers: their first element type is the data's.
INTEGER_DATA = frozenset(
    (
        *("triu_tril_kernel", "triu_indices_kernel", "tril_indices_kernel", "CatArrayBatchedCopy"),
        *("CatArrayBatchedCopy_contig", "CatArrayBatchedCopy_aligned16_contig"),
        *("CatArrayBatchedCopy_alignedK_contig", "CatArrayBatchedCopy_vectorized"),
        *("indexSelectSmallIndex", "indexSelectLargeIndex", "indexFuncSmallIndex"),
        *("indexFuncLargeIndex", "radixSortKVInPlace", "bitonicSortKVInPlace"),
        *("warpMergeSortKVInPlace", "gatherTopK", "gatherKthValue", "gatherMedian"),
        *("radixFindKthValues", "computeBlockDigitCounts", "compute_mode"),
        *("tensor_kernel_scan_innermost_dim", "tensor_kernel_scan_outer_dim"),
        *("tensor_kernel_scan_innermost_dim_with_indices", "tensor_kernel_scan_outer_dim_with_indices"),
        *("roll_cuda_kernel", "cross_kernel", "searchsorted_cuda_kernel", "kernelHistogram1D"),
        *("replication_pad_forward_kernel1d", "replication_pad_forward_kernel2d"),
        *("replication_pad_forward_kernel3d", "reflection_pad1d_out_kernel"),
        *("reflection_pad2d_out_kernel", "reflection_pad3d_out_kernel", "coalesceValuesKernel"),
        *("sort_postprocess_kernel", "indexing_backward_kernel"),
        *("indexing_backward_kernel_small_stride", "indexing_backward_kernel_stride_1", "flag_kernel"),
        *("max_unpooling2d_forward_kernel", "max_unpooling3d_forward_kernel", "im2col_kernel"),
        *("col2im_kernel", "_assert_async_cuda_kernel"),
    )
)  # fmt: skip

_SOFTMAX_WITH_WIDTH = {1: "operand_type", 2: "accumulator_type", 3: "output_type"}
_SOFTMAX = {0: "operand_type", 1: "accumulator_type", 2: "output_type"}
_BATCH_NORM = {0: "operand_type", 2: "accumulator_type"}
# Kernels whose types do not come as data, accumulator: position of the template argument -> field.
TYPE_POSITIONS = {
    "softmax_warp_forward": {0: "operand_type", 1: "output_type", 2: "accumulator_type"},
    "softmax_warp_backward": {0: "operand_type", 1: "output_type", 2: "accumulator_type"},
    "cunn_SoftMaxForward": _SOFTMAX_WITH_WIDTH,
    "cunn_SoftMaxForwardSmem": _SOFTMAX_WITH_WIDTH,
    "cunn_SoftMaxBackward": _SOFTMAX_WITH_WIDTH,
    "cunn_SoftMaxBackwardSmem": _SOFTMAX_WITH_WIDTH,
    "cunn_SoftMaxForwardReg": _SOFTMAX,
    "cunn_SpatialSoftMaxForward": _SOFTMAX,
    "cunn_SpatialSoftMaxBackward": _SOFTMAX,
    "batch_norm_backward_kernel": _BATCH_NORM,
    "batch_norm_backward_elemt_kernel": _BATCH_NORM,
    "batch_norm_backward_reduce_kernel": _BATCH_NORM,
    "batch_norm_transform_input_kernel": _BATCH_NORM,
    "batch_norm_collect_statistics_kernel": {1: "operand_type", 3: "accumulator_type"},
    "kernelHistogram1D": {0: "output_type", 1: "operand_type"},
    "lpnorm_cleanup": {0: "operand_type", 2: "output_type"},
}


# ---- aten

_LIBRARY = "aten"
_FUNCTIONS = FamilyRules("aten_function")
_FUNCTORS = FamilyRules("aten_functor")
_QUALIFIED = r"(?:\(anonymous namespace\)|[A-Za-z_]\w*)(?:::(?:\(anonymous namespace\)|[A-Za-z_]\w*))*"
# Classes and launchers that only pass another functor on, with the element types they are given before it.
_ELEMENT = r"(?:c10::complex<[\w:]+>|(?:c10::)?\w+(?: \w+)*)"
_WRAPPER = (
    r"(?:[\w:()]|\(anonymous namespace\))*?\b(?:gpu_kernel_impl(?:_nocast)?|[AB]UnaryFunctor|BinaryFunctor"
    rf"|func_wrapper_t|ReduceOp|CUDAKernelLauncher|gpu_index_kernel|cuda_take_put_kernel)<(?:{_ELEMENT}, )*"
)
_FUNCTOR = re.compile(rf"(?P<wrappers>(?:{_WRAPPER})*)(?P<name>{_QUALIFIED})")
_DISTRIBUTION = re.compile(rf"(?<![\w:]){_QUALIFIED}(?<=_kernel)(?=<|\()")
_FIRST_ARGUMENT = re.compile(r"<((?:[\w:]|<[\w:]+>| )+)[,>]")
_LAMBDA_PARAMETERS = re.compile(r"\{lambda\(([^()]+)\)")
_ARGUMENTS = r"(?:<[^<>()]*(?:<[^<>()]*>[^<>()]*)*>)?"
_OWNS_LAMBDA = re.compile(rf"{_ARGUMENTS}(?:::operator\(\))?{_ARGUMENTS}\(")
_SCATTER_GATHER = re.compile(r"_cuda_scatter_gather_internal_kernel<(\w+), ([\w:]+(?:<[\w:]+>)?)")
_OPERATION_NOISE = re.compile(
    r"^CUDAFunctor(?:OnSelf|OnOther)?_|^launch_|(?:_?(?:CUDA)?Kernel(?:Impl)?(?:Internal)?|Functor|Ops?"
    r"|_functor|_impl|_cuda|_kernel|_out|_internal)+_?$"
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def read_aten(cxx: CxxName, last: str) -> Reading | None:
    """What a kernel in ATen's source says; None if the function is not known there.

    Args:
        cxx: The name, taken apart; its function is not None.
        last: Last part of the function.
    """
    generic = _GENERIC.get(last)
    if generic is not None:
        return generic(cxx)
    family = _family(cxx, last)
    if family is None:
        return None
    reading = Reading({"library": _LIBRARY, "family": family, "direction": direction_of(last)})
    _read_types(cxx, last, reading)
    _read_details(cxx, last, reading)
    return reading


def _family(cxx: CxxName, last: str) -> str | None:
    function = cxx.function or ""
    if "::native::internal::" in function:
        return "unique"
    if last == "RowwiseMomentsCUDAKernel":
        return "group_norm" if len(cxx.template_arguments) == 1 else "layer_norm"
    return _FUNCTIONS.find(last)


def _read_types(cxx: CxxName, last: str, reading: Reading) -> None:
    """Types by position in the template; elsewhere the first two floating ones are data and accumulator."""
    arguments = cxx.template_arguments
    positions = TYPE_POSITIONS.get(last)
    if positions is not None:
        for position, field in positions.items():
            if position < len(arguments):
                reading.stated[field] = element_type(arguments[position])
        return
    if last in INDEX_FIRST:
        return
    floating = [kind for argument in arguments[:8] if (kind := element_type(argument)) in FLOATING]
    if floating:
        reading.stated["operand_type"] = floating[0]
        if len(floating) > 1:
            reading.inferred["accumulator_type"] = floating[1]
    elif last in INTEGER_DATA:
        first = next((argument for argument in arguments if not argument.lstrip("-").isdigit()), "")
        reading.stated["operand_type"] = element_type(first)


def _read_details(cxx: CxxName, last: str, reading: Reading) -> None:
    """Vector widths, and the flag that makes a layer normalization one of root mean squares."""
    arguments = cxx.template_arguments
    position = _VECTOR_WIDTHS.get(last)
    if position is not None and len(arguments) > position:
        reading.stated.update(variant="vectorized", vector_width=_integer(arguments[position]))
    if reading.stated["family"] == "layer_norm":
        flag = arguments[-1] if len(arguments) in (3, 8) else "false"
        if flag in ("true", "(bool)1"):
            reading.inferred["family"] = "rms_norm"
            del reading.stated["family"]


# Position of the elements of one vector.
_VECTOR_WIDTHS = {"CatArrayBatchedCopy_vectorized": 6, "fused_dropout_kernel_vec": 4}


# Generic kernels: how each is given its functor.


def _elementwise(variant: str, position: int) -> Callable[[CxxName], Reading]:
    def read(cxx: CxxName) -> Reading:
        arguments = cxx.template_arguments
        reading = Reading({"library": _LIBRARY, "family": "elementwise", "variant": variant})
        if len(arguments) <= position:
            return reading
        if variant == "vectorized":
            reading.stated["vector_width"] = _integer(arguments[0])
        casts = variant == "unrolled" and any("WithCast<" in argument for argument in arguments)
        _read_functor(arguments[position], reading, types_are_data=not casts)
        return reading

    return read


def _read_functor(argument: str, reading: Reading, *, types_are_data: bool = True) -> None:
    match = _FUNCTOR.match(argument)
    if match is None:
        return
    functor = without_module(match.group("name"))
    last = last_part(functor)
    if element_type(functor) is not None:
        return
    stated = reading.stated
    stated.update(functor=functor, operation=_operation(last), direction=_backward(last))
    family = _FUNCTORS.find(last)
    if family is not None:
        stated["family"] = family
    if types_are_data:
        _read_functor_types(argument, match, reading)


def _read_functor_types(argument: str, match: re.Match[str], reading: Reading) -> None:
    """Types of the data a functor works on, as its wrapper, its lambda or its own template argument says."""
    wrappers = match.group("wrappers")
    if "gpu_kernel_impl<" in wrappers:
        return  # casts while it loads and stores: the types are the functor's, not the data's
    passed = [element_type(spelling) for spelling in wrappers.rpartition("<")[2].split(", ")]
    stated = reading.stated
    if len(passed) >= 3 and passed[0] is not None:
        is_fixed_first = "AUnaryFunctor<" in wrappers
        stated["operand_type"] = passed[1] if is_fixed_first or passed[0] == passed[1] else None
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
    reading = Reading({"library": _LIBRARY, "family": "reduction"})
    stated = reading.stated
    if len(arguments) != 3:
        return reading
    stated["output_vector_width"] = _integer(arguments[1])
    match = _FUNCTOR.match(arguments[2])
    if match is not None and match.group("wrappers"):
        functor = without_module(match.group("name"))
        stated.update(functor=functor, operation=_operation(last_part(functor)))
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
    reading = Reading(
        {"library": _LIBRARY if (cxx.function or "").startswith("at::") else None, "family": "foreach"}
    )
    match = _FUNCTOR.match(arguments[1]) if len(arguments) > 1 else None
    if match is None:
        return reading
    functor = without_module(match.group("name"))
    last = last_part(functor)
    operations = [entity for entity in entities(arguments[2:]) if "::" in entity.name]
    stated = reading.stated
    stated["functor"] = functor
    stated["operation"] = _operation(last_part(operations[0].name) if operations else last)
    stated["family"] = _foreach_family(last, operations[0].name if operations else "")
    own = _FIRST_ARGUMENT.match(arguments[1], match.end())
    if own is not None and last != "CopyFunctor":
        stated["operand_type"] = element_type(own.group(1))
    return reading


@lru_cache(maxsize=256)
def _foreach_family(functor: str, operation: str) -> str:
    if re.search(r"Adam|Sgd|SGD|Adagrad|Lamb|LAMB|Novo|Lion|Muon", functor):
        return "optimizer"
    if re.search(r"Norm", functor) or functor == "LpMaxFunctor":
        return "foreach_norm"
    if "non_finite" in operation or "non_finite" in functor:
        return "grad_scaling"
    return "foreach"


def _scatter_gather(cxx: CxxName) -> Reading:
    """`_cuda_scatter_gather_internal_kernel<is scatter, data[, index]>::operator()<reduction>`."""
    reading = Reading({"library": _LIBRARY})
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


def _indexed(default: str, position: int) -> Callable[[CxxName], Reading]:
    """Kernels that give their lambda an index: its parameter says nothing of the data."""

    def read(cxx: CxxName) -> Reading:
        reading = Reading({"library": _LIBRARY, "family": default})
        if len(cxx.template_arguments) > position:
            _read_functor(cxx.template_arguments[position], reading, types_are_data=False)
        return reading

    return read


def _distribution(cxx: CxxName) -> Reading:
    """`distribution_elementwise_grid_stride_kernel<accumulator, unroll, distribution, transform>`."""
    reading = Reading({"library": _LIBRARY, "family": "random"})
    found = next((match for part in cxx.template_arguments if (match := _DISTRIBUTION.search(part))), None)
    if found is not None:
        functor = without_module(found.group())
        reading.stated.update(functor=functor, operation=_operation(last_part(functor)))
    return reading


_GENERIC: dict[str, Callable[[CxxName], Reading]] = {
    "vectorized_elementwise_kernel": _elementwise("vectorized", 1),
    "vectorized_templated_elementwise_kernel": _elementwise("vectorized", 1),
    "unrolled_elementwise_kernel": _elementwise("unrolled", 0),
    "unrolled_elementwise_kernel_for_multi_outputs": _elementwise("unrolled", 1),
    "elementwise_kernel": _elementwise("strided", 2),
    "legacy_elementwise_kernel": _elementwise("strided", 2),
    "elementwise_kernel_manual_unroll": _elementwise("strided", 2),
    "elementwise_kernel_with_index": _indexed("elementwise", 1),
    "_elementwise_kernel": _indexed("elementwise", 2),
    "_elemwise_kernel": _indexed("elementwise", 2),
    "apply_kernel": _indexed("sparse_layout", 2),
    "index_elementwise_kernel": _indexed("index", 2),
    "_unfold_backward_elementwise_kernel": _indexed("im2col", 2),
    "_scatter_gather_elementwise_kernel": _scatter_gather,
    "distribution_elementwise_grid_stride_kernel": _distribution,
    "distribution_binary_elementwise_kernel": _distribution,
    "kernelPointwiseApply1": _indexed("elementwise", 0),
    "kernelPointwiseApply2": _indexed("elementwise", 0),
    "kernelPointwiseApply3": _indexed("elementwise", 0),
    "reduce_kernel": _reduction,
    "multi_tensor_apply_kernel": _foreach,
}


@lru_cache(maxsize=4096)
def _operation(functor: str) -> str | None:
    """`gelu_backward` of `GeluBackwardCUDAKernelImpl`, `add` of `CUDAFunctor_add`."""
    bare = _OPERATION_NOISE.sub("", functor)
    return _CAMEL.sub("_", bare).lower().strip("_") or None


@lru_cache(maxsize=4096)
def _backward(functor: str) -> str | None:
    return "backward" if direction_of(functor) == "backward" else None


def _integer(text: str) -> int | None:
    return int(text) if text.isdigit() else None


# ---- jiterator

_VECTORIZED = re.compile(r"(?P<operation>\w+?)_vectorized(?P<width>\d+)_kernel")
_PLAIN = re.compile(
    r"(?P<operation>(?:modified_|scaled_modified_|spherical_)?bessel_\w+|airy_ai\w*|chebyshev_polynomial_\w+|hermite_polynomial_\w+"
    r"|laguerre_polynomial_\w+|legendre_polynomial_\w+|shifted_chebyshev_polynomial_\w+|zeta|erfcx|i0e?|i1e?|ndtri|log_ndtr"
    r"|entr|digamma|polygamma|lgamma|lcm|gcd|kaiser_window|erfinv|erfc|sinc|exp2)_kernel"
)


def read_jiterator(function: str) -> Reading | None:
    """What a run-time compiled elementwise kernel says; None if the name is not one."""
    vectorized = _VECTORIZED.fullmatch(function)
    if vectorized is not None:
        return Reading(
            {
                "library": "jiterator",
                "family": "elementwise",
                "variant": "vectorized",
                "vector_width": int(vectorized.group("width")),
                "operation": vectorized.group("operation").removesuffix("_kernel"),
            }
        )
    plain = _PLAIN.fullmatch(function)
    if plain is None:
        return None
    return Reading(
        inferred={"library": "jiterator", "family": "elementwise", "operation": plain.group("operation")}
    )
