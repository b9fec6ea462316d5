"""What a trial makes of processes, which are given by hand: verdicts, the best sets, what is recommended."""

import math
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from msgspec.structs import replace

from opscope.errors import CaptureError
from opscope.model.finding import Finding, Severity
from opscope.model.trial import Correctness, TrialVerdict
from opscope.trials import trying
from opscope.trials.catalog import ProgramTraits, TriedChange, changes_named
from opscope.trials.outcome import ExpectedGains, TrialPlan
from opscope.trials.rounds import NO_RECORDING, ArmRun, TrialRequest, TrialRun
from opscope.trials.trying import Trial

MS = 1_000_000
ROUNDING = Correctness.WITHIN_ROUNDING


def change(name, **options):
    options.setdefault("needs", ())
    return TriedChange(name, name, lambda _: None, patch=f"use {name}", **options)


def plan(*changes, **options):
    return TrialPlan(TrialRequest(kind="script", target="train.py"), changes, **options)


class GivenProcesses:
    """Steps of 10 ms, times the factors of the changes; numbers and errors as given by change."""

    def __init__(self, factors, **given):
        self.factors, self.asked, self.given, self.early = factors, [], given, []

    def factor(self, names):
        return math.prod(self.factors.get(name, 1.0) for name in names)

    def start(self, request):
        return GivenProcess(self, request)

    def run(self, request):
        self.asked.append(request)
        if request.recording is not None and self.given.get("records", True):
            Path(request.recording, "trace.json").touch()
        given, draw = self.given, np.random.default_rng(len(self.asked))
        if len(self.asked) == given.get("interrupted_in"):
            raise KeyboardInterrupt
        numbers = given.get("numbers", {})
        broken, idle = given.get("broken", ()), given.get("idle", ())
        arms, names = [], list(request.arms)
        singles = [one[0] for one in names if len(one) == 1 and self.factors.get(one[0], 1.0) < 0.99]
        if not request.is_constant and len(singles) > 1 and {*singles[:2]} not in map(set, names):
            names.append(tuple(singles[:2]))
        for one in names:
            arm = ArmRun(names=one, correctness=Correctness.IDENTICAL, check_ns=50 * MS)
            for name in one:
                arm.correctness = numbers.get(name, arm.correctness)
                arm.error = "RuntimeError: no kernel" if name in given.get("failing", ()) else None
            if not arm.error and arm.correctness is not Correctness.CHANGED:
                arm.logarithms = (math.log(self.factor(one)) + draw.normal(0, 0.003, 16)).tolist()
            arms.append(arm)
        both = [*request.installed, *(request.arms[0] if request.is_constant and request.arms else ())]
        steps = (10 * MS * self.factor(both) * draw.normal(1, 0.002, given.get("steps", 40))).tolist()
        run = TrialRun(
            arms=arms,
            base_ns=[] if request.is_constant and both else steps,
            base_logarithms=draw.normal(0, 0.003, 16).tolist(),
            step_ns=steps if request.is_constant else [],
            steps=given.get("steps", 40),
            taken="optimizer",
            is_enough=True,
            first_steps={"losses": [2.0]},
            facts=ProgramTraits(
                dtypes=["float32"],
                is_training=given.get("is_training", False),
                device_name=given.get("device_name"),
            ),
            peak_bytes=1000,
            not_applied=tuple(one for one in request.installed if one in idle),
            is_steady=True,
            no_room=given.get("no_room"),
        )
        if given.get("few"):
            run.base_logarithms, run.is_enough, run.exit_code = [], request.is_constant, 0
            if not request.is_constant:
                run.base_ns = []
                for arm in arms:
                    arm.logarithms = []
        if any(name in broken for one in names for name in one):
            run.active, run.is_enough, run.exit_code, run.error = (broken[0],), False, 1, "RuntimeError: bad"
        return run, ""


class GivenProcess:
    found, is_ready, is_alive = None, True, True

    def __init__(self, processes, request):
        self.processes, self.request = processes, request
        if request.is_waiting:
            processes.early.append(request)

    def ask(self, request):
        self.request = request

    def result(self, limit_s, look):
        run, said = self.processes.run(self.request)
        look(run)
        return run, said


def trial(*changes, factors=MappingProxyType({}), **given):
    names = ("allow_precision", "budget_s", "predict", "in_place")
    tried = Trial(plan(*changes, **{name: given.pop(name) for name in names if name in given}))
    processes = GivenProcesses(factors, **given)
    tried._processes.start = processes.start
    return tried, processes


def result(*changes, **given):
    return trial(*changes, **given)[0].run()


def test_what_two_processes_say_is_pooled_and_sets_are_told():
    found = result(change("small"), change("large"), change("none"), factors={"small": 0.9, "large": 0.5})
    assert [one.name for one in found.variants] == ["large", "small", "none"]
    verdicts = [one.verdict for one in found.variants]
    assert verdicts == [TrialVerdict.FASTER, TrialVerdict.FASTER, TrialVerdict.SAME]
    assert set(found.best.names) == {"large", "small"}
    assert found.best.ratio == pytest.approx(0.45, rel=0.02)
    assert found.best.steps_ns[-1] == pytest.approx(4.5 * MS, rel=0.02)
    assert len(found.best.process_ratios) == len(found.variants[0].process_ratios) == 2
    assert found.best_reduced_precision is None
    assert found.noise.ratio == pytest.approx(1, abs=0.02)
    assert (found.runs, found.baseline.rounds, found.is_complete) == (2, 2, True)


@pytest.mark.parametrize(
    ("correctness", "verdict"),
    [(Correctness.CHANGED, TrialVerdict.REFUSED), (Correctness.UNKNOWN, TrialVerdict.FASTER)],
)
def test_only_right_numbers_are_recommended(correctness, verdict):
    found = result(change("quick"), factors={"quick": 0.5}, numbers={"quick": correctness})
    assert (found.variants[0].verdict, found.variants[0].is_recommended, found.best) == (verdict, False, None)


def test_what_fails_or_does_not_apply_is_told_and_the_rest_goes_on():
    elsewhere = change("elsewhere", needs=("inference",))
    changes, given = (
        (change("broken"), elsewhere, change("good")),
        {"failing": ("broken",), "is_training": True},
    )
    found = result(*changes, factors={"good": 0.5}, **given)
    variants = {one.name: one for one in found.variants}
    assert variants["broken"].verdict is TrialVerdict.FAILED
    assert "no kernel" in variants["broken"].error
    assert [(one.name, one.reason) for one in found.not_tried] == [("elsewhere", "it trains")]
    assert found.best.names == ("good",)


def test_a_change_that_ends_the_program_is_dropped_and_it_is_started_again():
    tried, processes = trial(change("bad"), change("good"), factors={"good": 0.5}, broken=("bad",))
    found = tried.run()
    assert [("bad",) in one.arms for one in processes.asked] == [True, False]
    variants = {one.name: one for one in found.variants}
    assert "the program ended with it: RuntimeError: bad" in variants["bad"].error
    assert found.best.names == ("good",)


def test_what_cannot_be_switched_has_processes_of_its_own_and_joins_the_best_set():
    loader = change("loader", is_live=False)
    tried, processes = trial(loader, change("good"), factors={"good": 0.8, "loader": 0.5})
    found = tried.run()
    assert set(found.best.names) == {"good", "loader"}
    assert found.best.ratio == pytest.approx(0.4, rel=0.03)
    alone = [one.arms for one in processes.asked if one.installed == ("loader",)]
    assert alone == [(), (), (("good",),), (("good",),)]
    variants = {one.name: one for one in found.variants}
    assert variants["loader"].peak_bytes == 1000
    assert variants["loader"].correctness is Correctness.IDENTICAL
    idle = result(loader, change("good"), idle=("loader",))
    assert [(one.name, one.reason) for one in idle.not_tried] == [
        ("loader", "it found nothing to change in the program")
    ]


def test_a_program_of_few_steps_has_processes_of_its_own_for_a_change():
    tried, processes = trial(
        change("quick"), change("slow"), factors={"quick": 0.5, "slow": 1.5}, few=True, budget_s=5
    )
    found = tried.run()
    assert all(one.is_constant for one in processes.asked[1:])
    assert found.variants[0].verdict is TrialVerdict.FASTER
    assert found.best.names == ("quick",)
    assert found.variants[1].verdict is TrialVerdict.SLOWER


@pytest.mark.parametrize("steps", [0, 3])
def test_a_program_that_cannot_be_timed_is_an_error(steps):
    with pytest.raises(CaptureError, match="too few steps to time"):
        result(change("quick"), steps=steps, few=True)


def test_interrupted_it_keeps_what_is_measured():
    found = result(change("quick"), factors={"quick": 0.5}, interrupted_in=2)
    assert (found.is_interrupted, found.is_complete) == (True, False)
    assert found.best.names == ("quick",)
    with pytest.raises(KeyboardInterrupt):
        result(change("quick"), interrupted_in=1)


SAID_MS = {"tf32_off": 2.0, "launch_bound": 5.0, "sync": 1.0}
TRAINING_SAID = {
    code: Finding(
        f"advice.{code}", Severity.WARNING, "", estimated_gain_ns_per_step=gain * MS,
        gain_interval_ns_per_step=(gain * MS, 2 * gain * MS),
    )
    for code, gain in SAID_MS.items()
}  # fmt: skip


@pytest.mark.parametrize(("step_ns", "scale"), [(None, 1), (5 * MS, 2)])  # a gain is of the step recorded
def test_what_advice_says_of_the_first_process_orders_the_next_and_stands_beside_what_is_measured(
    step_ns, scale
):
    changes = [
        replace(one, needs=()) for one in changes_named(["tf32", "compile", "set_to_none", "loader_workers"])
    ]
    tried, processes = trial(
        *changes,
        factors={"tf32": 0.7},
        numbers={"tf32": ROUNDING},
        predict=lambda *_: ExpectedGains(TRAINING_SAID, step_ns),
    )
    found = tried.run()
    assert [one.recording is not None for one in processes.asked] == [True, False]  # at its end, once
    assert processes.asked[0].arms == (("tf32",), ("set_to_none",))  # what compiles waits
    assert processes.asked[1].steps == "optimizer"  # as the first one took them
    said = {one.name: one for one in found.variants}
    gain_ns = pytest.approx(2.0 * MS * scale, rel=0.01)
    assert (said["tf32"].finding, said["tf32"].predicted_gain_ns) == ("advice.tf32_off", gain_ns)
    assert said["tf32"].predicted_interval_ns[1] == pytest.approx(4.0 * MS * scale, rel=0.01)
    assert said["compile"].finding == "advice.launch_bound"
    assert said["compile"].predicted_gain_ns is None  # its gain is of a graph
    assert [one.name for one in found.not_tried] == ["loader_workers", "advice.sync"]
    assert found.runs == 2


COMPILED = [replace(one, needs=()) for one in changes_named(["compile", "compile_reduce_overhead"])]
DIGITS = [
    change("coarse", group="precision", rounding=2.0**-8),
    change("coarser", group="precision", rounding=0.1),
]


@pytest.mark.parametrize("is_training", [False, True])
def test_the_second_process_is_started_early_to_compile_what_is_promising_and_timed_then(is_training):
    tried, processes = trial(
        *DIGITS, *COMPILED, change("fused"), device_name="GPU", is_training=is_training,
        numbers={"coarse": ROUNDING, "coarser": Correctness.CHANGED}, factors={"fused": 0.8, "compile": 0.7},
    )  # fmt: skip
    found = tried.run()
    modes = [one.name for one in COMPILED][:: 1 if is_training else -1]
    sets = (("coarse", modes[0]), (modes[0],), (modes[1],))
    assert [(one.is_waiting, one.arms) for one in processes.early] == [(True, sets)]
    first, second, *_ = processes.asked
    assert {name for names in first.arms for name in names} == {"coarse", "coarser", "fused"}
    assert (second.is_waiting, second.arms[0]) == (False, sets[0])
    assert {*sets, ("fused", modes[0]), ("coarse", "fused", modes[0])} < {*second.arms}
    assert "fused" in found.best.names


@pytest.mark.parametrize(
    "given", [{"in_place": True}, {"no_room": "no core to spare"}, {"device_name": None}]
)
def test_where_there_is_no_room_for_two_the_second_process_compiles_in_its_turn(given):
    tried, processes = trial(*COMPILED, change("quick"), **({"device_name": "GPU"} | given))
    found = tried.run()
    assert processes.early == []
    assert [("compile",) in one.arms for one in processes.asked[:2]] == [False, True]
    told = [one.reason for one in found.not_tried if one.name == "compiling ahead"]
    assert told == [*filter(None, [given.get("no_room")])]


def test_a_program_that_ends_before_it_is_recorded_is_asked_of_once():
    asked = []
    tried, processes = trial(
        change("any"), predict=lambda one: asked.append(one) or ExpectedGains({}, None), records=False
    )
    tried.run()
    assert all(one.recording is not None for one in processes.asked)
    assert len(asked) == 1


def test_without_time_what_was_not_reached_is_told():
    found = result(change("quick"), change("loader", is_live=False), factors={"quick": 0.5}, budget_s=0.0)
    assert [(one.name, one.reason) for one in found.not_tried] == [
        ("loader", "the trial ended before its turn")
    ]
    assert (found.runs, found.is_complete) == (1, False)


def test_a_recording_that_failed_or_cannot_be_read_is_said(tmp_path):
    notes = []
    (tmp_path / "trace.json").write_text("[1, 2")
    trying.expected(tmp_path, note=notes.append)
    (tmp_path / NO_RECORDING).write_text("a profiler is running")
    trying.expected(tmp_path, note=notes.append)
    assert trying.expected(tmp_path / "none", note=notes.append) == ExpectedGains({}, None)
    assert [one.startswith("no predictions: ") for one in notes] == [True, True, True]
    assert "a profiler is running" in notes[1]
    assert "the program ended before" in notes[2]
