"""Recordings with defects: what is missing is named, and no gain is made up from it."""

import json

import pytest

from fakes import TraceBuilder
from opscope.advice import assess
from opscope.analysis.step_model import MOST_UNEXPLAINED
from opscope.analysis.summary import Summary
from opscope.cli import main

COPY = "Memcpy HtoD (Pageable -> Device)"


def always(_):
    return True


def program(
    *, steps=2, step_us=2000, has_launches=True, is_tied=always, recorded=always, starts_us=lambda _: 0
):
    """Steps of 2 ms: a copy of pageable memory for which the host waits 500 µs, and nine kernels after it.

    Args:
        steps: How many.
        step_us: How long one is said to last.
        has_launches: The host was recorded.
        is_tied: Whether an activity has the correlation id of its launch, by its number.
        recorded: Whether an activity was, by its number.
        starts_us: What an activity of that number begins later than it should.
    """
    builder = TraceBuilder()
    for number in range(steps):
        began = 2000 * number
        builder.step(number + 1, began, step_us)
        for place in range(10):
            at = began + (10 if not place else 450 + 100 * place)
            is_copy = not place
            if has_launches:
                builder.operator("aten::copy_" if is_copy else "aten::add", at, 505 if is_copy else 20)
                builder.launch(
                    at + 2, 500 if is_copy else 4, name="cudaMemcpyAsync" if is_copy else "cudaLaunchKernel"
                )
            if recorded(10 * number + place):
                builder.kernel(
                    COPY if is_copy else "add",
                    at + 8 + starts_us(place),
                    490 if is_copy else 60,
                    category="gpu_memcpy" if is_copy else "kernel",
                    correlation=None if is_tied(10 * number + place) else 10_000 + 10 * number + place,
                    **({"bytes": 1 << 20} if is_copy else {}),
                )  # fmt: skip
    return builder


DEFECTS = {
    "no correlation ids": (
        program(is_tied=lambda number: number % 2 == 0), "10 of 20 activities have no recorded launch",
    ),
    "steps overlap": (program(step_us=2500), "steps 1 and 2 overlap"),
    "unknown waits": (
        program(starts_us=lambda place: 30 * place),
        "of 20 activities start later than their known dependencies allow",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("builder", "reason"), DEFECTS.values(), ids=DEFECTS)
def test_no_gain_rests_on_missing_edges(load, builder, reason):
    summary = assess(load(builder))
    (copies,) = [one for one in summary.advice or () if one.code == "advice.host_copies"]
    assert copies.estimated_gain_ns_per_step is None
    assert copies.gain_interval_ns_per_step is None
    assert reason in copies.gain_basis
    assert summary.best_set is None
    assert reason in (summary.typical_step.missing or "")


def test_a_whole_recording_keeps_its_gains_and_one_of_a_few_flaws(load):
    summary = assess(load(program()))
    assert summary.typical_step.missing is None
    (copies,) = [one for one in summary.advice or () if one.code == "advice.host_copies"]
    assert copies.estimated_gain_ns_per_step
    # One of twenty.
    step = assess(load(program(recorded=lambda number: number != 15))).typical_step
    assert step.missing is None


def test_a_truncated_file_tells_no_gain(tmp_path, capsys):
    path = program().write(tmp_path / "cut.json")
    path.write_text(path.read_text(encoding="utf-8")[:-200], encoding="utf-8")
    assert main(["analyze", str(path), "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    advice = [one for one in findings if one["code"].startswith("advice.")]
    assert advice
    assert all(one["estimated_gain_ns_per_step"] is None for one in advice)
    assert any("not simulated: events are lost (trace.truncated)" in one["gain_basis"] for one in advice)


def test_a_change_that_leaves_only_what_is_unexplained_has_no_gain(load):
    """One late kernel of twenty is little of today's step; with a quicker host it would be more."""
    builder = TraceBuilder().step(1, 0, 20_000)
    for place in range(20):
        at = 10 + 100 * place
        builder.operator("aten::add", at, 90).launch(at + 80, 4)
        builder.kernel("add", at + 90 + (900 if place == 19 else 0), 5)
    builder.launch(2000, 910, name="cudaDeviceSynchronize")
    model = Summary(load(builder)).step_model
    assert model.missing is None
    assert model.missing_for(model.change()) is None
    quicker = model.change()
    quicker.host_scale *= 0.45
    assert quicker.unexplained_share > MOST_UNEXPLAINED
    assert "of the step with the change" in model.missing_for(quicker)


def test_streams_that_are_said_to_wait_for_each_other_tell_no_gain(load):
    """What one launches in front of its event, the other waits for, and the other way round."""
    builder = program()
    for stream, other, at, kernel_us in ((20, 30, 1600, 1660), (30, 20, 1620, 1700)):
        builder.launch(at, 1, name="cudaStreamWaitEvent", correlation=at)
        args = {"cuda_sync_kind": "Stream Wait Event", "stream": stream, "correlation": at}
        args |= {"wait_on_stream": other, "wait_on_cuda_event_record_corr_id": 10_000 + other}
        builder.event("cuda_sync", "Stream Wait Event", at, 1, 0, args)
        builder.operator("aten::mul", at + 2, 6).launch(at + 4, 2, correlation=20_000 + stream)
        builder.kernel("mul", kernel_us, 60, stream=stream, correlation=20_000 + stream)
    for stream in (20, 30):
        builder.launch(1640 + stream, 1, name="cudaEventRecord", correlation=10_000 + stream)
    step = (summary := assess(load(builder))).typical_step
    assert "1 of 2 waits of streams for each other contradict the times recorded" in (step.missing or "")
    assert step.missing_edges >= 1
    assert all(one.estimated_gain_ns_per_step is None for one in summary.advice or ())
