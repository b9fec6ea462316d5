"""Changes switched inside of running programs: real processes, changes planted by files."""

import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from case_tables import tables

pytest.importorskip("torch")

import opscope
from opscope.model.trial import Correctness
from opscope.trials.pooling import signed_rank_interval
from opscope.trials.processes import ProgramRuns
from opscope.trials.rounds import TrialRequest

pytestmark = [pytest.mark.torch, pytest.mark.exhaustive(few=False)]

PLANTED = tables(Path(__file__).with_name("planted.toml"))
TRAINING, ADVERSARIAL, ACCUMULATING, INFERENCE, GENERATING = (
    "\n".join(PLANTED["programs"][one] for one in ("begin", kind, "digest"))
    for kind in ("training", "adversarial", "accumulating", "inference", "generating")
)


@pytest.fixture
def switched(tmp_path):
    """Run a program with these changes, planted ones or of the catalogue."""

    def run(program, *names, steps=10_000, seconds=3.0, **more):
        files = {}
        for name in {*names} & {*PLANTED["changes"]}:
            files[name] = str(tmp_path / f"{name}.py")
            Path(files[name]).write_text(PLANTED["changes"][name])
        (tmp_path / "program.py").write_text(program.replace("STEPS", str(steps)))
        processes = ProgramRuns(in_place=False)
        request = TrialRequest(
            kind="script", target=str(tmp_path / "program.py"),
            arms=tuple(tuple(one.split("+")) for one in names),
            change_files=files, seconds=seconds, **more,
        )  # fmt: skip
        with processes.open():
            found, said = processes.start(request).result(120)
        assert found is not None, said
        return found, {one.names[0]: one for one in found.arms if len(one.names) == 1}, said

    return run


@pytest.mark.parametrize(
    "program",
    [TRAINING, ACCUMULATING, ADVERSARIAL, GENERATING],
    ids=["training", "closure", "adversarial", "generating"],
)
def test_checks_and_switches_that_change_nothing_leave_every_bit(switched, tmp_path, program):
    names = ("restless", "shallow", "skipping", *(("scaled", "rate") if "backward" in program else ()))
    found, arms, said = switched(program, *names, steps=600, seconds=60)
    alone = subprocess.run(
        [sys.executable, str(tmp_path / "program.py")], capture_output=True, text=True, check=True
    )
    assert said.splitlines()[-1] == alone.stdout.strip()
    assert (found.exit_code, found.is_enough) == (0, False)
    restless = arms.pop("restless")
    assert (restless.correctness, bool(restless.logarithms)) == (Correctness.IDENTICAL, True)
    for name, arm in arms.items():
        assert (arm.correctness, arm.logarithms, arm.error) == (Correctness.CHANGED, [], None), name


def test_a_planted_slowdown_is_found_and_nothing_else(switched):
    found, arms, _ = switched(TRAINING, "slow", "noop", "fused_optimizer", "set_to_none", seconds=8.0)
    assert found.is_enough
    # Much slower, it is left out after three rounds.
    assert 0.1 < signed_rank_interval(arms["slow"].logarithms).value < 1
    _, low, high = signed_rank_interval(arms["noop"].logarithms)
    assert low < 0.05
    assert high > -0.05
    assert arms["set_to_none"].correctness is Correctness.IDENTICAL
    assert arms["fused_optimizer"].correctness in {Correctness.IDENTICAL, Correctness.WITHIN_ROUNDING}
    assert len(found.base_logarithms) >= 4
    assert found.taken == "optimizer"


def test_what_a_change_raises_ends_neither_the_program_nor_the_others(switched):
    found, arms, _ = switched(
        TRAINING, "broken_on", "broken_output", "broken_later", "infinite", "restless", steps=900, seconds=60
    )
    assert found.error is None
    assert found.is_enough or found.exit_code == 0
    for name, words in (
        ("broken_on", "RuntimeError: on"), ("broken_output", "no attribute 'nothing'"),
        ("broken_later", "in the 20th call"), ("infinite", "no longer finite"),
    ):  # fmt: skip
        assert words in (arms[name].error or ""), name
    assert arms["restless"].error is None
    assert len(arms["restless"].logarithms) >= 2


def test_what_is_raised_in_backward_is_told_with_the_change_that_was_on(switched):
    found, _, _ = switched(TRAINING, "broken_backward", "noop")
    assert found.active == ("broken_backward",)
    assert (found.exit_code, found.is_enough) == (1, False)
    assert "in backward" in (found.error or "")


@pytest.mark.parametrize("name", ["compile", "bf16_autocast", "bf16_weights", "inference_mode"])
def test_changes_of_models_take_hold_beside_the_eager_one(switched, name):
    arm = switched(INFERENCE, name, seconds=1.0)[1][name]
    assert (arm.error, arm.not_tried) == (None, None)
    assert arm.correctness in {Correctness.IDENTICAL, Correctness.WITHIN_ROUNDING}
    assert arm.logarithms


def test_a_change_that_no_longer_takes_hold_is_no_result(switched):
    """Of a program that goes on without calling its model, a change of the model is not timed."""
    without_model = TRAINING.replace(
        "for _ in range(STEPS):",
        "for at in range(STEPS):\n    if at == 60:\n"
        "        own, model = model, lambda x: x.repeat(1, 2) @ own[-1].weight.t()",
    )
    arm = switched(without_model, "bf16_autocast")[1]["bf16_autocast"]
    # On a busy machine steps are steady only after that.
    assert arm.error == "it no longer takes hold of the program's steps" or arm.not_tried


def test_a_process_that_is_started_early_compiles_and_is_timed_when_it_is_asked(tmp_path):
    (tmp_path / "program.py").write_text(INFERENCE.replace("STEPS", "9999"))
    early = TrialRequest(
        kind="script", target=str(tmp_path / "program.py"), arms=(("bf16_weights", "compile"),),
        is_waiting=True,
    )  # fmt: skip
    processes, checked = ProgramRuns(in_place=False), []
    with processes.open():
        run = processes.start(early)

        def look(found):
            if not checked and found.arms and found.arms[0].check_ns and not found.active:
                checked.append((found.base_ns, found.steps < 20))
                arms = (("inference_mode",), *early.arms)
                run.ask(replace(early, is_waiting=False, arms=arms, seconds=2.0))

        found, said = run.result(120, look)
    assert found is not None, said
    assert (checked, found.is_enough) == ([([], True)], True)
    assert found.arms[0].correctness is Correctness.WITHIN_ROUNDING
    assert [len(one.logarithms) >= 3 for one in found.arms] == [True, True]


def test_what_was_compiled_is_not_run_with_weights_of_another_type(switched):
    # Whole numbers come in either way: only the weights are of another type.
    found, _, _ = switched(
        PLANTED["programs"]["looking_up"], "compile", "bf16_weights+compile", "bf16_weights", seconds=50.0
    )
    assert [one.error for one in found.arms] == [None, None, None]
    assert Correctness.CHANGED not in {one.correctness for one in found.arms}


def test_a_model_of_torchscript_is_tried_and_goes_on(switched):
    scripted = INFERENCE.replace("model.eval()", "model = torch.jit.script(model.eval())")
    found, arms, said = switched(scripted, "bf16_weights", steps=400)
    assert arms["bf16_weights"].correctness is Correctness.WITHIN_ROUNDING
    assert found.is_enough or "digest" in said


@pytest.mark.parametrize("constant", [False, True])
def test_the_program_as_it_is_is_recorded_before_it_ends(switched, tmp_path, constant):
    folder, steps = tmp_path / "recording", 200
    folder.mkdir()
    options = {"most_steps": steps, "recording": str(folder), "is_constant": constant}
    found, arms, _ = switched(TRAINING, "restless", steps=steps, seconds=0.2 if constant else 60, **options)
    assert found.is_enough
    assert found.steps < steps
    assert constant or arms["restless"].logarithms
    with opscope.load(folder / "trace.json") as session:
        assert session.scalar("SELECT count(DISTINCT step) FROM operators") == 2
