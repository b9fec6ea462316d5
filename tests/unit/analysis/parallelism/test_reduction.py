"""`reduce_kernel`: grid and block follow from shape, strides and device as Reduce.cuh computes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from opscope.analysis.parallelism import DeviceFacts, Heading, ParallelismAccount

Tell = Callable[..., ParallelismAccount]

SUM = (
    "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<c10::BFloat16, at::native::func_wrapper_t<"
    "c10::BFloat16, at::native::sum_functor<c10::BFloat16, float, c10::BFloat16>::operator()(at::"
    "TensorIterator&)::{lambda(float, float)#1}>, unsigned int, c10::BFloat16, 4, 4> >(R)"
)
MEAN = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float, "
    "float, float>, unsigned int, float, 4, 4> >(R)"
)


def text(told: ParallelismAccount, heading: Heading) -> str:
    return " ".join(one.text for one in told.under(heading))


def total(tell: Tell, **options: Any) -> ParallelismAccount:
    facts: dict[str, Any] = {
        "types": ["float", "ScalarList", "Scalar", ""],
        "strides": [[196608, 768, 1], [], [], []],
        "concrete": ["", "[]", "False", ""],
        "registers": 32,
        "shared_bytes": 2064,
    }
    shapes = [[16, 256, 768], [], [], []]
    return tell(MEAN, (1, 384, 1), (512, 1, 1), "aten::mean", shapes, **{**facts, **options})


def columns(tell: Tell, rows: int, *, blocks: int = 64) -> ParallelismAccount:
    return tell(
        SUM, (8, blocks, 1), (32, 4, 1), "aten::sum", [[rows, 1024], [], [], []],
        types=["c10::BFloat16", "ScalarList", "Scalar", ""], strides=[[1024, 1], [], [], []],
        concrete=["", "[0]", "True", ""], registers=40, shared_bytes=16384,
    )  # fmt: skip


def test_a_full_reduction_shares_one_output_among_blocks(tell: Tell) -> None:
    told = total(tell)
    assert told.launch_check is not None
    assert told.launch_check.is_explained
    assert "One output from 3,145,728 inputs (16×256×768)" in text(told, Heading.PARALLEL_OVER)
    assert "up to 16 inputs per thread" in text(told, Heading.BLOCK_COMPUTES)
    assert "the last to arrive combines them, so no second launch" in text(told, Heading.SYNCHRONIZATION)
    assert "warp shuffles" in text(told, Heading.SYNCHRONIZATION)
    assert "multiplies the sum by 1/count" in text(told, Heading.ALGORITHM)


def test_columns_are_read_side_by_side(tell: Tell) -> None:
    told = columns(tell, 4096)
    assert told.launch_check is not None
    assert told.launch_check.is_explained
    assert "1,024 outputs of 4,096×1,024 reduced to 1,024" in text(told, Heading.PARALLEL_OVER)
    assert "works on 128 outputs: 4 threads of 128 share each" in text(told, Heading.BLOCK_COMPUTES)
    assert "The kept dimension is contiguous" in text(told, Heading.MEMORY)
    assert told.waves is not None
    assert (told.waves.residency.blocks_per_sm, told.waves.slots) == (12, 1584)


@pytest.mark.parametrize(("rows", "blocks"), [(40960, 64), (4096, 63)])
def test_another_size_or_grid_is_not_explained(tell: Tell, rows: int, blocks: int) -> None:
    told = columns(tell, rows, blocks=blocks)
    assert told.launch_check is not None
    assert not told.launch_check.is_explained
    assert text(told, Heading.LAUNCH).startswith("Not explained")


@pytest.mark.parametrize(
    "missing",
    [{"device": None}, {"device": DeviceFacts("unknown", None, None)}, {"concrete": None}, {"strides": None}],
)
def test_without_device_dimensions_or_strides_the_launch_is_not_judged(
    tell: Tell, missing: dict[str, Any]
) -> None:
    told = total(tell, **missing)
    if "strides" in missing:  # contiguous is then assumed
        return
    assert told.launch_check is None
    assert "inputs per thread" not in text(told, Heading.BLOCK_COMPUTES)
