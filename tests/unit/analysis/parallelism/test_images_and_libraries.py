"""Image windows, convolutions, generated kernels, collectives, transforms and the driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from opscope.analysis.parallelism import Heading, ParallelismAccount, parse_compile_arguments
from opscope.analysis.parallelism.image_windows import window_size

Tell = Callable[..., ParallelismAccount]

POOL = "void at::native::(anonymous namespace)::max_pool_forward_nchw<float, int>(int, float const*)"
AVERAGE_BACKWARD = (
    "void at::native::(anonymous namespace)::avg_pool2d_backward_out_cuda_frame<float, float, int>(int)"
)
DEPTHWISE = "void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<3, float, int>(T)"
CONVOLUTION = (
    "sm90_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize256x32x32_warpgroupsize1x1x1_g1_"
    "execute_segment_k_off_kernel__5x_cudnn"
)
FFT = (
    "void vector_fft_symm_r2c<4096u, EPT<16u>, 1u, 0u, (padding_t)70, (twiddle_t)0, (loadstore_modifier_t)2, "
    "(layout_t)0, unsigned int, float>(kernel_arguments_t<unsigned int>)"
)
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def text(told: ParallelismAccount, heading: Heading) -> str:
    return " ".join(one.text for one in told.under(heading))


def is_explained(told: ParallelismAccount) -> bool | None:
    return None if told.launch_check is None else told.launch_check.is_explained


@pytest.mark.parametrize(
    ("sizes", "rounds_up", "windows"),
    [  # size, kernel, stride, padding, dilation
        ((56, 3, 2, 1, 1), False, 28),
        ((56, 2, 2, 0, 1), False, 28),
        ((7, 3, 2, 0, 1), False, 3),
        ((8, 3, 2, 0, 1), True, 4),
        ((5, 2, 4, 0, 1), True, 2),
        ((4, 2, 4, 1, 1), True, 2),
        ((4, 2, 5, 1, 1), True, 1),  # a second window would begin in the padding
        ((30, 3, 1, 0, 2), False, 26),
        ((2, 3, 1, 0, 1), False, 0),
    ],
)
def test_windows_along_a_side(sizes: tuple[int, int, int, int, int], rounds_up: bool, windows: int) -> None:
    assert window_size(*sizes, rounds_up=rounds_up) == windows


def test_one_thread_per_pooled_output(tell: Tell) -> None:
    told = tell(
        POOL, (3136, 1, 1), (256, 1, 1), "aten::max_pool2d_with_indices",
        [[16, 64, 56, 56], [], [], [], [], []],
        types=["float", *["ScalarList"] * 4, "Scalar"],
        concrete=["", "[3, 3]", "[2, 2]", "[1, 1]", "[1, 1]", "False"],
    )  # fmt: skip
    assert is_explained(told)
    assert "All 802,816 outputs (16×64×28×28)" in text(told, Heading.PARALLEL_OVER)


def test_one_thread_per_input_gradient(tell: Tell) -> None:
    told = tell(
        AVERAGE_BACKWARD, (3136, 1, 1), (1024, 1, 1), "aten::avg_pool2d_backward",
        [[16, 64, 28, 28], [16, 64, 56, 56], [], [], [], [], [], []],
    )  # fmt: skip
    assert is_explained(told)
    assert "All 3,211,264 input gradients" in text(told, Heading.PARALLEL_OVER)


def test_depthwise_convolution(tell: Tell) -> None:
    told = tell(
        DEPTHWISE, (392, 1, 1), (1024, 1, 1), "aten::_conv_depthwise2d",
        [[8, 64, 30, 30], [64, 1, 3, 3], [], [64], [], [], []],
        types=["float", "float", "ScalarList", "float", *["ScalarList"] * 3],
        concrete=["", "", "[3, 3]", "", "[1, 1]", "[0, 0]", "[1, 1]"],
    )  # fmt: skip
    assert is_explained(told)
    assert "8×64×28×28" in text(told, Heading.PARALLEL_OVER)


def convolution(tell: Tell, grid: tuple[int, int, int]) -> ParallelismAccount:
    return tell(
        CONVOLUTION, grid, (384, 1, 1), "aten::cudnn_convolution",
        [[16, 64, 56, 56], [32, 64, 5, 5], [], [], [], [], [], [], []],
        types=["float", "float", *["ScalarList"] * 3, *["Scalar"] * 4],
        concrete=["", "", "[0, 0]", "[2, 2]", "[2, 2]", "1", "False", "False", "True"],
    )  # fmt: skip


def test_an_implicit_product_is_tiled_like_a_product(tell: Tell) -> None:
    told = convolution(tell, (18, 2, 1))
    assert is_explained(told)
    assert "9,216×32 sums of 1,600 terms" in text(told, Heading.PARALLEL_OVER)
    assert "addressed, never stored" in text(told, Heading.ALGORITHM)
    assert is_explained(convolution(tell, (200, 2, 1))) is False


def test_transforms_of_a_batch(tell: Tell) -> None:
    told = tell(
        FFT, (64, 1, 1), (128, 1, 1), "aten::_fft_r2c", [[64, 4096], [], [], []],
        types=["float", "ScalarList", "Scalar", "Scalar"], concrete=["", "[1]", "0", "True"],
    )  # fmt: skip
    assert is_explained(told)
    assert "64 transforms of 4,096 points" in text(told, Heading.PARALLEL_OVER)


def triton(tell: Tell, kind: str, numbers: list[str], **sizes: int) -> ParallelismAccount:
    name = f"triton_{kind}_fused_add_0"
    grid: tuple[int, int, int] = (96, 1, 1)
    return tell(
        name, grid, (128, 1, 1), name, [[16, 768], *[[] for _ in numbers]], concrete=["", *numbers],
        types=["float", *["Scalar"] * len(numbers)], compile_arguments=sizes,
    )  # fmt: skip


def test_programs_of_a_generated_pointwise_kernel(tell: Tell) -> None:
    told = triton(tell, "poi", ["12288"], XBLOCK=128)
    assert is_explained(told)
    assert "128 elements (XBLOCK=128): 1 per thread" in text(told, Heading.BLOCK_COMPUTES)
    assert is_explained(triton(tell, "poi", ["12289"], XBLOCK=128)) is False


def test_programs_of_a_generated_reduction(tell: Tell) -> None:
    loop = triton(tell, "red", ["96", "5000"], XBLOCK=1, R0_BLOCK=2048)
    held = triton(tell, "per", ["768", "200"], XBLOCK=8)
    assert "1 row (XBLOCK=1) of 5,000 elements in 3 pieces of 2,048" in text(loop, Heading.BLOCK_COMPUTES)
    assert "8 rows (XBLOCK=8), each of 200 elements held at once" in text(held, Heading.BLOCK_COMPUTES)
    assert is_explained(loop)
    assert is_explained(held)


def test_without_block_sizes_programs_are_not_told(tell: Tell) -> None:
    told = triton(tell, "poi", ["12288"])
    assert told.launch_check is None
    assert not told.under(Heading.BLOCK_COMPUTES)


@pytest.mark.parametrize(
    ("recorded", "sizes"),
    [
        ("XBLOCK=4,RBLOCK=256", {"XBLOCK": 4, "RBLOCK": 256}),
        ("XBLOCK=4,num_warps=None", {"XBLOCK": 4}),
        ("", {}),
        (None, {}),
        ("=,=3", {"": 3}),
    ],
)
def test_block_sizes_as_recorded(recorded: str | None, sizes: dict[str, int]) -> None:
    assert parse_compile_arguments(recorded) == sizes


def test_channels_of_a_collective(tell: Tell) -> None:
    told = tell(ALL_REDUCE, (24, 1, 1), (544, 1, 1), registers=96, shared_bytes=103808)
    assert "24 channels: one block of 544 threads each" in text(told, Heading.BLOCK_COMPUTES)
    assert "slowest rank" in text(told, Heading.SYNCHRONIZATION)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "A copy of 4.10 kB from host to device by the driver"),
        ("Memset (Device)", "A memory set of 4.10 kB by the driver"),
    ],
)
def test_the_driver_launches_no_grid(tell: Tell, name: str, said: str) -> None:
    told = tell(name, size_bytes=4096)
    assert said in text(told, Heading.ALGORITHM)
    assert {one.heading for one in told.statements} == {Heading.ALGORITHM}


def test_a_kernel_no_rule_knows_has_only_its_geometry_told(tell: Tell) -> None:
    options: dict[str, Any] = {"registers": 40, "shared_bytes": 0}
    told = tell("my_kernel(float*)", (4096, 1, 1), (256, 1, 1), "mine::op", [[4096, 256]], **options)
    assert told.family is None
    assert {one.heading for one in told.statements} == {Heading.WAVES, Heading.MEMORY}
