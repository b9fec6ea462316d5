"""How launches fill the device: by hand on small traces, and against the recorder's estimate on real ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from opscope.analysis.common_device import common_device
from opscope.analysis.launch_quality import (
    LaunchQuality,
    kernel_quality,
    launch_quality,
    quality_by_kernel,
    quality_by_operator,
    total_quality,
)
from opscope.analysis.occupancy import WARP_SIZE, Limiter
from opscope.analysis.queries import sql
from opscope.analysis.summary import summarize
from opscope.model.session import Session
from opscope.testing import TraceBuilder

Load = Callable[..., Session]

H200 = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0, "numSms": 132}


def launched(load: Load, *, device: dict[str, Any] | None = None, **args: Any) -> LaunchQuality:
    built = TraceBuilder(deviceProperties=[H200 if device is None else device])
    built.operator("aten::mm", 0, 10).launch(1).kernel("k", 20, 5, **args)
    (found,) = launch_quality(load(built))
    return found


def test_a_launch_of_part_of_a_wave(load: Load) -> None:
    sizes: dict[str, Any] = {"registers per thread": 218, "shared memory": 19_200}
    found = launched(load, grid=[8, 12, 1], block=[128, 1, 1], **sizes, **{"est. achieved occupancy %": 5})
    assert (found.operator, found.kernel, found.calls, found.total_ns) == ("aten::mm", "k", 1, 5_000)
    assert (found.occupancy, found.limiters) == (0.125, (Limiter.REGISTERS,))
    assert found.waves == pytest.approx(96 / 264)
    assert found.tail_loss == pytest.approx(168 / 264)
    assert (found.idle_sm_count, found.is_underfilled, found.partial_warp_loss) == (36, True, 0)
    assert (found.occupancy_estimate, recorder_estimate(found)) == (0.05, pytest.approx(1 / 22))


def test_a_launch_of_several_waves_with_partial_warps(load: Load) -> None:
    sizes: dict[str, Any] = {"registers per thread": 32, "shared memory": 0}
    found = launched(load, grid=[5000, 1, 1], block=[80, 1, 1], **sizes)
    assert found.filled is not None
    assert found.filled.slots == 132 * 21  # 64 warps hold 21 blocks of three warps
    assert (found.idle_sm_count, found.is_underfilled) == (0, False)
    assert found.partial_warp_loss == pytest.approx(16 / 96)


def test_unknown_resources_leave_what_the_grid_alone_says(load: Load) -> None:
    few, many = launched(load, grid=[64, 1, 1]), launched(load, grid=[132, 1, 1])
    assert (few.waves, few.occupancy, few.tail_loss, few.limiters) == (None, None, None, ())
    assert (few.idle_sm_count, few.is_underfilled) == (68, True)
    assert (many.idle_sm_count, many.is_underfilled) == (0, None)


def test_an_unknown_device_says_nothing(load: Load) -> None:
    found = launched(load, device={"id": 0, "name": "X"}, **{"registers per thread": 32, "shared memory": 0})
    assert (found.waves, found.idle_sm_count, found.is_underfilled) == (None, None, None)


@pytest.mark.parametrize("extent", [[0, 1, 1], [-1, 1, 1]])
def test_an_extent_that_cannot_be_is_unknown(load: Load, extent: list[int]) -> None:
    sizes: dict[str, Any] = {"registers per thread": 32, "shared memory": 0}
    assert launched(load, grid=extent, **sizes).waves is None
    assert launched(load, block=extent, **sizes).partial_warp_loss is None


def test_copies_have_no_quality_and_devices_that_differ_give_none(load: Load) -> None:
    built = TraceBuilder(deviceProperties=[H200, {**H200, "id": 1, "numSms": 108}])
    sizes: dict[str, Any] = {"registers per thread": 32, "shared memory": 0}
    built.kernel("k", 20, 5, **sizes).kernel("k", 20, 5, device=1, **sizes)
    built.kernel("Memcpy HtoD (Pageable -> Device)", 40, 5, category="gpu_memcpy")
    (found,) = launch_quality(load(built))
    assert (found.calls, found.waves) == (2, None)


def test_totals_weigh_by_time(load: Load) -> None:
    built = TraceBuilder(deviceProperties=[H200])
    sizes: dict[str, Any] = {"registers per thread": 32, "shared memory": 0}
    built.operator("a", 0, 10).launch(1).kernel("k", 20, 30, grid=[132, 1, 1], block=[1024, 1, 1], **sizes)
    built.operator("a", 10, 10).launch(11).kernel("k", 60, 10, grid=[396, 1, 1], block=[1000, 1, 1], **sizes)
    built.operator("b", 30, 10).launch(31).kernel("other", 80, 7)
    quality = launch_quality(load(built))
    total = quality_by_operator(quality)["a"]
    assert (total.total_ns, total.known_ns, total.underfilled_ns, total.partial_warp_ns) == (
        40_000, 40_000, 30_000, 10_000,
    )  # fmt: skip
    assert total.occupancy == 1.0  # of warps, partial ones too
    assert total.tail_loss == pytest.approx(0.75 * 0.5 + 0.25 * 0.25)
    assert total.limiters == {Limiter.THREADS: 40_000, Limiter.REGISTERS: 40_000}
    assert quality_by_operator(quality)["b"].tail_loss is None
    assert quality_by_kernel(quality)["k"] == total
    assert total_quality(quality).total_ns == 47_000
    assert total_quality(()).occupancy is None


def test_rows_at_hand_are_not_read_again(load: Load) -> None:
    session = load(TraceBuilder(deviceProperties=[H200]).kernel("k", 1, 2))
    rows = session.records(sql("launches"))
    assert launch_quality(session, rows) == launch_quality(session)


TRACES = [
    "bert_bs8_seq128_infer", "bert_train_bf16", "gpt2_generate_fp16", "misc_ops_fp32", "own_kernels",
    "gpt2_compile_cudagraph_bf16",
]  # fmt: skip


def recorder_estimate(launch: LaunchQuality) -> float:
    """What Kineto writes as estimated occupancy, 0–1: the least of what fits and what the grid holds.

    It counts threads, not warps, and rounds to whole percents.
    Source: pytorch/kineto, libkineto/src/CudaDeviceProperties.cpp (`kernelOccupancy`).
    """
    assert launch.residency
    assert launch.blocks
    assert launch.threads
    assert launch.sm_count
    resident = min(float(launch.residency.blocks_per_sm), launch.blocks / launch.sm_count)
    return resident * launch.threads / (launch.residency.max_warps_per_sm * WARP_SIZE)


@pytest.mark.parametrize("name", TRACES)
def test_the_recorder_estimates_what_we_compute(load: Load, shared: Any, name: str) -> None:
    """Where it estimates at all: it gives up beyond 48 KiB of shared memory, and rounds small ones away."""
    quality = launch_quality(load(shared / "traces" / "h200" / f"{name}.json.gz"))
    assert quality
    for launch in quality:
        expected = recorder_estimate(launch)
        if launch.occupancy_estimate is not None:
            assert launch.occupancy_estimate == pytest.approx(expected, abs=0.0051)
            assert launch.occupancy is not None
            assert launch.occupancy_estimate <= launch.occupancy + 0.0051
        else:
            shared_bytes = launch.geometry.shared_memory_bytes or 0
            assert shared_bytes > 48 * 1024 or expected < 0.005, launch


def test_a_kernel_s_geometries_have_their_own_quality(load: Load) -> None:
    built = TraceBuilder(deviceProperties=[H200])
    built.operator("a", 0, 10).launch(1).kernel("k", 20, 30, grid=[66, 1, 1])
    built.operator("b", 10, 10).launch(11).kernel("k", 60, 10, grid=[396, 1, 1])
    session = load(built)
    (kernel,) = summarize(session).kernels
    quality = kernel_quality(kernel, common_device(session))
    assert [(one.idle_sm_count, one.total_ns) for one in quality] == [(66, 30_000), (0, 10_000)]
