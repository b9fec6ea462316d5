import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from case_tables import cases
from help_examples import NEED_GPU, READ, RUN, examples, write_files
from opscope._version import __version__
from opscope.cli import app, main
from opscope.signals import Terminated

exhaustive = pytest.mark.exhaustive(few=False)
PAGE = (Path(__file__).parents[2] / "docs/journeys.md").read_text("utf-8")
JOURNEYS = dict(re.findall(r"^## (.+?):[^`]+```bash\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE))
VERBS = [verb for verbs in app.VERBS.values() for verb in verbs]


def test_version_and_help(opscope):
    assert opscope("--version").out.strip() == __version__
    opscope("--help").fine(*VERBS)
    opscope().fine("Usage")


def test_a_trace_alone_is_analyzed(opscope, trace):
    assert opscope(trace, "--json").json == opscope("analyze", trace, "--json").json
    assert opscope("--lang", "en", trace).out == opscope("analyze", trace).out


def test_every_module_but_those_shared_is_a_verb():
    modules = {path.stem for path in Path(app.__file__).parent.glob("*.py")}
    shared = {"__init__", "app", "console"}
    assert {"try_changes" if verb == "try" else verb for verb in VERBS} == modules - shared


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_says_what_it_does_with_an_example_and_its_exit_codes(opscope, verb):
    opscope(verb, "--help").fine(f"Example: opscope {verb} ", "Exit codes: 0 fine, 1 an error")


def test_every_verbs_examples_are_run_on_a_cpu_or_on_a_gpu() -> None:
    assert sorted((*READ, *RUN, *NEED_GPU)) == sorted(VERBS)


@pytest.mark.parametrize("verb", [*READ, *(pytest.param(one, marks=exhaustive) for one in RUN)])
def test_the_examples_of_help_work(opscope_and_programs, verb, tmp_path, monkeypatch):
    if verb in RUN:
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    shown = examples(opscope_and_programs(verb, "--help").out)
    assert shown
    for words in shown:
        outcome = opscope_and_programs(*words).fine()
        assert verb in RUN or not outcome.err


@pytest.mark.exhaustive(few=False)
@pytest.mark.parametrize("journey", JOURNEYS)
def test_the_commands_of_journeys_work(opscope, journey, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    for command in JOURNEYS[journey].splitlines():
        program, *words = shlex.split(command)
        if program == "opscope":
            opscope(*words).fine()
        else:
            subprocess.run([sys.executable, *words], check=True)


@cases("arguments")
def test_usage_errors_exit_with_2_and_keep_stdout_clean(opscope, arguments):
    opscope(*arguments.split()).fails("error: ", code=2)


def test_a_users_mistake_is_one_line_and_debug_adds_the_traceback(opscope, tmp_path):
    opscope("analyze", tmp_path / "absent.json").fails("absent.json", "error: ", lines=1)
    assert "Traceback" in opscope("analyze", tmp_path / "absent.json", "--debug").err


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "interrupted: files already written are kept, nothing else was written\n"),
        (RuntimeError("Query interrupted"), 130, "interrupted: files"),
        (BrokenPipeError(), 141, ""),
        (RuntimeError("a defect"), 1, "error: internal error, RuntimeError: a defect"),
    ],
)
def test_every_way_to_end_has_its_exit_code(opscope, monkeypatch, error, code, message):
    def fail(tokens):
        raise error

    monkeypatch.setattr(app, "_dispatch", fail)
    outcome = opscope("analyze", "x")
    assert outcome.code == code
    assert outcome.err.startswith(message)
    assert "Traceback" not in outcome.err


def test_errors_are_one_line_or_as_wide_as_asked(opscope, monkeypatch, tmp_path):
    path = tmp_path / "t.json"
    path.write_text("hello")
    one = opscope("analyze", path).fails("not JSON, and no other kind", lines=1).err
    monkeypatch.setenv("COLUMNS", "100")
    wrapped = opscope("analyze", path).err
    assert " ".join(wrapped.split()) == one.strip()
    assert max(map(len, wrapped.splitlines()[1:])) <= 100
    assert wrapped.count("\n       ") == wrapped.count("\n") - 1 > 0


def test_an_entry_point_exits_with_the_code_of_the_processs_arguments(monkeypatch, capsys):
    done = python("-m", "opscope", "nonsense")
    assert done.returncode == 2
    assert done.stderr.endswith("Try: opscope --help\n")
    monkeypatch.setattr(sys, "argv", ["opscope", "--version"])
    assert main() == 0
    assert capsys.readouterr().out.strip() == __version__


def test_a_signal_right_before_the_verb_has_its_exit_code(monkeypatch, capsys):
    def terminated():
        raise Terminated(signal.SIGTERM)

    monkeypatch.setattr(app, "main", terminated)
    assert app.command_line() == 128 + signal.SIGTERM
    assert capsys.readouterr().err.startswith("interrupted: ")


def python(*words):
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)


def test_help_imports_neither_torch_nor_the_engine():
    done = python(
        "-c",
        "import sys; from opscope.cli import main; main(['--help']);"
        "print([name for name in ('torch', 'duckdb', 'numpy') if name in sys.modules])",
    )
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_reader_that_leaves_early_causes_no_traceback(trace):
    command = (
        f"{sys.executable} -c 'from opscope.cli import entry_point; entry_point()' analyze {trace} --json"
    )
    done = subprocess.run(
        ["bash", "-c", f"{command} | true; echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Traceback" not in done.stderr
    assert done.stdout.strip() in {"0", "141"}
