"""Elementwise kernels; launches as recorded on an H200 with PyTorch 2.11 where not said otherwise."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from opscope.analysis.parallelism import Heading, ParallelismAccount

Tell = Callable[..., ParallelismAccount]

GELU = (
    "void at::native::vectorized_elementwise_kernel<8, at::native::GeluCUDAKernelImpl(at::"
    "TensorIteratorBase&, at::native::GeluType)::{lambda()#2}::operator()() "
    "const::{lambda()#4}::operator()() const::{lambda(c10::BFloat16)#1}, std::array<char*, 2ul> >(int, F, "
    "std::array<char*, 2ul>)"
)
ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)
FILL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, "
    "std::array<char*, 1ul> >(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)"
)
CAST = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::"
    "TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#7}::operator()() "
    "const::{lambda(float)#1}, std::array<char*, 2ul>, 4, TrivialOffsetCalculator<1, unsigned int>, "
    "TrivialOffsetCalculator<1, unsigned int>, at::native::memory::LoadWithCast<1>, "
    "at::native::memory::StoreWithCast<1> >(int)"
)
COPY = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::"
    "direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#10}::"
    "operator()() const::{lambda(c10::BFloat16)#1}>(at::TensorIteratorBase&, F)::{lambda(int)#1}>(int, F)"
)
MUL = (
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::BinaryFunctor"
    "<float, float, float, at::native::binary_internal::MulFunctor<float> > >(at::TensorIteratorBase&, F)::"
    "{lambda(int)#1}>(int, F)"
)
BLOCK = (128, 1, 1)


def text(told: ParallelismAccount, heading: Heading) -> str:
    return " ".join(one.text for one in told.under(heading))


def gelu(tell: Tell, shape: list[int]) -> ParallelismAccount:
    return tell(
        GELU, (12288, 1, 1), BLOCK, "aten::gelu", [shape, []], types=["c10::BFloat16", "Scalar"],
        registers=32, shared_bytes=0,
    )  # fmt: skip


def test_of_a_vectorized_kernel_the_elements_of_this_call_are_told(tell: Tell) -> None:
    told = gelu(tell, [16, 256, 3072])
    assert "All 12,582,912 output elements (16×256×3,072)" in text(told, Heading.PARALLEL_OVER)
    assert text(told, Heading.BLOCK_COMPUTES) == (
        "A block of 128 threads computes 1,024 elements, 8 per thread."
    )
    assert "ceil(12,582,912 / 1,024) blocks (8 elements per thread, PyTorch 2.11 to 2.14)" in text(
        told, Heading.LAUNCH
    )
    assert "vectors of 8 elements, 16 B (8 × 2 B)" in text(told, Heading.MEMORY)
    assert "applies at::native::GeluCUDAKernelImpl" in text(told, Heading.ALGORITHM)


def test_a_grid_the_shapes_do_not_give_is_said_to_be_unexplained(tell: Tell) -> None:
    told = gelu(tell, [16, 256, 3071])
    assert told.launch_check is not None
    assert not told.launch_check.is_explained
    assert text(told, Heading.LAUNCH) == (
        "Not explained: launched as grid 12,288 of blocks of 128 threads, but what was recorded would give "
        "grid 12,284 of blocks of 128 threads (ceil(12,578,816 / 1,024) blocks)."
    )
    assert not told.under(Heading.BLOCK_COMPUTES)


@pytest.mark.parametrize(
    ("release", "blocks", "per_thread"),
    [
        (None, 2048, "4 elements per thread, PyTorch 2.6"),
        (None, 1024, "8 elements per thread, PyTorch 2.11 to 2.14"),
        ("2.6.0+cu124", 2048, "4 elements per thread"),
        ("2.11.0", 1024, "8 elements per thread"),
        ("2.11.0", 2048, None),
        (None, 4096, None),
    ],
)
def test_elements_per_thread_are_those_of_the_release(
    tell: Tell, release: str | None, blocks: int, per_thread: str | None
) -> None:
    told = tell(
        ADD, (blocks, 1, 1), BLOCK, "aten::add", [[1024, 1024], [1024, 1024], []],
        types=["float", "float", "Scalar"], torch_version=release,
    )  # fmt: skip
    assert told.launch_check is not None
    matched = told.launch_check.matched
    assert (matched.configuration if matched else None) == per_thread


def test_the_last_block_goes_without_vectors(tell: Tell) -> None:
    told = tell(
        ADD, (977, 1, 1), BLOCK, "aten::add", [[1000003], [1000003], []], types=["float", "float", "Scalar"]
    )
    assert "the last one has 579 left" in text(told, Heading.BLOCK_COMPUTES)
    assert "goes element by element" in text(told, Heading.MEMORY)


def test_a_fill_reads_nothing(tell: Tell) -> None:
    told = tell(FILL, (2, 1, 1), BLOCK, "aten::fill_", [[2, 768], []], types=["float", "Scalar"])
    assert text(told, Heading.PARALLEL_OVER).endswith("each is written alone.")
    assert "loads nothing" in text(told, Heading.ALGORITHM)


def test_an_unrolled_kernel_casts(tell: Tell) -> None:
    told = tell(
        CAST, (1536, 1, 1), BLOCK, "aten::copy_", [[1024, 768], [1024, 768], []],
        types=["c10::BFloat16", "float", "Scalar"], strides=[[768, 1], [768, 1], []],
    )  # fmt: skip
    assert told.launch_check is not None
    assert told.launch_check.is_explained
    assert "each element is cast" in text(told, Heading.MEMORY)


def test_a_transposing_copy_tells_the_distance_of_neighbors(tell: Tell) -> None:
    types = ["c10::BFloat16", "c10::BFloat16", "Scalar"]
    rows = [[16, 256, 768], [16, 256, 768], []]
    coalesced = tell(
        COPY, (6144, 1, 1), BLOCK, "aten::copy_", [[16, 256, 12, 64], [16, 256, 12, 64], []], types=types,
        strides=[[196608, 768, 64, 1], [196608, 64, 16384, 1], []],
    )  # fmt: skip
    strided = tell(
        COPY, (6144, 1, 1), BLOCK, "aten::copy_", rows, types=types,
        strides=[[196608, 768, 1], [196608, 1, 256], []],
    )  # fmt: skip
    assert "(64) neighboring threads read and write neighboring elements: coalesced" in text(
        coalesced, Heading.MEMORY
    )
    assert "read 256 elements (512 B) apart: the reads are not coalesced" in text(strided, Heading.MEMORY)


def test_a_broadcast_operand_is_read_again(tell: Tell) -> None:
    told = tell(
        MUL, (16384, 1, 1), BLOCK, "aten::mul", [[4096, 1024], [4096, 1]], types=["float", "float"],
        strides=[[1024, 1], [1, 1]],
    )  # fmt: skip
    assert "Operand 1 has 4,096 elements: each is read 1,024 times" in text(told, Heading.MEMORY)


def test_arguments_of_a_compiled_region_are_not_the_kernels(tell: Tell) -> None:
    told = tell(ADD, (977, 1, 1), BLOCK, "Torch-Compiled Region: 0/0", [[1000003], [1000003]])
    assert told.launch_check is None
    assert not told.under(Heading.PARALLEL_OVER)


def test_tensors_beyond_32_bit_offsets_are_split(tell: Tell) -> None:
    # 2**32 floats are halved until a part's offsets in bytes fit 31 bits: 16 parts of 2**28 elements.
    told = tell(
        MUL, (2**20, 1, 1), BLOCK, "aten::mul", [[2**16, 2**16], [2**16, 1]], types=["float", "float"]
    )
    assert told.launch_check is not None
    assert told.launch_check.matched is not None
    assert "of 16 parts that 32-bit offsets reach" in told.launch_check.matched.formula
