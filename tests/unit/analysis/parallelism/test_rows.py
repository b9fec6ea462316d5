"""Kernels over rows: softmax, layer and batch normalization; launches as recorded on an H200."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from opscope.analysis.parallelism import Heading, ParallelismAccount

Tell = Callable[..., ParallelismAccount]

WARP_SOFTMAX = (
    "void (anonymous namespace)::softmax_warp_forward<c10::BFloat16, c10::BFloat16, float, 8, false, "
    "false>(P)"
)
LAYER_NORM = (
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float, false>(int)"
)
RMS_NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, true>(int)"
BLOCK_SOFTMAX = (
    "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float, at::native::"
    "(anonymous namespace)::SoftMaxForwardEpilogue>(float*, float const*, int)"
)
COLUMNS = (
    "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<c10::BFloat16, float, 32u, "
    "32u, 256u, false, true, false>(long)"
)


def text(told: ParallelismAccount, heading: Heading) -> str:
    return " ".join(one.text for one in told.under(heading))


def softmax(tell: Tell, shape: list[int], kernel: str = WARP_SOFTMAX) -> ParallelismAccount:
    return tell(
        kernel, (12288, 1, 1), (32, 4, 1), "aten::_softmax", [shape, [], []],
        types=["c10::BFloat16", "Scalar", "Scalar"], concrete=["", "-1", "False"], registers=32,
        shared_bytes=0,
    )  # fmt: skip


def test_one_warp_per_row(tell: Tell) -> None:
    told = softmax(tell, [16, 12, 256, 256])
    assert told.launch_check is not None
    assert told.launch_check.matched is not None
    assert told.launch_check.matched.formula == "ceil(49,152 / 4) blocks"
    assert text(told, Heading.BLOCK_COMPUTES) == (
        "A block of 128 threads computes 4 rows: 4 groups of 32 lanes, 1 row each."
    )
    assert "8 values per thread." in text(told, Heading.MEMORY)
    assert "5 exchanges of warp shuffles" in text(told, Heading.SYNCHRONIZATION)
    assert told.waves is not None
    assert (told.waves.slots, round(told.waves.count, 2), round(told.waves.tail_fraction, 3)) == (
        2112,
        5.82,
        0.818,
    )


def test_padding_to_a_power_of_two_is_told(tell: Tell) -> None:
    assert "padded from 200 to 256 per row (21.9 % of the lanes' slots idle)" in text(
        softmax(tell, [16, 12, 256, 200]), Heading.MEMORY
    )


def test_two_rows_per_warp_up_to_128_elements(tell: Tell) -> None:
    told = softmax(tell, [8192, 12, 100], WARP_SOFTMAX.replace(", 8, ", ", 7, "))
    assert told.launch_check is not None
    assert told.launch_check.is_explained
    assert "8 rows: 4 groups of 32 lanes, 2 rows each" in text(told, Heading.BLOCK_COMPUTES)


def test_one_block_per_long_row(tell: Tell) -> None:
    told = tell(
        BLOCK_SOFTMAX, (257, 1, 1), (1024, 1, 1), "aten::_softmax", [[257, 40000], [], []],
        types=["float", "Scalar", "Scalar"], concrete=["", "-1", "False"],
    )  # fmt: skip
    assert told.launch_check is not None
    assert told.launch_check.is_explained
    assert "up to 40 per thread" in text(told, Heading.BLOCK_COMPUTES)
    assert "read three times" in text(told, Heading.MEMORY)
    assert "__syncthreads()" in text(told, Heading.SYNCHRONIZATION)


@pytest.mark.parametrize(
    ("kernel", "operator", "step"),
    [
        (LAYER_NORM, "aten::native_layer_norm", "Welford"),
        (RMS_NORM, "aten::_fused_rms_norm", "mean of squares"),
    ],
)
def test_normalization_of_rows(tell: Tell, kernel: str, operator: str, step: str) -> None:
    told = tell(
        kernel, (4096, 1, 1), (32, 4, 1), operator, [[16, 256, 768], [], [768], [768], []],
        concrete=["", "[768]", "", "", "1e-05"],
    )  # fmt: skip
    assert told.launch_check is not None
    assert told.launch_check.is_explained
    assert "up to 2 vectors of 4 elements per thread" in text(told, Heading.BLOCK_COMPUTES)
    assert step in text(told, Heading.ALGORITHM)


def test_the_weight_tells_the_row_where_lists_were_not_recorded(tell: Tell) -> None:
    told = tell(
        LAYER_NORM, (4096, 1, 1), (32, 4, 1), "aten::native_layer_norm",
        [[16, 256, 768], [], [768], [768], []],
    )  # fmt: skip
    assert "4,096 rows of 768 elements" in text(told, Heading.PARALLEL_OVER)


def test_the_weights_gradient_runs_down_columns(tell: Tell) -> None:
    shapes = [[16, 256, 768], [16, 256, 768], [], [16, 256, 1], [16, 256, 1], [768], [768], []]
    told = tell(
        COLUMNS, (24, 1, 1), (32, 32, 1), "aten::native_layer_norm_backward", shapes,
        concrete=["", "", "[768]", "", "", "", "", "[True, True, True]"],
    )  # fmt: skip
    assert told.launch_check is not None
    assert told.launch_check.is_explained
    assert "768 columns are independent" in text(told, Heading.PARALLEL_OVER)
    assert "256 rows at a time, 8 rows per thread" in text(told, Heading.BLOCK_COMPUTES)
