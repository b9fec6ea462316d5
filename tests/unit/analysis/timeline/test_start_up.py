"""First steps that hold what a program does once are known by it, and are part of sums alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from opscope.advice import assess
from opscope.analysis.session_comparison import compare_sessions
from opscope.analysis.summary import Summary
from opscope.analysis.timeline.values import StartUp
from opscope.cli import main
from opscope.model.session import Session
from opscope.testing import TraceBuilder

Load = Callable[..., Session]
US = 1000
LOADS = ("cuLibraryLoadData", 300.0), ("cudaFree", 80.0)


Calls = Sequence[tuple[str, float]]


def program(
    firsts: Sequence[Calls], *, later: int = 3, each: Calls = (), is_idle: bool = False
) -> TraceBuilder:
    """First steps with calls of these durations in µs, and steps of 100 µs after them; one kernel in each.

    Args:
        firsts: What the first steps call.
        later: Steps after them.
        each: What every step calls.
        is_idle: The steps after the first ones launch nothing.
    """
    builder, at = TraceBuilder(), 0.0
    for number, calls in enumerate((*firsts, *[()] * later)):
        begins = at + 10
        for name, duration in (*calls, *each):
            if name.startswith("cu"):
                builder.launch(begins, duration, name=name)
            else:
                builder.operator(name, begins, duration)
            begins += duration
        if number < len(firsts) or not is_idle:
            builder.operator("aten::mm", begins, 40).launch(begins + 5, 4).kernel("gemm", begins + 15, 50)
        builder.step(number, at, begins + 90 - at)
        at = begins + 90
    return builder


def first_call(name: str, silent: float = 30_000.0) -> TraceBuilder:
    """A recording without steps, silent before an operator that is called twice."""
    builder = TraceBuilder()
    begins = 0.0
    for one, silence in (("aten::mm", 0.0), (name, silent), (name, silent)):
        begins += silence
        builder.operator(one, begins, 40).launch(begins + 5, 4).kernel("gemm", begins + 15, 25)
        begins += 40
    return builder


FOUND = {
    "the first call of what is compiled, silently": (
        first_call("triton_poi_fused_add_0"),
        [StartUp(0, None, 60_120 * US, None, 30_000 * US, ("first call of triton_poi_fused_add_0",))],
    ),
    "silence before something else": (first_call("aten::add"), []),
    "a short silence": (first_call("triton_poi_fused_add_0", 1000.0), []),
    "modules and memory": (
        program([LOADS]), [StartUp(0, 0, 480 * US, 100 * US, 380 * US, ("cuLibraryLoadData", "cudaFree"))],
    ),
    "compilation, then memory": (
        program([[("entire_frame_compile (dynamo_timed)", 900.0)], [("cudaMalloc", 60.0)]]),
        [
            StartUp(0, 0, 1000 * US, 100 * US, 900 * US, ("entire_frame_compile (dynamo_timed)",)),
            StartUp(0, 1, 160 * US, 100 * US, 60 * US, ("cudaMalloc",)),
        ],
    ),
    "a launch that loads its kernel": (
        program([[("cudaLaunchKernel", 200.0)]], later=1),
        [StartUp(0, 0, 300 * US, 100 * US, 200 * US, ("cudaLaunchKernel",))],
    ),
    "memory in every step": (
        program([LOADS[:1]], each=LOADS[1:]),
        [StartUp(0, 0, 480 * US, 180 * US, 300 * US, ("cuLibraryLoadData",))],
    ),
    "a single step": (
        program([LOADS], later=0),
        [StartUp(0, 0, 480 * US, None, 380 * US, ("cuLibraryLoadData", "cudaFree"))],
    ),
    "slow for another reason": (program([[("aten::sort", 300.0), ("cudaFree", 20.0)]]), []),
    "in the last step": (program([(), (), LOADS], later=0), []),
    "not at the beginning": (program([(), LOADS]), []),
    "none that does the same work": (program([LOADS], later=2, is_idle=True), []),
    "a little": (program([[("cudaFree", 8.0)]]), []),
    "the same in all": (program([LOADS] * 3, later=0), []),
}  # fmt: skip


@pytest.mark.parametrize(("builder", "expected"), FOUND.values(), ids=FOUND)
def test_steps_of_start_up(load: Load, builder: TraceBuilder, expected: list[StartUp]) -> None:
    assert list(Summary(load(builder)).timeline.start_ups) == expected


def test_averages_are_without_them_and_sums_with(load: Load) -> None:
    whole, rest = (Summary(load(program(firsts, later=3))) for firsts in ([LOADS], []))
    (statistics,), (host,), (model,) = whole.timeline.steps, whole.timeline.host, whole.step_models
    assert (statistics.count, statistics.left_out, statistics.mean_ns) == (3, 1, 100 * US)
    assert (host.steps, host.step_ns) == (3, 100 * US)
    assert whole.measured_step.recorded_ns == 100 * US
    assert model.graph.steps == 3
    assert [step.step for step in whole.counted_steps] == [1, 2, 3]
    (alone,) = rest.step_models
    assert model.step_ns == alone.step_ns
    (partition,), (counted,) = whole.timeline.partitions, whole.counted_timeline.partitions
    assert partition.span_ns == (480 + 300) * US
    assert partition.busy_ns + partition.idle_ns == partition.span_ns
    assert counted.span_ns == 300 * US
    assert whole.device_time_ns == 4 * 50 * US


def test_reports_say_how_many_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(program([LOADS]).write(tmp_path / "trace.json")), "--full"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "3, 100 µs each on average, 50.0 µs of device time each, 1 of start-up left out" in text
    assert "3, median 100 µs (100 µs to 100 µs); 1 of start-up left out" in text


def test_a_comparison_is_of_the_other_steps(load: Load) -> None:
    """What a step of start-up launched counts as outside of steps."""
    comparison = compare_sessions(load(program([LOADS])), load(program([], later=4)))
    one, other = comparison.reference, comparison.candidate
    assert (one.steps, one.outside_steps_ns, one.whole_ns) == (3, 50 * US, 200 * US)
    assert (other.steps, other.outside_steps_ns, other.whole_ns) == (4, 0, 200 * US)


def test_advice_is_that_of_the_other_steps_and_its_name(load: Load) -> None:
    """Idle time, allocations and compilations of the first step are not those of the others."""
    calls = [("cudaMalloc", 5.0)] * 40 + [("entire_frame_compile (dynamo_timed)", 3000.0)]
    whole, rest = (assess(load(program(firsts))).advice or () for firsts in ([calls], []))
    (finding,) = [one for one in whole if one.code == "advice.start_up"]
    assert finding.message == (
        "Step 0 takes 3.30 ms, later ones 100 µs each: 3.20 ms of that in entire_frame_compile "
        "(dynamo_timed) and cudaMalloc, which a program does once. Averages and gains exclude it."
    )
    assert finding.estimated_gain_ns_per_step is None
    assert rest
    assert [one.message for one in whole if one is not finding] == [one.message for one in rest]


def test_of_a_single_step_the_cost_is_named_alone(load: Load) -> None:
    (finding,) = [
        one for one in assess(load(program([LOADS], later=0))).advice or () if one.code == "advice.start_up"
    ]
    assert finding.message == (
        "Step 0 takes 480 µs, 380 µs of that in cuLibraryLoadData and cudaFree, which a program does once."
    )
    assert finding.evidence["is_left_out"] is False


def test_silence_before_a_first_call_is_no_matter_of_input(load: Load) -> None:
    """What comes again is."""
    advice = {name: assess(load(first_call(name))).advice or () for name in ("triton_x", "aten::add")}
    idle_ns = {
        name: [one.evidence["idle_ns"] for one in found if one.code == "advice.host_work"]
        for name, found in advice.items()
    }
    assert [len(found) for found in idle_ns.values()] == [1, 1]
    assert 1.9 * idle_ns["triton_x"][0] < idle_ns["aten::add"][0]
