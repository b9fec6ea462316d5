"""What is worth profiling, the command that would tell of a kernel, and what is left for it to tell."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from case_tables import cases
from fakes import H200, TraceBuilder
from opscope import load
from opscope.analysis.counters import (
    Launch,
    Topic,
    best_window,
    kernel_filter,
    plan_by_profile,
    plan_by_recording,
)
from opscope.analysis.summary import Summary
from opscope.errors import CaptureError, InputError
from opscope.toolchain.ncu_command import NameBase

GELU = "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::Iterator&)>(int)"


def trace(*kernels, steps=0):
    """Kernels with times in µs, launched by `aten::KERNEL`; the same again for every step."""
    made = TraceBuilder()
    for step in range(max(1, steps)):
        start = 10_000 * step
        if steps:
            made.step(step + 1, start, 9_000)
        for number, (kernel, duration) in enumerate(kernels):
            at = start + 200 * number
            made.operator(f"aten::{kernel[:6]}", at, 20).launch(at + 1).kernel(kernel, at + 30, duration)
    return made


def test_the_longest_kernels_of_one_step_and_one_launch_of_each(load):
    session = load(trace(("small", 1), ("gemm", 100), ("gemm", 100), ("norm", 50), ("gemm", 100), steps=3))
    plan = plan_by_recording(session, kernels=2, limit=20)
    assert plan.names == ("gemm", "norm")
    assert plan.kernels.pattern == r"\bgemm\b|\bnorm\b"
    assert (plan.launch_skip, plan.launch_count) == (0, 3)
    assert plan.covered_fraction == pytest.approx(350 / 351)


def test_launches_are_passed_over_only_if_the_limit_asks_for_it(load):
    session = load(trace(*[("gemm", 10.0)] * 5, ("norm", 50)))
    assert plan_by_recording(session, kernels=2, limit=6).launch_skip == 0
    plan = plan_by_recording(session, kernels=2, limit=3)
    assert (plan.launch_skip, plan.launch_count) == (4, 2)


def test_a_recording_without_kernels(load):
    with pytest.raises(InputError, match="no kernels"):
        plan_by_recording(load(TraceBuilder().operator("aten::mm", 0, 1)), kernels=1, limit=1)


def test_a_profile_gives_exact_names_and_the_last_window(report_of, kernel):
    report = report_of("_Z5setupv", "_Z4gemmv", "_Z4normv", "_Z4gemmv", "_Z4normv")
    plan = plan_by_profile(report, kernels=2, limit=20)
    assert (plan.kernels.base, plan.kernels.pattern) == (NameBase.MANGLED, "^(_Z4gemmv|_Z4normv)$")
    assert (plan.launch_skip, plan.launch_count) == (2, 2)
    assert plan.names == ("gemm()", "norm()")
    assert plan.covered_fraction == pytest.approx(0.8)
    with pytest.raises(CaptureError, match="no kernel times"):
        plan_by_profile(report_of(kernel("k", values={})), kernels=1, limit=1)


@cases("name", "pattern")
def test_a_filter_is_as_narrow_as_the_name_allows(name, pattern):
    matches = kernel_filter([name])
    assert matches.pattern == pattern
    assert matches.covers(name)


def test_every_kernel_of_real_recordings_passes_its_own_filter(shared, load):
    for name in ("misc_ops_fp32", "bert_train_bf16", "own_kernels"):
        session = load(shared / "traces" / "h200" / f"{name}.json.gz")
        for (kernel,) in session.query("SELECT name FROM kernel_names WHERE kind = 'kernel'"):
            assert kernel_filter([kernel]).covers(kernel)


def launches(text):
    """`a b2 c`: kernels of one letter, with a time of 10 ns or as written."""
    return [Launch((word[0], (1, 1, 1), None), int(word[1:] or 10)) for word in text.split()]


@cases("text", "names", "limit", "window")
def test_the_window_to_profile(text, names, limit, window):
    assert best_window(launches(text), names, limit) == (window and tuple(window))


@given(
    text=st.lists(st.sampled_from("abcd"), min_size=1, max_size=12),
    limit=st.integers(min_value=1, max_value=12),
    names=st.sets(st.sampled_from("abcd"), min_size=1),
)
def test_no_window_of_the_limit_covers_more_or_is_shorter(text, limit, names):
    sequence = launches(" ".join(text))

    def covered(start, end):
        kinds = {one.kind[0] for one in sequence[start:end]} & names
        return sum(one.duration_ns for one in sequence if one.kind[0] in kinds)

    every = [
        (covered(start, end), start - end)
        for start in range(len(sequence))
        for end in range(start + 1, min(start + limit, len(sequence)) + 1)
    ]
    found = best_window(sequence, names, limit)
    if not names & set(text):
        assert found is None
        return
    assert (found[2], found[0] - found[1]) == max(every)
    assert found[2] == covered(*found[:2])


def improvement_of(tmp_path, builder, operator):
    with load(builder.write(tmp_path / "trace.json")) as session:
        return Summary(session).improvements[operator]


def builder():
    return TraceBuilder(deviceProperties=[H200])


def known(found, topic):
    return next(one.known for one in found.topics if one.topic is topic)


def launched(name, duration=50, **args):
    arguments = {"registers per thread": 32, "shared memory": 0, "block": [128, 1, 1], "grid": [4096, 1, 1]}
    return builder().operator("aten::op", 0, 20).launch(2).kernel(name, 30, duration, **(arguments | args))


@cases("topic", "words", "launch")
def test_what_a_launch_tells_without_counters(tmp_path, topic, words, launch):
    found = improvement_of(tmp_path, launched(**{"name": "k", **(launch or {})}), "aten::op")
    assert known(found, Topic(topic)) == words


def test_the_command_names_the_kernel(tmp_path):
    words = shlex.split(improvement_of(tmp_path, launched(GELU), "aten::op").command)
    assert words[:3] == ["opscope", "ncu", "--kernel"] and words[-3:] == ["--", "python", "script.py"]
    assert words[3] == kernel_filter([GELU]).pattern


def test_several_kernels_of_a_call_pass_results_through_memory(tmp_path):
    trace = builder().operator("aten::op", 0, 20).launch(2).kernel("a", 30, 5).launch(4).kernel("b", 36, 6)
    found = improvement_of(tmp_path, trace, "aten::op")
    assert known(found, Topic.FUSION) == "2.0 kernels per call pass their results through device memory"
    assert found.kernel == "b"
