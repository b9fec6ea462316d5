from __future__ import annotations

from pathlib import Path

import pytest

from opscope import load
from opscope.analysis.counter_commands import Topic, find_improvements
from opscope.analysis.launch_quality import launch_quality
from opscope.analysis.summary import Summary
from opscope.testing import TraceBuilder

H200 = {
    "id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0, "numSms": 132, "warpSize": 32,
    "totalGlobalMem": 150_109_880_320, "maxThreadsPerMultiprocessor": 2048, "regsPerMultiprocessor": 65536,
    "sharedMemPerMultiprocessor": 233_472,
}  # fmt: skip
VECTORIZED = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl("
    "at::TensorIteratorBase&, at::native::GeluType)::{lambda()#2}::operator()() const::{lambda()#2}::"
    "operator()() const::{lambda(float)#1}, std::array<char*, 2ul> >(int)"
)


def improvement_of(tmp_path: Path, builder: TraceBuilder, operator: str):
    with load(builder.write(tmp_path / "trace.json")) as session:
        return Summary(session).improvements[operator]


def builder() -> TraceBuilder:
    return TraceBuilder(deviceProperties=[H200])


def known(found, topic: Topic) -> str | None:
    return next(one.known for one in found.topics if one.topic is topic)


def launched(name: str, duration: float = 50, **args) -> TraceBuilder:
    arguments = {"registers per thread": 32, "shared memory": 0, "block": [128, 1, 1], "grid": [4096, 1, 1]}
    return builder().operator("aten::op", 0, 20).launch(2).kernel(name, 30, duration, **(arguments | args))


def test_no_shared_memory_means_no_bank_conflicts(tmp_path: Path) -> None:
    found = improvement_of(tmp_path, launched("k"), "aten::op")
    assert known(found, Topic.BANK_CONFLICTS) == "none: the kernel uses no shared memory"
    shared = improvement_of(tmp_path, launched("k", **{"shared memory": 1024}), "aten::op")
    assert known(shared, Topic.BANK_CONFLICTS) is None
    assert "l1tex__data_bank" in shared.command or "shared" in shared.command


def test_the_limiter_of_occupancy_is_named_with_waves(tmp_path: Path) -> None:
    found = improvement_of(tmp_path, launched("k", **{"registers per thread": 128}), "aten::op")
    text = known(found, Topic.OCCUPANCY)
    assert text.startswith(
        "25 % of the warps a multiprocessor holds (16 of 64), limited by registers; 7.76 waves"
    )
    few = improvement_of(tmp_path, launched("k", grid=[32, 1, 1]), "aten::op")
    assert known(few, Topic.OCCUPANCY).endswith("32 blocks leave 100 of 132 idle")


def test_partial_warps_are_divergence(tmp_path: Path) -> None:
    found = improvement_of(tmp_path, launched("k", block=[80, 1, 1]), "aten::op")
    assert known(found, Topic.DIVERGENCE) == "blocks of 80 threads leave 17 % of their warps' lanes unused"
    assert known(improvement_of(tmp_path, launched("k"), "aten::op"), Topic.DIVERGENCE) is None


def test_a_vectorized_kernel_says_so_by_its_name(tmp_path: Path) -> None:
    found = improvement_of(tmp_path, launched(VECTORIZED), "aten::op")
    assert (
        known(found, Topic.COALESCING)
        == "each thread loads 4 neighboring elements at once, by the kernel's name"
    )
    assert "regex:" in found.command
    assert "GeluCUDAKernelImpl" in found.command


def test_short_kernels_are_a_matter_of_launches(tmp_path: Path) -> None:
    found = improvement_of(tmp_path, launched("k", duration=1.5), "aten::op")
    assert known(found, Topic.LAUNCHES) == "1 run 1.50 µs on average, no longer than a launch costs the host"


def test_several_kernels_of_a_call_pass_results_through_memory(tmp_path: Path) -> None:
    trace = builder().operator("aten::op", 0, 20).launch(2).kernel("a", 30, 5).launch(4).kernel("b", 36, 6)
    found = improvement_of(tmp_path, trace, "aten::op")
    assert known(found, Topic.FUSION) == "2.0 kernels per call pass their results through device memory"
    assert found.kernel == "b"


def test_the_command_counts_launches_that_its_filter_cannot_tell_apart(tmp_path: Path) -> None:
    trace = builder()
    for index in range(3):
        trace.operator(f"aten::op{index}", 100 * index, 20).launch(100 * index + 2)
        trace.kernel("void scale<float>(int)", 100 * index + 30, 5 + index)
    found = improvement_of(tmp_path, trace, "aten::op2")
    assert "--launch-skip 2" in found.command
    assert "--launch-count 1" in found.command


def test_operators_without_kernels_have_none(tmp_path: Path) -> None:
    trace = (
        builder()
        .operator("aten::op", 0, 20)
        .launch(2)
        .kernel("Memset (Device)", 30, 1, category="gpu_memset")
    )
    with load(trace.write(tmp_path / "trace.json")) as session:
        summary = Summary(session)
        assert summary.improvements == {}
        assert find_improvements(session, (), launch_quality(session), summary.efficiency, None) == {}


@pytest.mark.parametrize("missing", ["registers per thread", "shared memory"])
def test_what_the_trace_lacks_is_left_open(tmp_path: Path, missing: str) -> None:
    found = improvement_of(tmp_path, launched("k", **{missing: None}), "aten::op")
    assert known(found, Topic.OCCUPANCY) is None
    assert all(one.needs_counters for one in found.topics if one.topic is Topic.OCCUPANCY)
