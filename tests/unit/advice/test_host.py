"""A slow host, the recorder's part in it, waits, and work that a step should not be doing at all."""

import pytest
from msgspec.structs import replace

from case_tables import cases
from opscope.advice import profiled_run
from opscope.advice.host import data_loading
from opscope.advice.profiled_run import ProfiledRun
from opscope.analysis.timeline.values import IdleCause, IdleGap, Timeline, WaitingCall
from opscope.analysis.watched_steps import Dataflow
from opscope.model.finding import Severity
from opscope.model.sidecar import ProgramPart, RecordedDataflow

from .conftest import MS, codes, host, only, partition, told, trace


def step_of(milliseconds, kernel_us=10):
    """One step with one kernel."""
    builder = trace().step(1, 0, 1000 * milliseconds).operator("aten::gelu", 10, 20)
    return builder.launch(15).kernel("kernel", 50, kernel_us)


def without_steps():
    return trace().operator("aten::gelu", 10, 20).launch(15).kernel("kernel", 50, 10)


def waiting(cause=IdleCause.HOST_LAUNCH, idle_ns=5 * MS, **values):
    """Values with a device that is idle for so long of 10 ms."""
    return {**values, "partitions": [partition(10 * MS, {cause: idle_ns})]}


def wait(idle_ns, *, line=None, calls=1):
    return WaitingCall("cudaStreamSynchronize", "aten::item", line, calls, 2 * MS, idle_ns)


def stopped_by(name, operator, *, calls=1, **facts):
    """Values with a host that is the faster side, but for this wait."""
    call = WaitingCall(name, operator, None, calls, 2 * MS, 2 * MS, **facts)
    return waiting(hosts=[host(8 * MS, 2 * MS, step_ns=10 * MS)], waits=(call,))


def stalled(*gaps):
    """Values with a device that waits in these gaps of 10 ms, and a host that is no slower."""
    idle = {gaps[0].cause: sum(one.duration_ns for one in gaps)}
    slow = partition(10 * MS, idle, longest_gaps=gaps)
    return {"hosts": [host(7 * MS, 10 * MS)], "partitions": [slow]}


def test_a_slow_host_is_told_with_what_a_graph_would_save(advise_on, asked):
    found = advise_on(step_of(10), **waiting(hosts=[host(2 * MS, 10 * MS, launches=1000)]))
    words = ("1,000 launches of 2.00 µs", "CUDAGraph", "the host needs 300 µs")
    finding = told(found, "launch_bound", *words, has_gain=True)
    assert finding.severity is Severity.WARNING
    assert asked == [(("replay", (300_000,)),)]


def test_without_steps_a_slow_host_and_waits_are_told_of_the_recording(advise_on):
    recorded = host(2 * MS, 10 * MS, launches=1000, recorder_ns=4 * MS)
    found = advise_on(without_steps(), **waiting(hosts=[recorded]))
    assert codes(found) == ["launch_bound"]
    assert "to launch what was recorded" in found[0].message
    assert not any("per step" in f"{finding.message} {finding.gain_basis}" for finding in found)
    hosts, waits = [host(8 * MS, 2 * MS, step_ns=10 * MS)], (wait(2 * MS, calls=4),)
    found = advise_on(without_steps(), **waiting(IdleCause.SYNCHRONIZATION, 2 * MS, hosts=hosts, waits=waits))
    assert "is idle for 2.00 ms in all." in only(found, "host_sync").message


def test_a_host_that_is_slow_by_its_recorder_alone_is_not_told(advise_on):
    """As recorded the host needs 10 ms; without the profiler 2, and the device 8."""
    recorded = host(8 * MS, 10 * MS, launches=100, recorder_ns=8 * MS)
    assert advise_on(step_of(10), **waiting(hosts=[recorded])) == ()
    hosts = [host(2 * MS, 10 * MS, launches=500, recorder_ns=None)]
    assert "as recorded" in only(advise_on(step_of(10), **waiting(hosts=hosts)), "launch_bound").message


def test_a_host_that_may_be_the_slower_side_is_told_with_its_doubt(advise_on):
    """Bare, the host needs 12 ± 7 ms beside 12 of the device: worth the mean of 0, 0 and 7."""
    recorded = host(12 * MS, 33 * MS, launches=200, recorder_ns=21 * MS, step_ns=33 * MS)
    found = advise_on(step_of(33), **waiting(idle_ns=4 * MS, hosts=[recorded]))
    told(found, "launch_bound", "5.00 ms to 19.0 ms without the profiler", has_gain=True)
    assert codes(found) == ["launch_bound"]


def test_a_wait_within_a_step_is_told_with_its_line(advise_on):
    hosts, waits = [host(8 * MS, 2 * MS, step_ns=10 * MS)], (wait(MS, line="train.py:12 step", calls=3),)
    found = advise_on(step_of(10), **waiting(IdleCause.SYNCHRONIZATION, MS, hosts=hosts, waits=waits))
    place = "aten::item (cudaStreamSynchronize) at train.py:12 step waits for the device 3 times"
    assert not told(found, "host_sync", place, has_gain=False).is_to_try


@pytest.mark.parametrize(("recorder_ns", "is_told"), [(6 * MS, True), (0.0, False)])
def test_a_wait_counts_of_the_step_without_the_recorder(advise_on, recorder_ns, is_told):
    """0.15 ms are 1.5 % of the 10 ms recorded, and 3.75 % of the 4 ms that are left without the recorder."""
    asks = WaitingCall("cudaStreamSynchronize", "aten::item", None, 3, 150_000, 150_000)
    hosts = [host(2 * MS, 10 * MS, recorder_ns=recorder_ns)]
    found = advise_on(step_of(10), **waiting(hosts=hosts, waits=(asks,)))
    assert ("host_sync" in codes(found)) is is_told


@cases("operator", "calls", "words")
def test_results_are_copied_beside_the_next_step_and_numbers_asked_for_later_or_at_once(
    advise_on, asked, operator, calls, words
):
    copy = "Memcpy DtoH (Device -> Pageable)"
    call = WaitingCall("cudaMemcpyAsync", operator, None, calls, 2 * MS, MS, copy=copy, call_ids=(7,))
    facts = waiting(
        IdleCause.SYNCHRONIZATION, MS, hosts=[host(8 * MS, 2 * MS, step_ns=10 * MS)], waits=(call,)
    )
    told(advise_on(step_of(10), **facts), "host_sync", words, has_gain=False)
    free = (("free_waits", ([7],)),)
    assert asked == ([free] if operator == "aten::to" else [(("drop_questions", ([7],)),), free])


def test_the_wait_with_which_a_recorder_ends_the_last_step_is_none_of_the_programs(advise_on):
    facts = stopped_by("cudaDeviceSynchronize", None, call_ids=(2,))
    assert "host_sync" not in codes(advise_on(step_of(10), **facts))
    going_on = step_of(10)
    for number in range(9):
        going_on.launch(100 + number).kernel("kernel", 200 + 20 * number, 10)
    assert "host_sync" in codes(advise_on(going_on, **facts))
    assert "host_sync" not in codes(advise_on(going_on.step(2, 10_000, 10_000), **facts))


@pytest.mark.parametrize("is_torch", [True, False])
def test_an_explicit_wait_gets_no_code_for_losses(advise_on, is_torch):
    facts = stopped_by("cudaDeviceSynchronize", None, calls=8, call_ids=(0,))
    program = step_of(10)
    if not is_torch:
        program = trace().launch(15).kernel("kernel", 50, 10).launch(70).kernel("kernel", 90, 10)
    finding = only(advise_on(program, **facts), "host_sync")
    assert "event" in (finding.suggestion or "")
    assert (finding.change is None) is is_torch


@cases("operator", "words", "change")
def test_a_wait_for_sizes_or_checks_gets_no_code_for_losses(advise_on, operator, words, change):
    finding = only(advise_on(step_of(10), **stopped_by("cudaStreamSynchronize", operator)), "host_sync")
    assert words in (finding.suggestion or "")
    assert finding.change is None if change is None else change in (finding.change or "")
    assert not finding.is_gain_known


@pytest.mark.parametrize(("size_bytes", "words"), [(16, "a few numbers"), (1 << 20, "pinned memory")])
def test_the_host_needs_a_few_numbers_at_once_and_results_later(advise_on, size_bytes, words):
    copy = {"copy": "Memcpy DtoH (Device -> Pageable)", "size_bytes": size_bytes}
    found = advise_on(step_of(10), **stopped_by("cudaMemcpyAsync", "aten::to", **copy))
    assert words in (only(found, "host_sync").suggestion or "")


@pytest.mark.parametrize(("per_step", "is_to_try"), [(8, False), (64, True)])
def test_very_many_numbers_asked_for_are_a_change_to_try_without_a_number(advise_on, per_step, is_to_try):
    facts = stopped_by("cudaStreamSynchronize", "aten::item", calls=per_step, call_ids=(0,))
    finding = only(advise_on(step_of(10), **facts), "host_sync")
    assert (finding.is_to_try, finding.is_gain_known) == (is_to_try, False)


@pytest.mark.parametrize("per_step", [2, 60])
def test_many_uploads_that_wait_for_their_stream_can_be_made_there(advise_on, per_step):
    """A small copy from pageable memory returns at once; the operator then waits for the stream."""
    builder = step_of(10).operator("aten::to", 50, 30).launch(52, 4, name="cudaMemcpyAsync")
    builder.kernel("Memcpy HtoD (Pageable -> Device)", 58, 2, category="gpu_memcpy", bytes=4096)
    builder.launch(60, 15, name="cudaStreamSynchronize")
    call = len([one for one in builder.events if one.get("cat") == "cuda_runtime"]) - 1
    facts = stopped_by("cudaStreamSynchronize", "aten::to", calls=per_step, call_ids=(call,))
    found = [one.change or "" for one in advise_on(builder, **facts) if one.code == "advice.host_sync"]
    assert ['torch.arange(size, device="cuda")' in one for one in found] == [True] * (per_step > 8)


def test_waiting_for_data_is_told_with_where(advise_on):
    gap = IdleGap(0, 3 * MS, IdleCause.DATA_LOADING, host="enumerate(DataLoader)")
    finding = told(advise_on(step_of(10), **stalled(gap)), "data_loading", "30.0 %", has_gain=True)
    assert finding.evidence["waits_in"] == ["enumerate(DataLoader)"]
    gap = replace(gap, host="enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__")
    finding = only(advise_on(step_of(10), **stalled(gap)), "data_loading")
    assert "os.cpu_count()" in finding.change and not finding.is_gain_known


@pytest.mark.parametrize(
    ("batches_us", "is_sure"), [([50] * 6, True), ([50] * 5 + [1], False), ([50] * 2, False)]
)
def test_workers_of_a_short_pass_over_the_data_begin_anew(summarized, batches_us, is_sure):
    program, name = step_of(10), "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    for at, duration in enumerate(batches_us):
        program.event("user_annotation", name, 100 * (at + 1), duration, 1, {})
    session, summary = summarized(program)
    slow = Timeline(partitions=(partition(10 * MS, {IdleCause.DATA_LOADING: MS}),))
    run = ProfiledRun(session, summary.having(timeline=slow))
    assert [one.is_sure for one in data_loading(run, run.book.rules["advice.data_loading"])] == [is_sure]


@cases("place", "is_told")
def test_what_libraries_do_within_a_module_is_its_launching(advise_on, place, is_told):
    gaps = tuple(IdleGap(at * MS, 3 * MS, IdleCause.HOST_LAUNCH, host=place) for at in (1, 5))
    program = step_of(10).frame("nn.Module: Bert_0", 500, 9000, module=1)
    found = advise_on(program, **stalled(*gaps))
    assert ("host_work" in codes(found)) is is_told


@cases("place", "is_input")
def test_a_loader_is_the_answer_to_what_makes_inputs_alone(advise_on, place, is_input):
    gaps = tuple(IdleGap(at * MS, 3 * MS, IdleCause.HOST_LAUNCH, host=place) for at in (0, 5))
    finding = only(advise_on(step_of(10), **stalled(*gaps)), "host_work")
    assert ("DataLoader" in f"{finding.suggestion} {finding.change}") is is_input
    # Whether other code can run ahead nothing shows.
    assert is_input or not finding.is_gain_known
    is_python = ".py(" in (place or "")
    assert ("pool.submit" in (finding.change or "")) is (is_python and not is_input)


@cases("name", "change", "where")
def test_an_operator_that_launches_elsewhere_may_compute_on_the_host(advise_on, asked, name, change, where):
    gaps = tuple(IdleGap(at * MS, 2 * MS, IdleCause.HOST_LAUNCH, host=name) for at in (1, 5))
    program = step_of(10).operator(name, 40, 20).launch(45).kernel("kernel", 70, 10)
    for at_us in (1100, 5100):
        program.operator(name, at_us, 1500)
        if not change:
            program.launch(at_us + 100).kernel("kernel", at_us + 1900, 10)
    # A short one right after belongs to it.
    program.operator("aten::add", 6610, 40)
    found = advise_on(program, **stalled(*gaps))
    assert ("host_work" in codes(found)) is bool(change)
    if change:
        finding = only(found, "host_work")
        assert (where in finding.message, finding.change) == (True, change)
        dropped = next(given[0] for one in asked for name, given in one if name == "drop_host_between")
        assert dropped == {(0, 1_100_000, 2_600_000), (0, 5_100_000, 6_650_000)}


@cases("place", "is_told")
def test_a_gap_in_which_the_host_runs_something_of_its_own_is_told(advise_on, place, is_told):
    """Views and calls of the driver are none: no thread loads a kernel ahead of its first launch."""
    gap = IdleGap(0, 3 * MS, IdleCause.HOST_LAUNCH, host=place)
    found = advise_on(step_of(10), **stalled(gap))
    assert ("host_work" in codes(found)) is is_told


def allocating(steps, calls=2, name="cudaMalloc"):
    builder = trace()
    for number in range(3):
        at = 1000 * number
        builder.step(number, at, 990).operator("aten::empty", at + 1, 400)
        builder.launch(at + 420).kernel("kernel", at + 450, 10)
        for place in range(calls if number < steps else 0):
            builder.launch(at + 10 + 100 * place, 90, name=name)
    return builder


def test_allocating_in_every_step_is_told(advise_on, asked):
    facts = waiting(IdleCause.MEMORY_ALLOCATION, hosts=[host(100_000, 990_000, steps=3)])
    found = advise_on(allocating(3), **facts)
    words = ("cudaMalloc run 2 times per step", "180 µs of host time")
    finding = told(found, "cuda_malloc", *words, has_gain=True)
    # They may end by themselves.
    assert not finding.is_gain_known
    assert finding.evidence["steps_with_calls"] == 3
    (((dropped, (calls,)),),) = asked
    assert (dropped, len(calls)) == ("drop_calls", 2 * 3)


ALLOCATED = {"hosts": [host(100_000, 990_000, steps=3)]}
LEFT_ALONE = {
    "a device that hardly waits": (
        "launch_bound", step_of(10), waiting(idle_ns=MS // 2, hosts=[host(8 * MS, 10 * MS)]),
    ),
    "a host busy with something else": (
        "launch_bound", step_of(10), waiting(hosts=[host(2 * MS, 10 * MS, launches=50)]),
    ),
    "a device that waits for something else": (
        "launch_bound", step_of(10),
        waiting(IdleCause.NOTHING_SCHEDULED, hosts=[host(2 * MS, 10 * MS, launches=500)]),
    ),
    "data that is there in time": (
        "data_loading", step_of(10), waiting(IdleCause.DATA_LOADING, 100_000, hosts=[host(9.8 * MS, 3 * MS)]),
    ),
    "allocating once": ("cuda_malloc", allocating(1), ALLOCATED),
    "allocating from the cache": ("cuda_malloc", allocating(3, name="cudaMallocAsync"), ALLOCATED),
    "allocating never": ("cuda_malloc", allocating(0), ALLOCATED),
}  # fmt: skip


@pytest.mark.parametrize(("code", "content", "values"), LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_what_is_left_alone(advise_on, code, content, values):
    found = codes(advise_on(content, **values))
    assert code not in found
    # Where allocating is the scene, the host is slow by itself.
    assert found == [] or code == "cuda_malloc"


@cases("of_module", "edit")
def test_what_is_to_be_compiled_is_what_launches_most(advise_on, monkeypatch, of_module, edit):
    parts = (
        ProgramPart("train.py:9 all_of_it", is_module=False, operators=((0, 18),)),
        ProgramPart("train.py:3 World.step", is_module=False, operators=((0, 16),)),
        ProgramPart("Net", is_module=True, operators=((0, of_module),)),
    )
    watched = RecordedDataflow((), parts=parts)
    monkeypatch.setattr(profiled_run, "dataflow", lambda *_: Dataflow(watched, [], 0))
    builder = step_of(10).step(2, 10_000, 10_000)
    for at in (10_010, 10_050):
        builder.operator("aten::linear", at, 20).launch(at + 5).kernel("kernel", at + 40, 10)
    found = advise_on(builder, **waiting(hosts=[host(2 * MS, 10 * MS, launches=1000)]))
    assert (only(found, "launch_bound").change or "").startswith(edit)


@pytest.mark.parametrize("flips", [(1, 2), (1, 1)], ids=["others differ", "nothing differs"])
def test_graphs_may_hold_what_is_compiled_though_the_step_differs(advise_on, flips):
    builder = trace()
    for number, count in enumerate(flips):
        begin = 1000 * number
        builder.step(number + 1, begin, 1000)
        for at in range(count):
            builder.operator("aten::flip", begin + 10 * at, 5).launch(begin + 10 * at + 1)
            builder.kernel("flip", begin + 10 * at + 3, 1)
        builder.operator("Torch-Compiled Region: 0/0", begin + 100, 800)
        for at in range(6):
            builder.operator("aten::addmm", begin + 110 + 50 * at, 20)
            builder.launch(begin + 115 + 50 * at).kernel("gemm", begin + 125 + 50 * at, 10)
    finding = only(
        advise_on(builder, **waiting(hosts=[host(2 * MS, 10 * MS, launches=1000)])), "launch_bound"
    )
    assert 'mode="reduce-overhead"' in (finding.change or "")
    assert bool(finding.applicability.blocked_by) is (flips == (1, 2))


@pytest.mark.parametrize("node", ["autograd::engine::evaluate_function: MulBackward0", "MyBackward"])
def test_checks_of_every_gradient_are_anomaly_detections(advise_on, node):
    builder = trace().step(1, 0, 1000)
    for begin in range(100, 900, 100):
        builder.operator(node, begin, 90)
        for name, at in (("aten::isnan", 10), ("aten::_is_any_true", 30), ("aten::item", 50)):
            builder.operator(name, begin + at, 10)
        builder.launch(begin + 12).kernel("isnan", begin + 15, 2)
    found = advise_on(builder, **waiting(hosts=[host(2 * MS, 10 * MS, launches=1000)]))
    assert ("anomaly_detection" in codes(found)) is node.startswith("autograd")
