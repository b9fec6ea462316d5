"""`opscope run`: the script's streams and exit code, the files, and what is said when it goes wrong."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from case_tables import cases

pytest.importorskip("torch")

from opscope.cli.app import declared_options, separate_script
from opscope.model.sidecar import read_sidecar

pytestmark = pytest.mark.torch
exhaustive = pytest.mark.exhaustive(few=False)

SCRIPT = Path(__file__).with_name("train.py.txt").read_text(encoding="utf-8")


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANK", raising=False)
    (tmp_path / "train.py").write_text(SCRIPT)
    return "train.py"


@pytest.fixture
def run(opscope):
    return lambda *arguments: opscope(*separate_script(["run", *map(str, arguments)]))


def test_a_script_is_recorded_and_its_output_stays_its_own(run, script):
    outcome = run(script).fine(out="trained False train.py\n")
    assert "Top operators" in outcome.err
    wrote = [line for line in outcome.err.splitlines() if line.startswith("Wrote ")]
    assert wrote == [f"Wrote opscope_run/{name}" for name in ("trace.json", "analysis.json", "report.md")]
    assert read_sidecar("opscope_run/trace.opscope.json").steps == 6
    assert "aten::addmm" in json.dumps(json.loads(Path("opscope_run/analysis.json").read_text()))


def test_a_script_ends_on_request_once_it_is_recorded(run, script):
    run("--quiet", "--stop", script, "--count", 1_000_000).fine(out="")
    sidecar = read_sidecar("opscope_run/trace.opscope.json")
    assert (sidecar.steps, sidecar.ended_by) == (6, None)
    assert sidecar.unrecorded_steps
    run("--stop", "--steps", "none", script).fails("--stop does not apply")


def test_everything_after_the_script_is_its_own(run, script):
    outcome = run("--quiet", "--active", 2, script, "--debug", "--count", "5").fine(
        out="trained True train.py\n"
    )
    assert "Top operators" not in outcome.err
    assert read_sidecar("opscope_run/trace.opscope.json").steps == 2
    outcome = run("--force", script, "--help")
    assert "--count" in outcome.out
    assert "--active" not in outcome.out
    refused = run("--output-dir", "opscope_run", script, "--force")
    assert "Overwrite it with --force, before the program" in refused.err


def test_steps_after_the_recording_are_timed_or_their_lack_is_told(run, script):
    outcome = run(script, "--count", 5)
    assert "note: the program is too short to have steps without the profiler" in outcome.err
    outcome = run("--force", script, "--count", 120)
    assert "too short" not in outcome.err
    assert "without profiler (median of" in outcome.err
    step = json.loads(Path("opscope_run/analysis.json").read_text())["step"]
    assert step["unrecorded_ns"]["place"] == "after"
    assert step["host_stretch"] == step["recorded_ns"] / step["unrecorded_ns"]["median"]


@cases("then", "code", "shown")
def test_exit_codes_pass_and_what_was_recorded_is_kept(run, script, then, code, shown):
    outcome = run("--quiet", script, "--count", 5, "--then", then).fails(shown, code=code, out=None)
    assert "opscope/src" not in outcome.err
    assert "note: trace.json: 2 of 6 steps were recorded" in outcome.err
    assert "Wrote opscope_run/trace.json" in outcome.err


def test_recording_nothing_is_an_error_with_a_way_out_and_the_scripts_code(run, script):
    run(script, "--count", 0).fails("--steps none", out=None)
    assert not Path("opscope_run").exists()
    assert run("--steps", "none", "--force", "--quiet", script, "--count", 0).code == 0
    run(script, "--count", 1, "--then", "sys.exit(5)").fails(
        "error: nothing was recorded: 1 step only", code=5, out=None
    )


def test_a_module_and_a_step_function(run, script):
    Path("package").mkdir()
    Path("package/__init__.py").write_text("")
    Path("package/serve.py").write_text(
        "import sys, torch\n"
        "def answer(): return torch.ones(3)\n"
        "for _ in range(9): answer()\n"
        "print(__name__, sys.argv[1:])\n"
    )
    run("--steps", "package.serve:answer", "-m", "package.serve", "-m", "x").fine(
        out="__main__ ['-m', 'x']\n"
    )
    assert read_sidecar("opscope_run/trace.opscope.json").steps == 6
    sys.modules.pop("package")


@pytest.mark.exhaustive(few=False)
def test_compilation_is_tracked_from_the_scripts_start(run, script, monkeypatch):
    monkeypatch.setenv("INDUCTOR_PROVENANCE", "")  # so that it is as before in the end
    monkeypatch.delenv("INDUCTOR_PROVENANCE")
    show = "print(os.environ.get('INDUCTOR_PROVENANCE'))"
    assert run("--quiet", script, "--then", show).out.endswith("None\n")
    assert run("--quiet", "--force", "--record", "compile", script, "--then", show).out.endswith("1\n")


@pytest.mark.exhaustive(few=False)
def test_processes_of_a_job_share_the_folder(run, script, monkeypatch):
    monkeypatch.setenv("RANK", "2")
    outcome = run("--active", 1, "-o", "page.html", script).fine()
    assert "Top operators" not in outcome.err  # rank 0 prints
    names = {path.name for path in Path("opscope_run").iterdir()}
    assert {"trace_rank2.json", "analysis_rank2.json", "report_rank2.md"} <= names
    assert not Path("page.html").exists()


@cases("arguments", "message")
def test_mistakes_are_one_line_before_anything_runs(run, script, arguments, message):
    Path("broken.py").write_text("x = (\n")
    run(*arguments).fails(message, lines=1)


def test_earlier_results_are_kept_unless_forced(run, script):
    Path("opscope_run").mkdir()
    Path("opscope_run/analysis.json").write_text("old")
    run("--output-dir", "opscope_run", script).fails("--force")
    Path("opscope_run_2").mkdir()
    assert run("--quiet", script).code == 0  # in the first folder without files
    assert read_sidecar("opscope_run_2/trace.opscope.json").steps
    assert run("--force", "--quiet", script).code == 0
    assert read_sidecar("opscope_run/trace.opscope.json").steps


def test_without_torch_the_install_line_is_shown(run, script, monkeypatch):
    monkeypatch.setattr("opscope.cli.run.find_spec", lambda name: None)
    run(script).fails("pip install")


@pytest.mark.exhaustive  # a process that imports torch
def test_an_interrupted_process_leaves_its_trace(script):
    then = "os.kill(os.getpid(), signal.SIGINT)"
    command = separate_script(["run", "--quiet", script, "--count", "4", "--then", then])
    process = subprocess.run(
        [sys.executable, "-m", "opscope", *command],
        capture_output=True,
        text=True,
        check=False,
        # Python's own handler, whatever the test runner was started with.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )
    assert (process.returncode, process.stdout) == (130, "trained False train.py\n")
    assert "KeyboardInterrupt" in process.stderr
    assert read_sidecar("opscope_run/trace.opscope.json").ended_by == "KeyboardInterrupt"


@cases("tokens", "separated")
def test_the_scripts_arguments_are_set_apart(tokens, separated):
    assert separate_script(tokens.split()) == separated.split()


@pytest.mark.parametrize("verb", ["run", "try"])
def test_every_option_is_told_from_the_script(verb):
    options = declared_options(verb)
    assert {"-m", "--module", "--full", "--force", "--debug", "--help"} <= options.keys()
    for name, is_flag in options.items():
        given = [verb, name] if is_flag else [verb, name, "2"]
        assert separate_script([*given, "a.py", name]) == [*given, "--", "a.py", name]
        assert separate_script([verb, f"{name}=2", "a.py"]) == [verb, f"{name}=2", "--", "a.py"]
    assert [name for name in ("--steps", "--section", "--output") if options[name]] == []


def test_an_option_that_the_script_refuses_is_said_to_be_ours(run, script):
    run("--quiet", script, "--record", "stack").fails("note: --record stands after the script", code=2)
    assert "stands after" not in run("--quiet", "--force", script, "--no-such").err


STEPPING = Path(__file__).with_name("stepping.py.txt").read_text(encoding="utf-8")


EACH = [("--record", kind) for kind in ("stack", "modules", "memory", "compile")]
FLAGS = tuple(word for pair in EACH for word in pair)


@exhaustive
@pytest.mark.parametrize("steps", ["forward", "optimizer"])
@pytest.mark.parametrize("kind", ["train", "infer"])
@pytest.mark.parametrize("given", [FLAGS, *EACH], ids=" ".join)
def test_no_recording_changes_the_program(steps, kind, given, tmp_path):
    """Each in a process of its own: what the tracer takes for the call of a module it decides once."""
    if (steps, kind) == ("optimizer", "infer"):
        steps = "auto"  # it has no such steps
    (tmp_path / "stepping.py").write_text(STEPPING)
    command = ["run", "--quiet", "--force", "--steps", steps, *given, "stepping.py", kind]
    command = [sys.executable, "-m", "opscope", *command]
    process = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (process.returncode, process.stdout) == (5, "done Sequential\n"), process.stderr
    assert read_sidecar(tmp_path / "opscope_run/trace.opscope.json").steps == 6
    assert ("each call of the model is a step" in process.stderr) == (steps == "auto")
    if "modules" in given:
        events = json.loads((tmp_path / "opscope_run/trace.json").read_text())["traceEvents"]
        outer = [one["name"] for one in events if one["name"].startswith("nn.Module: Sequential")]
        assert outer == ["nn.Module: Sequential_0"] * 6


PLANTED = "hf_PlantedKeyThatNobodyMaySee123"


def test_planted_keys_are_in_no_file(run, script, tmp_path, monkeypatch):
    """Neither those of the environment nor those of the command."""
    text = SCRIPT.replace("options = parser", 'parser.add_argument("--api-key")\n    options = parser')
    (tmp_path / "train.py").write_text(text)
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "HARMLESS"):
        monkeypatch.setenv(name, PLANTED)
    arguments = (script, "--api-key", PLANTED)
    monkeypatch.setattr(sys, "argv", ["opscope", "run", "--output", "page.html", *arguments])
    assert run("--output", "page.html", "--record", "stack", *arguments).code == 0
    written = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert len(written) > 4
    assert not [file.name for file in written if PLANTED.encode() in file.read_bytes()]
