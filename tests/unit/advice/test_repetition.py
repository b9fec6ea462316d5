"""What two watched steps showed, found again in the recorded ones, and the advice that follows from it."""

from functools import partial

import pytest

import opscope
from case_tables import cases
from fakes import sidecar
from opscope.advice import repetition
from opscope.advice.profiled_run import ProfiledRun
from opscope.advice.repetition import _share_at_limits
from opscope.analysis.watched_steps import FoundOperators
from opscope.model.sidecar import (
    SIZE_LIMIT,
    PaddedInput,
    PythonWork,
    RecordedDataflow,
    RecordedRounds,
    RepeatedSince,
    RepeatedWork,
    ThreadOperators,
    UnusedWork,
    sidecar_path,
    write_sidecar,
)
from opscope.report.analysis import recording_document
from opscope.report.markdown import render_markdown

from .conftest import codes, only, trace

NAMES = ("aten::mul", "aten::addmm", "aten::exp", "aten::sum")
ROUNDS = 6
LINE = "train.py:7 forward"


WATCHED = ("repeated", "rounds", "unused", "padded", "python")


def session_of(
    folder, *, names=NAMES * ROUNDS, kernel_us=150, kernel="kernel", waits=False, pause_us=0,
    extra=lambda *_: None, **facts
):  # fmt: skip
    """Three steps of four operators in six rounds, each below another one and above one that launches.

    Python pauses in the middle; what was watched is among the facts.
    """
    program, at = trace(), 0.0
    for step in range(3):
        program.step(step, at, 5_000 + pause_us)
        start = at + 10
        for number, name in enumerate(NAMES * ROUNDS):
            start += pause_us if number == 12 else 0
            # In place or not, and below one that only calls it, it is the same operator.
            sequence = {"Sequence number": 100 * step + number, "Fwd thread id": 0}
            program.operator("aten::outer", start, 100)
            program.operator(f"{name}_" if step else name, start + 1, 98, **sequence)
            program.operator("aten::inner", start + 2, 52).launch(start + 50, 2)
            program.kernel(kernel, start + 60, kernel_us)
            if waits:
                program.launch(start + 55, kernel_us + 7, name="cudaStreamSynchronize")
            start += 200
        extra(program, start)
        at += 5_000 + pause_us
    path = program.write(folder / "t.json")
    order = {name: str(number) for number, name in enumerate(dict.fromkeys(names))}
    watched = ThreadOperators(1, tuple(order), " ".join(order[name] for name in names))
    parts = (tuple(facts.pop(one, ())) for one in WATCHED)
    recorded = RecordedDataflow((watched,), *parts)
    write_sidecar(sidecar_path(path), sidecar(dataflow=recorded, **facts))
    return opscope.load(path)


def advice(session):
    return opscope.summarize(session).advice or ()


def again(since=RepeatedSince.STEP, end=8, **facts):
    line = None if since is RepeatedSince.FORWARD else LINE
    return RepeatedWork(since, line, ((0, end),), "table = angles()" if line else None, **facts)


@cases("since", "said")
def test_work_that_was_done_before_goes(tmp_path, since, said):
    with session_of(tmp_path, repeated=[again(since)]) as session:
        summary = opscope.summarize(session)
    found = only(summary.advice or (), "repeated_work")
    # The first screen says where.
    assert "(`train.py:7`): `table = angles()`" in render_markdown(recording_document(summary, top=1))
    assert found.message.startswith(said)
    assert "8 operators per step, 1.20 ms of work for the device" in found.message
    assert (found.change or "").startswith("table = angles()   # once")
    # The host holds up the step: from the first to the last of the eight it takes 1.5 ms.
    assert not found.is_gain_known
    assert found.estimated_gain_ns_per_step == pytest.approx(1.5e6, rel=0.05)


def test_what_python_makes_on_the_host_each_time_goes_with_it(tmp_path):
    parts = tuple((at, at + 1) for at in range(4, 24, 4))
    work = RepeatedWork(RepeatedSince.STEP, LINE, parts, "bank = basis().cuda()", is_from_host=True)
    with session_of(tmp_path, repeated=[work], kernel_us=20) as session:
        found = only(advice(session), "repeated_work")
    # Five times 102 us from the operator before, and 98 us each.
    assert found.message.endswith("Python takes 510 µs right before them.")
    assert found.estimated_gain_ns_per_step == pytest.approx(1.1e6, rel=0.1)


@cases("is_whole", "change")
def test_what_nothing_reads_goes(tmp_path, *, is_whole, change):
    work = UnusedWork(LINE, ((4, 12),), "accuracy = score()", is_whole)
    with session_of(tmp_path, unused=[work]) as session:
        found = only(advice(session), "unused_work")
    assert found.message.startswith(f"Nothing reads a part of what a step works out at {LINE}: 8 operators")
    assert found.change == change
    assert found.is_gain_known == is_whole


def test_python_for_which_the_device_waits_is_told_by_the_line_that_goes_on(tmp_path):
    lines = [PythonWork(number, f"train.py:{number} main", 10_000_000) for number in (0, 12)]
    with session_of(tmp_path, python=lines, kernel_us=20, pause_us=3_000) as session:
        found = only(advice(session), "host_work")
    assert found.message.endswith("while the host is in Python, before it calls PyTorch at train.py:12 main.")
    assert found.evidence["line"] == "train.py:12 main"


@cases("longest", "mean", "is_left", "said", "change")
def test_rows_that_are_filled_up(tmp_path, longest, mean, said, change, *, is_left):
    batch = PaddedInput(8, 64, longest, mean, 0.0, is_left, (LINE,), ((0, 12),))
    with session_of(tmp_path, padded=[batch], kernel_us=120, waits=True) as session:
        found = only(advice(session), "padding")
    assert found.message.startswith(
        f"{LINE}: 8 rows are filled up to 64 columns; {said}. Work on all of them: 12 "
    )
    assert change in (found.change or "")
    # Of twelve kernels of 120 us a quarter is left.
    assert found.estimated_gain_ns_per_step == pytest.approx(12 * 120_000 * 0.75, rel=0.2)
    assert found.is_to_try
    assert not found.is_gain_known


@pytest.mark.parametrize(("longest", "mean"), [(60, 50.0), (64, 60.0)])
def test_rows_are_filled_up_a_little_on_purpose(tmp_path, longest, mean):
    batch = PaddedInput(8, 64, longest, mean, 0.0, is_left=False, lines=(LINE,), operators=((0, 12),))
    with session_of(tmp_path, padded=[batch], kernel_us=199) as session:
        assert "padding" not in codes(advice(session))


def test_of_gradients_that_nothing_reads_kernels_for_weights_alone_go(tmp_path):
    gains_ns = []
    for name in ("sm90_xmma_wgrad_implicit_gemm", "sm90_xmma_dgrad_implicit_gemm"):
        (tmp_path / name).mkdir()
        work = UnusedWork(None, ((0, 12),), None, is_whole=False, is_of_weights=True)
        with session_of(tmp_path / name, unused=[work], kernel_us=120, waits=True, kernel=name) as session:
            found = [one for one in advice(session) if one.code == "advice.unused_work"]
        gains_ns.append([one.estimated_gain_ns_per_step for one in found])
    # Twelve kernels of 120 us, for which the host waits.
    assert gains_ns == [[pytest.approx(12 * 120_000, rel=0.2)], []]


def six_rounds(**facts):
    """All operators of a step, in rounds of four."""
    parts = tuple((at, at + 4) for at in range(0, 24, 4))
    known = {"module": None, "is_ragged": False, "has_weights": False, **facts}
    return RecordedRounds(LINE, rounds=parts, **known)


def gradients(program, at, *, of):
    """Of eight operators from one on."""
    for number in range(8):
        begin, sequence = at + 22 * number, {"Sequence number": 100 * int(at // 5_000) + of + number}
        program.operator("aten::mm", begin, 20, thread=2, **sequence, **{"Fwd thread id": 1})
        program.launch(begin + 5, thread=2).kernel("gemm", begin + 15, 2)


THREE_ROUNDS = RecordedRounds(LINE, None, ((0, 4), (4, 8), (8, 12)), is_ragged=False, has_weights=False)


@pytest.mark.parametrize(
    ("code", "works", "first"),
    [("repeated_work", {"repeated": [again()]}, 0), ("loop", {"rounds": [THREE_ROUNDS]}, 4)],
)
def test_gradients_of_what_need_not_run_go_with_it(tmp_path, code, works, first):
    gains_ns = []
    for of in (first, 12):
        (tmp_path / str(of)).mkdir()
        extra = partial(gradients, of=of)
        with session_of(tmp_path / str(of), **works, kernel_us=60, extra=extra) as session:
            found = only(advice(session), code)
        gains_ns.append(found.estimated_gain_ns_per_step or 0)
        assert not found.is_gain_known
    assert gains_ns[0] - gains_ns[1] > 50_000


def test_a_forward_pass_that_runs_again_needs_memory_to_go(tmp_path):
    with session_of(tmp_path, repeated=[again(RepeatedSince.FORWARD)]) as session:
        found = only(advice(session), "recomputation")
    assert found.is_to_try
    assert not found.is_gain_known


@cases("module", "is_ragged", "has_weights", "is_selected", "said", "change")
def test_rounds_that_need_not_wait_are_put_together(
    tmp_path, module, said, change, *, is_ragged, has_weights,
    is_selected,
):  # fmt: skip
    rounds = six_rounds(
        module=module, is_ragged=is_ragged, has_weights=has_weights, is_selected=bool(is_selected)
    )
    with session_of(tmp_path, rounds=[rounds], kernel_us=20) as session:
        found = only(advice(session), "loop")
    assert found.message.startswith(f"{LINE}: {said}, and none needs another's result: ")
    assert change in (found.change or "")
    assert found.is_to_try
    assert not found.is_gain_known


@pytest.mark.parametrize("is_selected", [True, False])
def test_a_loop_over_groups_says_of_their_sizes_what_a_wait_would(tmp_path, *, is_selected):
    with session_of(tmp_path, rounds=[six_rounds(is_selected=is_selected)], waits=True) as session:
        assert ("advice.host_sync" in {one.code for one in advice(session)}) is not is_selected


@pytest.mark.parametrize("steps_alike", [2, 1])
def test_a_step_that_does_more_is_another(tmp_path, steps_alike):
    def begin(program, start):
        if start > 5_000 * steps_alike:
            for at in range(10):
                program.operator("aten::sort", start + 9 * at, 8).launch(start + 9 * at + 2)
                program.kernel("kernel", start + 100 + 60 * at, 60)

    with session_of(tmp_path, repeated=[again()], extra=begin) as session:
        assert ("advice.repeated_work" in {one.code for one in advice(session)}) is (steps_alike == 2)


def test_means_of_groups_need_no_loop(tmp_path, monkeypatch):
    names = ("aten::eq", "aten::index", "aten::mean", "aten::copy_")
    monkeypatch.setitem(globals(), "NAMES", names)
    with session_of(
        tmp_path, rounds=[six_rounds(is_ragged=True, is_selected=True)], names=names * ROUNDS, kernel_us=20
    ) as session:
        assert ".index_add_(0, labels, x)" in (only(advice(session), "loop").change or "")


def test_runs_of_one_loop_count_together(tmp_path):
    """Each of a dozen layers' loops alone may be less than a rewrite is worth."""
    loops = [
        RecordedRounds(LINE, None, parts, is_ragged=False, has_weights=False)
        for parts in (((0, 4), (4, 8), (8, 12)), ((12, 16), (16, 20), (20, 24)))
    ]
    with session_of(tmp_path, rounds=loops, kernel_us=20) as session:
        found = only(advice(session), "loop")
    assert found.message.startswith(f"{LINE}: 6 rounds of 2 loops in a step do the same, and none needs")
    with session_of(tmp_path, rounds=loops[:1], kernel_us=20) as session:
        alone = only(advice(session), "loop")
    assert (found.estimated_gain_ns_per_step or 0) > 1.9 * (alone.estimated_gain_ns_per_step or 1)


@pytest.mark.parametrize(("kernel_us", "is_told"), [(20, True), (199, False)])
def test_gradients_are_summed_up_round_by_round_for_want_of_memory_where_the_device_is_busy(
    tmp_path, kernel_us, *, is_told
):
    with session_of(tmp_path, rounds=[six_rounds(has_backward=True)], kernel_us=kernel_us) as session:
        found = [one for one in advice(session) if one.code == "advice.loop"]
    assert [" with a backward pass after each" in one.message for one in found] == [True] * is_told


def test_one_large_call_gets_the_device_half_as_far_to_its_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(repetition, "_share_at_limits", lambda *_: 0.4)
    with session_of(tmp_path, rounds=[six_rounds()], kernel_us=199) as session:
        found = only(advice(session), "loop")
    # Of 24 kernels of 199 us, at 0.4 of that at best.
    assert found.estimated_gain_ns_per_step == pytest.approx(24 * 199_000 * 0.3, rel=0.1)
    assert (found.gain_interval_ns_per_step or (1, 1))[0] == 0


def test_what_operators_take_at_their_limits():
    with opscope.load(opscope.example_trace()) as session:
        summary = opscope.summarize(session)
        run = ProfiledRun(session, summary)
        call = next(one for one in run.calls if "[3072,768]" in str(one.shapes))
        operators = "SELECT operator_id FROM operators WHERE name = $1 AND input_shapes::VARCHAR = $2"
        ids = [one for (one,) in session.query(operators, [call.operator, call.shapes])]
        share = _share_at_limits(run, FoundOperators([(one, one) for one in ids], 0, 0, {}))
    assert call.gap_ns is not None
    assert share == pytest.approx(1 - call.gap_ns / call.roofline.device_ns)


@pytest.mark.parametrize("waits", [False, True])
def test_of_rounds_at_once_one_is_left_on_the_host_with_all_work_for_the_device(tmp_path, *, waits):
    with session_of(tmp_path, rounds=[six_rounds()], kernel_us=20, waits=waits) as session:
        found = only(advice(session), "loop")
    # Of 24 operators of 200 us and their kernels four are left, with kernels of 120 us.
    assert found.estimated_gain_ns_per_step == pytest.approx(20 * 200_000, rel=0.2)


def launched_by_nothing(program, at):
    program.launch(at).kernel("own_kernel", at + 5, 2)


def more_operators(program, at):
    for number in range(4):
        program.operator("aten::mm", at + 30 * number, 20).launch(at + 30 * number + 5)
        program.kernel("gemm", at + 30 * number + 10, 200)


@pytest.mark.parametrize(
    "other",
    [
        {"extra": launched_by_nothing},  # it may write where nobody sees it
        {"extra": more_operators},  # the watched step was another one
        {"names": ("aten::sub", *NAMES * ROUNDS, *["aten::sub"] * 6)},
        {"repeated": [again(end=24)]},  # a step that is repeated to be measured
        {"repeated": [], "unused": [UnusedWork(LINE, ((0, 24),), None, is_whole=True)]},
    ],
)
def test_where_it_is_not_known_nothing_is_said(tmp_path, other):
    with session_of(tmp_path, **{"repeated": [again()], **other}) as session:
        assert not {"repeated_work", "unused_work", "loop"} & {*codes(advice(session))}


def test_of_a_programs_start_alone_nothing_follows(tmp_path):
    facts = {"partial": True, "steps": 0, "ended_by": SIZE_LIMIT}
    with session_of(tmp_path, repeated=[again()], **facts) as session:
        summary = opscope.summarize(session)
    assert summary.advice == ()
    assert summary.is_cold
