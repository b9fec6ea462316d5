"""Copies, indexing, sorting, scans and lists of tensors; launches as recorded on an H200."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from opscope.analysis.parallelism import Heading, ParallelismAccount

Tell = Callable[..., ParallelismAccount]

OPAQUE = "at::native::(anonymous namespace)::OpaqueType<2u>"
CAT = (
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy_vectorized<at::native::(anonymous "
    "namespace)::OpaqueType<2u>, unsigned int, 3, 128, 1, 16, 8>(char*)"
)
CAT_PLAIN = (
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::(anonymous "
    "namespace)::OpaqueType<2u>, unsigned int, 4, 64, 64>(T)"
)
SELECT = (
    "void at::native::(anonymous namespace)::indexSelectLargeIndex<float, long, unsigned int, 2, 2, -2, "
    "true>(T)"
)
SORT = "void at::native::radixSortKVInPlace<2, -1, 128, 32, float, long, unsigned int>(T)"
TOPK = "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(T)"
SCAN = (
    "void at::native::tensor_kernel_scan_outer_dim<float, unsigned int, std::plus<float> >(float*, float "
    "const*)"
)
FOREACH = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous "
    "namespace)::TensorListMetadata<2>, at::native::(anonymous namespace)::UnaryOpFunctor<float, 2, 1, 1>, "
    "at::native::Sqrt<float> >(T)"
)
EMBEDDING = (
    "void at::native::(anonymous namespace)::compute_grad_weight<c10::BFloat16, long>(long const*, "
    "c10::BFloat16 const*)"
)
DROPOUT = (
    "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<c10::BFloat16, float, unsigned int, 1, "
    "8, bool>(T)"
)


def text(told: ParallelismAccount, heading: Heading) -> str:
    return " ".join(one.text for one in told.under(heading))


def is_explained(told: ParallelismAccount) -> bool | None:
    return None if told.launch_check is None else told.launch_check.is_explained


def test_concatenation_gives_every_tensor_a_row_of_blocks(tell: Tell) -> None:
    told = tell(
        CAT, (22, 2, 1), (128, 1, 1), "aten::cat", [[[1, 12, 29, 64], [1, 12, 1, 64]], []],
        types=["TensorList", "Scalar"],
    )  # fmt: skip
    assert is_explained(told)
    assert "All 23,040 elements of 2 tensors" in text(told, Heading.PARALLEL_OVER)
    assert "ceil(22,272 / 1,024) blocks for the largest tensor × 2 tensors" in text(told, Heading.LAUNCH)
    assert "vectors of 16 B (8 × 2 B)" in text(told, Heading.MEMORY)


def test_strided_concatenation_is_launched_whatever_the_size(tell: Tell) -> None:
    lists: dict[str, Any] = {"types": ["TensorList", "Scalar"]}
    shapes = [[[0], [1, 12, 16, 64]], []]
    told = tell(CAT_PLAIN, (264, 2, 1), (512, 1, 1), "aten::cat", shapes, **lists)
    other = tell(CAT_PLAIN, (263, 2, 1), (512, 1, 1), "aten::cat", shapes, **lists)
    assert "2 blocks per multiprocessor × 2 tensors" in text(told, Heading.LAUNCH)
    assert is_explained(other) is False


@pytest.mark.parametrize(
    ("concrete", "slices"), [(["", "0", ""], "333 slices of 700"), (["", "1", ""], "333 slices of 1,000")]
)
def test_index_select_depends_on_the_dimension(tell: Tell, concrete: list[str], slices: str) -> None:
    told = tell(
        SELECT, (1056, 1, 1), (128, 1, 1), "aten::index_select", [[1000, 700], [], [333]], concrete=concrete
    )
    assert slices in text(told, Heading.PARALLEL_OVER)


def test_without_the_dimension_slices_are_not_told(tell: Tell) -> None:
    told = tell(SELECT, (1056, 1, 1), (128, 1, 1), "aten::index_select", [[1000, 700], [], [333]])
    assert not told.under(Heading.PARALLEL_OVER)
    assert told.launch_check is None


def test_the_gradient_of_an_embedding_is_launched_for_the_most_segments(tell: Tell) -> None:
    told = tell(
        EMBEDDING, (4505, 1, 1), (768, 1, 1), "aten::embedding_dense_backward",
        [[16, 256, 768], [16, 256], [], [], []],
        types=["c10::BFloat16", "long int", "Scalar", "Scalar", "Scalar"],
        concrete=["", "", "30522", "0", "False"],
    )  # fmt: skip
    assert is_explained(told)
    assert "Up to 4,505 partial segments × 768 features" in text(told, Heading.PARALLEL_OVER)


def test_one_block_sorts_one_slice(tell: Tell) -> None:
    told = tell(
        SORT, (4096, 1, 1), (128, 1, 1), "aten::sort", [[4096, 4096], [], [], []],
        types=["float", "Scalar", "Scalar", "Scalar"], concrete=["", "False", "-1", "False"], registers=195,
        shared_bytes=33808,
    )  # fmt: skip
    assert is_explained(told)
    assert "one slice of up to 4,096 pairs, 32 per thread" in text(told, Heading.BLOCK_COMPUTES)
    assert told.waves is not None
    assert (told.waves.residency.blocks_per_sm, told.waves.slots) == (2, 264)


def test_selection_needs_no_full_sort(tell: Tell) -> None:
    told = tell(
        TOPK, (100, 1, 1), (1024, 1, 1), "aten::topk", [[100, 1000], [], [], [], []],
        types=["float", "Scalar", "Scalar", "Scalar", "Scalar"], concrete=["", "5", "-1", "True", "True"],
    )  # fmt: skip
    assert is_explained(told)
    assert "no full sort" in text(told, Heading.ALGORITHM)


def test_a_scan_down_columns_is_sequential_inside_a_column(tell: Tell) -> None:
    told = tell(
        SCAN, (1, 8, 1), (512, 1, 1), "aten::cumsum", [[4096, 4096], [], []],
        types=["float", "Scalar", ""], concrete=["", "0", ""],
    )  # fmt: skip
    assert is_explained(told)
    assert "nothing inside a column runs in parallel" in text(told, Heading.SYNCHRONIZATION)


def test_a_list_of_tensors_is_cut_into_chunks(tell: Tell) -> None:
    lists = [[1024, 1024], [1000003], [7]]
    told = tell(FOREACH, (33, 1, 1), (512, 1, 1), "aten::_foreach_sqrt", [lists], types=["TensorList"])
    other = tell(FOREACH, (34, 1, 1), (512, 1, 1), "aten::_foreach_sqrt", [lists], types=["TensorList"])
    assert "33 chunks of up to 65,536 elements" in text(told, Heading.LAUNCH)
    assert "All 2,048,586 elements of 3 tensors" in text(told, Heading.PARALLEL_OVER)
    assert is_explained(other) is False


def test_members_of_a_list_that_were_not_recorded_are_not_counted(tell: Tell) -> None:
    told = tell(FOREACH, (48, 1, 1), (512, 1, 1), "aten::_foreach_sqrt", [[]], types=["TensorList"])
    assert told.launch_check is None
    assert "48 chunks: at most 3,145,728 elements" in text(told, Heading.BLOCK_COMPUTES)


def test_dropout_fills_the_device_and_loops(tell: Tell) -> None:
    told = tell(
        DROPOUT, (1056, 1, 1), (256, 1, 1), "aten::native_dropout", [[16, 256, 768], [], []],
        types=["c10::BFloat16", "Scalar", "Scalar"], concrete=["", "0.1", "True"],
    )  # fmt: skip
    assert is_explained(told)
    assert "2 steps of the grid-stride loop" in text(told, Heading.BLOCK_COMPUTES)
    assert "own subsequence of the Philox generator" in text(told, Heading.SYNCHRONIZATION)
