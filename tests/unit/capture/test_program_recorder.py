"""Programs recorded without knowing it: which steps, what is kept, who gives way to whom."""

import itertools
import os
import sys
import types
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from case_tables import cases, tables

torch = pytest.importorskip("torch")

import opscope  # noqa: E402
from opscope.capture import cycle as cycle_module  # noqa: E402
from opscope.capture import main_loop, profiler, program_recorder  # noqa: E402
from opscope.capture.outermost_calls import OutermostCalls  # noqa: E402
from opscope.capture.profiler import Profiler, _session  # noqa: E402
from opscope.capture.program import Program  # noqa: E402
from opscope.capture.program_recorder import (  # noqa: E402
    ForwardSteps,
    FunctionSteps,
    OptimizerSteps,
    ProgramRecorder,
    RecognizedSteps,
    program_of,
    step_source,
)
from opscope.capture.recording import Recording  # noqa: E402
from opscope.capture.step_clock import StepClock  # noqa: E402
from opscope.errors import CaptureError, InputError  # noqa: E402
from opscope.report.analysis import recording_document  # noqa: E402
from opscope.report.markdown import render_markdown  # noqa: E402
from opscope.workloads.runtime import resident_bytes  # noqa: E402

pytestmark = pytest.mark.torch

PROGRAMS = tables(Path(__file__).with_suffix(".toml"))["programs"]
PREAMBLE, IN_CYCLES, SERVER, FORKING, OWN_PROFILER, OURS, LOOP = PROGRAMS


@pytest.fixture(autouse=True)
def torch_is_as_before():
    functions = (torch.autograd.profiler._prepare_profiler, torch.autograd.profiler._enable_profiler)
    yield
    assert functions == (torch.autograd.profiler._prepare_profiler, torch.autograd.profiler._enable_profiler)
    assert not torch.autograd._profiler_enabled()
    assert not _session.locked()


def again(folder, options, per_step):
    profiler = Profiler(folder, **options)
    profiler.merge_steps(per_step)
    return profiler


@pytest.fixture
def record(tmp_path):
    """Runs a program; the recorder and the program's end."""

    def run(text, steps="optimizer", **schedule):
        script = tmp_path / "script.py"
        script.write_text(PREAMBLE + text)
        source = step_source(steps)
        program = Program(str(script))
        if isinstance(source, FunctionSteps) and source.module == "__main__":
            program = Program(str(script), (), False, source.function, source.wrapped)
        if source is None:
            schedule = {**schedule, "warmup": 0, "active": 1}
        options = {"keep_on_error": True, "overwrite": True, "active": 3, **schedule}
        whole = {**options, "wait": 0, "warmup": 0, "active": 1}
        recorder = ProgramRecorder(
            Profiler(tmp_path / "out", **options),
            source,
            again=partial(again, tmp_path / "out", options),
            whole=(lambda most: Profiler(tmp_path / "out", **{**whole, "max_trace_size": most}))
            if steps == "auto"
            else None,
        )
        return recorder, recorder.run(program)

    return run


@pytest.mark.parametrize(("made", "per_step"), [(130, 6), (50, 1)], ids=["enough of them", "too few"])
def test_where_steps_come_in_cycles_a_cycle_is_recorded_as_a_step(record, made, per_step):
    recorder, end = record(IN_CYCLES % made, "auto")
    assert end.exit_code == 0
    (cycle,) = recorder.cycles
    assert (cycle.sidecar.schedule.merged, cycle.sidecar.steps, cycle.sidecar.partial) == (per_step, 3, False)
    with opscope.load(cycle.trace_path) as session:
        counts = session.query(
            "SELECT count(*) FROM annotations a JOIN steps s ON a.start_ns BETWEEN s.start_ns AND s.start_ns "
            "+ s.duration_ns WHERE starts_with(name, 'Optimizer.step') GROUP BY step"
        )
        summary = opscope.summarize(session)
    assert counts == 3 * [(per_step,)]
    assert (summary.measured_step.merged, summary.measured_step.unrecorded_ns.samples > 3) == (per_step, True)
    headline = render_markdown(recording_document(summary, is_screen=True))
    assert (" of 6 steps)" in headline) == (per_step == 6)


CALLING = "from opscope_test_engine import tick\nfor _ in range(6): tick()\n"


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        *((SERVER, steps) for steps in ("forward", "infer", "Server.answer")),
        (CALLING, "opscope_test_engine:tick"),
    ],
)  # fmt: skip
def test_models_and_functions_end_steps_too(record, tmp_path, text, steps):
    (tmp_path / "opscope_test_engine.py").write_text("import torch\ndef tick(): torch.ones(2)\n")
    try:
        recorder, _ = record(text, steps)
    finally:
        sys.modules.pop("opscope_test_engine", None)
    assert [cycle.sidecar.steps for cycle in recorder.cycles] == [3]


@pytest.mark.parametrize("forwards", [0, 1, 3, 6, 9])
@pytest.mark.parametrize("steps", [0, 7])
def test_steps_are_the_optimizers_if_it_steps_else_the_models(record, forwards, steps):
    text = f"model = torch.nn.Linear(2, 2)\nfor _ in range({forwards}): model(torch.ones(2))\ntrain({steps})"
    recorder, end = record(text, "auto")
    assert (end.exit_code, recorder.notes, recorder.is_whole) == (0, [], False)
    if not steps and forwards < 2:
        with pytest.raises(CaptureError, match="recognized"):
            recorder.require_cycles()
        return
    (cycle,) = recorder.cycles
    assert recorder.step_count == (steps or forwards)
    names = cycle.trace_path.read_text()
    assert ("Optimizer.step#SGD.step" in names, "aten::addmm" in names) == (steps > 0, steps == 0)
    assert cycle.sidecar.steps == (3 if steps or forwards > 4 else forwards - 2)


INTERRUPTED = "raise KeyboardInterrupt"


@pytest.mark.parametrize("text", ["torch.ones(2) * 2", FORKING, "sys.exit(0)", INTERRUPTED])
def test_a_program_without_steps_is_one(record, capsys, text):
    recorder, _ = record(f"torch.ones(3) + 1\n{text}", "auto")
    (cycle,) = recorder.cycles
    assert (recorder.is_whole, recorder.notes) == (True, [])
    assert (cycle.sidecar.steps, cycle.sidecar.partial) == (int(text != INTERRUPTED), text == INTERRUPTED)
    assert "aten::add" in cycle.trace_path.read_text()


def test_files_that_a_program_reads_are_not_memory_that_recording_takes(tmp_path):
    file = tmp_path / "data"
    file.write_bytes(bytes(64 << 20))
    data = np.memmap(file, mode="r")
    before = resident_bytes()
    assert data.sum() == 0
    assert resident_bytes() - before < 32 << 20
    kept = np.ones(64 << 20, dtype=np.uint8)
    assert resident_bytes() - before > 32 << 20
    del kept


@cases("text")
def test_a_program_that_may_have_steps_is_none(record, capsys, text):
    recorder, _ = record(f"torch.ones(3) + 1\n{text}", "auto")
    assert not recorder.is_whole
    with pytest.raises(CaptureError, match="nothing was recorded"):
        recorder.require_cycles()


@pytest.mark.parametrize("steps", [0, 7])
def test_of_a_program_that_grows_before_its_first_step_the_beginning_is_kept(record, monkeypatch, steps):
    sizes = itertools.chain([0], itertools.repeat(4 * 10**9))
    monkeypatch.setattr(profiler, "resident_bytes", lambda: next(sizes))
    grown = "import time\nwhile torch.autograd._profiler_enabled(): time.sleep(0.01)\n"
    recorder, _ = record(f"torch.ones(3).sin()\n{grown}torch.ones(3).cos()\ntrain({steps})", "auto")
    (cycle,) = recorder.cycles
    assert (cycle.sidecar.steps, recorder.is_whole) == ((3, False) if steps else (0, True))
    names = cycle.trace_path.read_text()
    assert ("aten::sin" in names, "aten::cos" in names, "SGD" in names) == (not steps, False, steps > 0)
    assert ["more than --max-trace-size" in note for note in recorder.notes] == [True] * (not steps)


@pytest.mark.parametrize("has_model", [False, True])
def test_with_a_gpu_a_program_without_steps_is_recorded_from_where_it_initializes_cuda(
    record, monkeypatch, has_model
):
    """Before that nothing of ours may ask for devices: it could fork others that use them."""
    asked = []
    monkeypatch.setattr(program_recorder, "driver_cuda_version", lambda: 13000)
    monkeypatch.setattr(torch.cuda, "_lazy_call", asked.append)
    model = "torch.nn.Linear(2, 2)\n" if has_model else ""
    monkeypatch.setattr(torch.cuda, "init", lambda: [call() for call in asked])
    recorder, _ = record(f"torch.ones(3).sin()\n{model}torch.cuda.init()\ntorch.ones(3).cos()\n", "auto")
    assert recorder.is_whole is not has_model
    for cycle in recorder.cycles:
        names = cycle.trace_path.read_text()
        assert ("aten::sin" in names, "aten::cos" in names) == (False, True)
    assert len(recorder.cycles) == (not has_model)


def test_without_steps_the_whole_run_is_one(record):
    recorder, _ = record("train(2)", "none")
    (cycle,) = recorder.cycles
    assert (cycle.sidecar.steps, cycle.sidecar.partial) == (1, False)
    assert '"Optimizer.step#SGD.step"' in cycle.trace_path.read_text()


@cases("text", "steps", "message")
def test_recording_nothing_says_why(record, text, steps, message):
    recorder, end = record(text, steps)
    assert end.exit_code == 0
    with pytest.raises(CaptureError, match=message):
        recorder.require_cycles()


def test_a_program_that_never_imports_torch_says_so(tmp_path, monkeypatch):
    (tmp_path / "plain.py").write_text("pass\n")
    recorder = ProgramRecorder(Profiler(tmp_path / "out"), step_source("optimizer"))
    monkeypatch.delitem(sys.modules, "torch")
    recorder.run(Program(str(tmp_path / "plain.py")))
    with pytest.raises(CaptureError, match="did not import torch"):
        recorder.require_cycles()


@pytest.mark.parametrize(
    ("text", "before", "recorded_steps"),
    [(OWN_PROFILER, 0, []), (OWN_PROFILER, 2, [0]), (OWN_PROFILER, 3, [1]), (OURS, 3, [1])],
)
def test_a_profiler_of_the_program_wins(record, text, before, recorded_steps):
    recorder, end = record(text.format(before=before))
    assert end.exit_code == 0
    assert [cycle.sidecar.steps for cycle in recorder.cycles] == recorded_steps
    assert "profiler of its own" in recorder.notes[0]
    if not recorded_steps:
        with pytest.raises(CaptureError, match="profiler of its own"):
            recorder.require_cycles()


def test_after_the_schedule_the_program_may_profile_freely(record):
    recorder, end = record(OWN_PROFILER.format(before=6))
    assert end.exit_code == 0
    assert [cycle.sidecar.steps for cycle in recorder.cycles] == [3]
    assert recorder.notes == []


HOOKS = [
    (Profiler, "__enter__"), (Profiler, "step"), (Profiler, "keep_late_steps"), (Profiler, "_make_directory"),
    (StepClock, "start"), (StepClock, "mark"), (StepClock, "read"),
    (Recording, "prepare"), (Recording, "start"), (Recording, "next_step"), (Recording, "export"),
    (Recording, "structure"), (profiler, "collect"), (profiler, "write_sidecar"),
    (cycle_module, "write_sidecar"), (profiler.environment, "collect_environment"),
    (profiler, "require_no_profiler"), (profiler, "resident_bytes"),
    (program_recorder.attached_profilers, "watch"), (OptimizerSteps, "watch"), (ProgramRecorder, "_enter"),
]  # fmt: skip
# What puts things back: it fails when it has, for nobody else would.
ENDS = [
    (Profiler, "__exit__"), (Profiler, "drop"), (StepClock, "stop"), (Recording, "stop"),
    (Recording, "abandon"), (OptimizerSteps, "stop"),
    (program_recorder.attached_profilers, "unwatch"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("owner", "name", "is_end"),
    [
        pytest.param(owner, name, is_end, id=f"{getattr(owner, '__name__', 'attached')}.{name}")
        for hooks, is_end in ((HOOKS, False), (ENDS, True))
        for owner, name in hooks
    ],
)
def test_an_error_in_any_hook_ends_the_recording_and_not_the_program(  # noqa: PLR0917
    record, monkeypatch, capsys, owner, name, is_end
):
    original = getattr(owner, name)
    calls = []

    def fail(*args, **kwargs):
        calls.append(name)
        if is_end:
            original(*args, **kwargs)
        raise RuntimeError("injected")

    monkeypatch.setattr(owner, name, fail)
    recorder, end = record("train(9)\nprint('trained', weight.sum().item())", repeat=2, active=2)
    assert (end.exit_code, end.error) == (0, None)
    assert capsys.readouterr().out.startswith("trained 0.39")
    assert recorder.notes or recorder.cycles or not calls


def test_a_recording_that_grows_too_large_ends_with_its_step(record, monkeypatch):
    sizes = iter([0, 10**9, 4 * 10**9, 9 * 10**9])
    monkeypatch.setattr(profiler, "resident_bytes", lambda: next(sizes))
    recorder, _ = record("train(12)", active=6, repeat=2, max_trace_size="3GB")
    (cycle,) = recorder.cycles
    assert (cycle.sidecar.steps, cycle.sidecar.partial) == (2, False)
    assert recorder.notes == [
        "recording ended before its last step: the process had grown by 4.00 GB, more than --max-trace-size"
    ]
    with opscope.load(cycle.trace_path) as session:
        (finding,) = (one for one in session.findings() if one.code == "capture.size_limit")
    assert "after 2 of 6 steps" in finding.message


def test_children_record_nothing(record, capfd):
    recorder, end = record(
        "train(3)\nsys.stdout.flush()\nchild = os.fork()\n"
        "if child == 0:\n    train(9)\n    os._exit(5)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\ntrain(3)\n"
    )
    assert end.exit_code == 0
    assert capfd.readouterr().out == "5\n"
    assert recorder.cycles[0].sidecar.steps == 3
    assert os.getpid() == recorder._process


@pytest.fixture
def steps():
    return []


@pytest.fixture
def watched(steps):
    """Watches a source until the test ends."""
    sources = []

    def watch(source):
        sources.append(source)
        source.watch(lambda: steps.append(1), lambda: None)
        return source

    yield watch
    for source in sources:
        source.stop()


def optimizer():
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    return torch.optim.SGD([weight], lr=0.1)


def test_where_the_first_optimizer_is_gone_the_next_one_counts(watched, steps):
    source = watched(OptimizerSteps())
    for _ in range(3):  # each client of a federation makes one
        first, second = optimizer(), optimizer()
        first.step()
        second.step()
        del first
    assert len(steps) == 3
    source.stop()
    second.step()
    assert len(steps) == 3


def test_a_forward_counts_from_the_second_call_of_a_module(watched, steps):
    encoder, model = torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    before = torch.nn.Module.__call__
    source = watched(ForwardSteps())
    encoder(torch.ones(2))
    model(torch.ones(2))
    assert steps == []
    model(torch.ones(2))
    assert len(steps) == 2  # the first one, known now to have been one, and this
    encoder(torch.ones(2))
    model(torch.ones(2))
    assert len(steps) == 3
    assert torch.nn.Module.__call__ is before  # also while it watches: what the tracer recognizes
    source.stop()
    assert vars(torch.nn.Module)["__call__"] is before


@cases("calls", "told")
def test_the_model_called_most_often_is_the_step(watched, calls, told):
    """What is told of each model by now; `|` is where what was told before turned out to be no steps."""
    models = {"a": torch.nn.Linear(2, 2), "b": torch.nn.Linear(2, 2), "t": torch.nn.ReLU()}
    said = []
    source = ForwardSteps()
    source.watch(lambda: said.append(name), lambda: said.append("|"))
    for name in calls:
        models[name](torch.ones(2))
    source.stop()
    text = "".join(said)
    assert text[text.rfind("|") if "|" in told else 0 :] == told


def in_turn(model, given):
    model(given)
    model(-given)


def a_prompt_and_its_tokens(model, given):
    model(given)
    for _ in range(3):
        model(given)


@pytest.mark.parametrize(
    ("calls", "told", "calls_per_step"),
    [
        # Of the first round it is not known yet that its calls take turns.
        (in_turn, " ... |. .", 2),
        (a_prompt_and_its_tokens, " ..... .... ....", 1),
    ],
)
def test_calls_from_several_lines_are_one_step_if_they_come_in_turn(calls, told, calls_per_step):
    model, given, said, source = torch.nn.Linear(2, 2), torch.ones(2), [], ForwardSteps()
    source.watch(lambda: said.append("."), lambda: said.append("|"))
    model(given)  # to warm up
    for _ in range(3):
        said.append(" ")
        calls(model, given)
    source.stop()
    assert ("".join(said), source.calls_per_step) == (told, calls_per_step)


@pytest.mark.parametrize("is_recording", [False, True])
def test_layers_run_with_torch_as_it_is(watched, is_recording):
    """The class changes only while something records: each change costs all that is looked up on modules."""
    seen = []

    class Model(torch.nn.Linear):
        def forward(self, x):
            seen.append((self.__call__.__func__, vars(torch.nn.Module)["__call__"]))
            return x

    original = torch.nn.Module.__call__
    watched(ForwardSteps())
    watching = vars(torch.nn.Module)["__call__"]
    with torch.profiler.profile() if is_recording else nullcontext():
        Model(1, 1)(torch.ones(1))
    assert seen == [(original, original if is_recording else watching)]
    assert vars(torch.nn.Module)["__call__"] is watching


def test_who_watches_first_is_called_inside_and_stays_until_a_tracer_puts_torchs_own_call_back(watched):
    called = []

    def around(module, call, args, kwargs):
        called.append(module)
        return call(*args, **kwargs)

    before, inner = torch.nn.Module.__call__, OutermostCalls(around)
    inner.watch()
    source, model = watched(ForwardSteps()), torch.nn.Sequential(torch.nn.Linear(1, 1))
    model(torch.ones(1))
    source.stop()
    model(torch.ones(1))
    assert called == [model, model]
    torch.nn.Module.__call__ = before  # as torch.fx does after it has traced a backward pass
    model(torch.ones(1))
    assert called == [model, model]
    inner.watch()
    model(torch.ones(1))
    inner.stop()
    assert called == [model, model, model]
    assert vars(torch.nn.Module)["__call__"] is before


def test_a_forward_that_fails_is_no_step(watched, steps):
    class Model(torch.nn.Linear):
        def forward(self, x):
            raise ValueError("forward")

    model = Model(1, 1)
    watched(ForwardSteps())
    for _ in range(3):
        with pytest.raises(ValueError, match="forward"):
            model(1)
    assert len(steps) == 1


def test_a_compiled_model_counts(watched, steps):
    watched(ForwardSteps())
    model = torch.nn.Linear(2, 2)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for _ in range(3):
        compiled(torch.ones(2))
    assert len(steps) == 3


def test_functions_and_methods_of_a_module_count(watched, steps):
    class Trainer:
        @classmethod
        def make(cls):
            return cls

        def step(self):
            return 3

    module = types.SimpleNamespace(Trainer=Trainer, run=lambda x: x + 1, number=5)
    for name in ("Trainer.step", "Trainer.make", "run", "absent", "absent.step", "number"):
        watched(FunctionSteps("somewhere", name)).wrap_in(module)
    assert (module.run(1), module.number) == (2, 5)
    assert Trainer().step() == 3
    assert Trainer.make() is Trainer
    assert len(steps) == 3


@pytest.mark.parametrize("name", ["", "mark:", ":f", "m:", "a b", "3", "m:f:g", "-x"])
def test_names_that_tell_no_steps(name):
    with pytest.raises(InputError, match="tells no steps"):
        step_source(name)


@pytest.mark.parametrize("steps", ["auto", "loop"])
def test_rounds_of_the_main_loop_are_steps_of_a_program_without_others(tmp_path, monkeypatch, capsys, steps):
    script, allocations = tmp_path / "script.py", itertools.count(step=10)
    script.write_text(LOOP)
    monkeypatch.setattr(main_loop, "_device_allocations", lambda: next(allocations))
    monkeypatch.setattr(main_loop, "_SHORT_S", 0.01)
    monkeypatch.setattr(main_loop, "_LEAST_S", 0.05)
    source = step_source(steps)
    options = {"keep_on_error": True, "overwrite": True, "active": 3}
    recorder = ProgramRecorder(Profiler(tmp_path / "out", **options), source)
    end = recorder.run(program_of(str(script), (), source, is_module=False))
    assert (end.exit_code, capsys.readouterr().out, recorder.notes) == (0, "done\n", [])
    (cycle,) = recorder.cycles
    assert cycle.sidecar.steps == 3
    with opscope.load(cycle.trace_path) as session:
        rows = session.query(
            "SELECT step, count(*) FROM operators WHERE name = 'aten::sin' GROUP BY 1 ORDER BY 1"
        )
    assert [count for step, count in rows if step is not None] == [3, 3, 3]
    assert not isinstance(source, RecognizedSteps) or source.taken == "loop"
