"""Attention of three libraries: heads and tiles of queries in parallel; launches as recorded on an H200."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from opscope.analysis.parallelism import Heading, ParallelismAccount

Tell = Callable[..., ParallelismAccount]

FLASH = (
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, "
    "cutlass::bfloat16_t, Flash_kernel_traits<64, 128, 128, 4, cutlass::bfloat16_t> >, false, true, false, "
    "false, true, true, false, false>(pytorch_flash::Flash_fwd_params)"
)
FLASH_BACKWARD = (
    "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64, 128, 128, "
    "8, 4, 4, 4, false, false, cutlass::bfloat16_t, Flash_kernel_traits<64, 128, 128, 8, "
    "cutlass::bfloat16_t> >, false, true, false, false, true, true, false>(pytorch_flash::Flash_bwd_params)"
)
EFFICIENT = (
    "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float, "
    "cutlass::arch::Sm80, true, 64, 64, 64, true, true>::Params)"
)
CUDNN = (
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1_cga1x1x1_kernel0_0"
)
SPLIT_KEYS = (
    "void pytorch_flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<64, 64, 256, 4, false, false, "
    "cutlass::bfloat16_t, Flash_kernel_traits<64, 64, 256, 4, cutlass::bfloat16_t> >, false, false, false, "
    "false, true, false, true, false>(pytorch_flash::Flash_fwd_params)"
)


def text(told: ParallelismAccount, heading: Heading) -> str:
    return " ".join(one.text for one in told.under(heading))


def flash(tell: Tell, queries: int) -> ParallelismAccount:
    shape = [4, queries, 8, 64]
    return tell(
        FLASH, (4, 4, 8), (128, 1, 1), "aten::_flash_attention_forward", [shape, shape, shape],
        types=["c10::BFloat16"] * 3, registers=255, shared_bytes=49152,
    )  # fmt: skip


def test_flash_attention_tiles_the_queries(tell: Tell) -> None:
    told = flash(tell, 512)
    assert "4 batch × 8 heads are independent" in text(told, Heading.PARALLEL_OVER)
    assert "computes 128 queries of one head, walking the keys in tiles of 128: 4 steps for 512 keys" in text(
        told, Heading.BLOCK_COMPUTES
    )
    assert "ceil(512 / 128) query tiles × 4 batch × 8 heads" in text(told, Heading.LAUNCH)
    assert "never written to global memory" in text(told, Heading.MEMORY)
    assert "online softmax" in text(told, Heading.ALGORITHM)
    assert told.waves is not None
    assert told.waves.residency.blocks_per_sm == 2


@pytest.mark.parametrize("queries", [384, 513])
def test_other_lengths_are_not_explained(tell: Tell, queries: int) -> None:
    told = flash(tell, queries)
    assert told.launch_check is not None
    assert not told.launch_check.is_explained


def test_the_backward_tiles_the_keys_and_adds_with_atomics(tell: Tell) -> None:
    shape = [4, 512, 8, 64]
    told = tell(
        FLASH_BACKWARD, (4, 4, 8), (256, 1, 1), "aten::_flash_attention_backward",
        [shape] * 5 + [[4, 8, 512]],
        types=["c10::BFloat16"] * 5 + ["float"],
    )  # fmt: skip
    assert "takes 128 keys of one head" in text(told, Heading.BLOCK_COMPUTES)
    assert "atomics" in text(told, Heading.SYNCHRONIZATION)
    assert "computed again" in text(told, Heading.ALGORITHM)


def test_parts_of_the_keys_are_read_from_the_grid_and_said_to_be(tell: Tell) -> None:
    told = tell(
        SPLIT_KEYS, (1, 4, 12), (128, 1, 1), "aten::_flash_attention_forward",
        [[1, 1, 12, 64], [1, 1000, 12, 64], [1, 1000, 12, 64]], types=["c10::BFloat16"] * 3,
    )  # fmt: skip
    assert "1 query against 1,000 keys" in text(told, Heading.PARALLEL_OVER)
    assert "1 query tile × 4 parts of the keys (read from the grid) × 12 heads" in text(told, Heading.LAUNCH)
    assert "a second launch combines the parts" in text(told, Heading.SYNCHRONIZATION)


def test_memory_efficient_attention(tell: Tell) -> None:
    shape = [8, 128, 12, 64]
    told = tell(
        EFFICIENT, (2, 12, 8), (32, 4, 1), "aten::_efficient_attention_forward", [shape] * 3,
        types=["float"] * 3,
    )  # fmt: skip
    assert told.launch_check is not None
    assert told.launch_check.is_explained
    assert "64 queries of one head" in text(told, Heading.BLOCK_COMPUTES)


def test_cudnn_attention_takes_no_more_blocks_than_multiprocessors(tell: Tell) -> None:
    shape = [8, 16, 512, 64]
    options = {"types": ["c10::BFloat16"] * 3, "strides": [[1024, 64, 8192, 1]] * 3}
    full = tell(CUDNN, (132, 1, 1), (384, 1, 1), "aten::_cudnn_attention_forward", [shape] * 3, **options)
    other = tell(CUDNN, (131, 1, 1), (384, 1, 1), "aten::_cudnn_attention_forward", [shape] * 3, **options)
    assert "132 blocks take 512 tiles of up to 128 queries, 3.88 each" in text(full, Heading.BLOCK_COMPUTES)
    assert full.launch_check is not None
    assert full.launch_check.is_explained
    assert other.launch_check is not None
    assert not other.launch_check.is_explained
