"""What ATen's kernels are given as template arguments, where it is not data type, accumulator type.

Source: the templates of pytorch/aten/src/ATen/native/cuda, releases 2.6 to 2.14.
"""

from __future__ import annotations

__all__ = ["INDEX_FIRST", "INTEGER_DATA", "TYPE_POSITIONS"]

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
