"""Tiled products: tiles from the name, problem from the call, both held against the grid."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from opscope.analysis.parallelism import Heading, ParallelismAccount

Tell = Callable[..., ParallelismAccount]

XMMA = (
    "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize128x64x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_execute"
    "_kernel__51_cublas"
)
NVJET = "nvjet_sm90_tst_128x160_64x5_2x4_h_bz_NTT"
GEMV = (
    "void gemv2T_kernel_val<int, int, __half, __half, __half, float, 128, 16, 4, 4, false, false, "
    "cublasGemvParamsEx<int, cublasGemvTensorStridedBatched<__half const>, cublasGemvTensorStridedBatched<"
    "__half const>, cublasGemvTensorStridedBatched<__half>, float> >(P)"
)
SPLIT_K = (
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __half, float, __half, false, float, __half, "
    "__half, true, true, false, false>(P)"
)


def text(told: ParallelismAccount, heading: Heading) -> str:
    return " ".join(one.text for one in told.under(heading))


def addmm(tell: Tell, grid: tuple[int, int, int]) -> ParallelismAccount:
    return tell(
        XMMA, grid, (128, 1, 1), "aten::addmm", [[768], [1024, 3072], [3072, 768], [], []],
        types=["float", "float", "float", "Scalar", "Scalar"], registers=128, shared_bytes=18432,
    )  # fmt: skip


def test_output_tiles_in_parallel_k_in_sequence(tell: Tell) -> None:
    told = addmm(tell, (8, 12, 1))
    assert "786,432 output elements (1,024×768) are independent dot products of 3,072 terms" in text(
        told, Heading.PARALLEL_OVER
    )
    assert "128×64 tile of the output (128 along M, 64 along N), 64 elements per thread" in text(
        told, Heading.BLOCK_COMPUTES
    )
    assert "ceil(1,024 / 128) × ceil(768 / 64) tiles" in text(told, Heading.LAUNCH)
    assert "slices of 8: 384 steps for K = 3,072" in text(told, Heading.ALGORITHM)
    assert "3 slices of both operands take 18,432 B of the block's 18,432 B" in text(told, Heading.MEMORY)


@pytest.mark.parametrize("grid", [(8, 13, 1), (7, 12, 1), (97, 1, 1)])
def test_a_grid_that_is_not_the_tiles_is_unexplained(tell: Tell, grid: tuple[int, int, int]) -> None:
    told = addmm(tell, grid)
    assert told.launch_check is not None
    assert not told.launch_check.is_explained
    assert "along M" not in text(told, Heading.BLOCK_COMPUTES)


def test_tiles_of_a_cluster_are_counted_together(tell: Tell) -> None:
    told = tell(
        NVJET, (8, 15, 1), (384, 1, 1), "aten::mm", [[3072, 4096], [4096, 768]], types=["c10::BFloat16"] * 2,
        strides=[[1, 3072], [768, 1]], registers=168, shared_bytes=219580,
    )  # fmt: skip
    assert told.launch_check is not None
    assert told.launch_check.matched is not None
    assert told.launch_check.matched.formula == "ceil(768 / 128) × ceil(3,072 / 160) tiles"
    assert "96.0 % of their elements are used" in text(told, Heading.BLOCK_COMPUTES)
    assert "per thread" not in text(told, Heading.BLOCK_COMPUTES)  # some warps only load
    assert "clusters of 2×4" in text(told, Heading.SYNCHRONIZATION)
    assert "Tensor cores." in text(told, Heading.ALGORITHM)


def test_splits_of_k_are_read_from_the_grid_and_said_to_be(tell: Tell) -> None:
    name = XMMA.replace("tilesize128x64x8", "tilesize128x128x8")
    told = tell(name, (1, 6, 4), (128, 1, 1), "aten::mm", [[128, 8192], [8192, 768]])
    assert "× 4 splits of K (read from the grid)" in text(told, Heading.LAUNCH)
    assert "K is split over 4 blocks per tile" in text(told, Heading.SYNCHRONIZATION)


def test_batches_lie_along_z(tell: Tell) -> None:
    told = tell(XMMA, (2, 4, 96), (128, 1, 1), "aten::bmm", [[96, 256, 64], [96, 64, 256]])
    assert "tiles × 96 products" in text(told, Heading.LAUNCH)


def test_a_product_with_a_vector(tell: Tell) -> None:
    told = tell(
        GEMV, (6283, 1, 1), (128, 1, 1), "aten::mm", [[1, 768], [768, 50257]], types=["c10::Half"] * 2
    )
    assert told.launch_check is not None
    assert told.launch_check.is_explained


def test_partial_products_are_added_element_by_element(tell: Tell) -> None:
    told = tell(
        SPLIT_K, (24, 1, 1), (32, 16, 1), "aten::addmm", [[768], [16, 3072], [3072, 768], [], []],
        types=["c10::Half"] * 3 + ["Scalar"] * 2,
    )  # fmt: skip
    assert "ceil(768 / 32) × ceil(16 / 16) blocks" in text(told, Heading.LAUNCH)
    assert "follows the launch" in text(told, Heading.SYNCHRONIZATION)


def test_without_the_call_only_the_tile_is_told(tell: Tell) -> None:
    told = tell(XMMA, (8, 12, 1), (128, 1, 1))
    assert told.launch_check is None
    assert "A block of 128 threads computes a 128×64 tile" in text(told, Heading.BLOCK_COMPUTES)
    assert not told.under(Heading.PARALLEL_OVER)
