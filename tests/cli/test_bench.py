import json
import os
from pathlib import Path

import pytest

from case_tables import cases
from opscope.cli.console import load_noticed

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

FAST = (
    "--device", "cpu", "--time-budget", 0.02, "--samples", "3-20", "--skip", "ceilings",
)  # fmt: skip
FUNCTIONS = Path(__file__).with_name("compared_functions.py.txt").read_text(encoding="utf-8")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "functions_of_bench.py"
    path.write_text(FUNCTIONS)
    return path


def statuses(document):
    return {row["name"]: row["status"] for row in document["rows"]}


def test_bad_functions_are_rows_and_the_others_go_on(opscope, file):
    names = ("square", "nothing", "nan", "raising", "power")
    targets = (*(f"{file}:{name}" for name in names), "--param", "n=8")
    outcome = opscope("bench", *targets, *FAST, "--json").fine()
    assert statuses(outcome.json) == {
        "square": "ok", "nothing": "no_result", "nan": "wrong", "raising": "failed", "power": "ok",
    }  # fmt: skip
    assert all(row["verdict"] is None for row in outcome.json["rows"] if row["status"] != "ok")
    assert "broken" in next(row for row in outcome.json["rows"] if row["name"] == "raising")["reason"]


def test_a_sweep_has_a_point_for_each_value_and_a_scaling_table(opscope, file, tmp_path):
    saved = tmp_path / "result.json"
    targets = (f"{file}:square", f"{file}:power", "--param", "n=8,16")
    page = tmp_path / "page.html"
    outcome = opscope("bench", *targets, *FAST, "--save", saved, "--output", page)
    outcome.fine("Scaling of functions_of_bench.py", "Time relative to", f"Wrote {page}\nWrote {saved}\n")
    assert "Time over the sweep" in page.read_text("utf-8")
    opscope("bench", saved).fine("Scaling of functions_of_bench.py")
    document = json.loads(saved.read_text("utf-8"))
    assert document["parameters"] == {"n": [8, 16]}
    assert [point["parameters"] for point in document["points"]] == [{"n": 8}, {"n": 16}]
    assert document["complete"]


def test_a_point_that_cannot_be_made_leaves_the_others(opscope, file):
    outcome = opscope("bench", f"{file}:square", "--param", "n=8,-1", *FAST, "--json").fails(out=None)
    assert len(outcome.json["points"]) == 1
    assert "no such | size" in outcome.json["failures"][0]


def test_an_interrupted_run_keeps_and_saves_what_is_finished(opscope, file, tmp_path):
    saved = tmp_path / "result.json"
    targets = (f"{file}:square", f"{file}:interrupted", "--param", "n=8")
    opscope("bench", *targets, *FAST, "--save", saved).fails("interrupted: ", code=130, lines=1, out=None)
    document = json.loads(saved.read_text("utf-8"))
    assert document["complete"] is False
    assert "square" in statuses(document)


def test_a_result_is_saved_where_that_is_allowed_and_shown_again(opscope, file, tmp_path):
    saved, report = tmp_path / "result.json", tmp_path / "report.md"
    saved.write_text("precious")
    arguments = ("bench", f"{file}:square", "--param", "n=8", *FAST, "--save", saved, "--show", "kernels")
    opscope(*arguments).fails("--force")
    assert saved.read_text() == "precious"
    first = opscope(*arguments, "--force").fine("No kernels were recorded")
    again = opscope("bench", saved, "--output", report).fine()
    assert again.out.splitlines()[0] == first.out.splitlines()[0]
    assert report.read_text("utf-8").startswith("# functions_of_bench.py, float32, n=8")
    assert opscope("bench", saved, "--json").json == json.loads(saved.read_text("utf-8"))
    opscope("bench", saved, "--param", "dtype=float16").fails("is shown as it is")


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="Triton compiles in this process")
def test_triton_kernels_are_checked_in_the_interpreter(opscope):
    pytest.importorskip("triton")
    outcome = opscope("bench", "square", "--device", "interpreter", "--param", "shape=4x8", "--json").fine()
    assert set(statuses(outcome.json).values()) == {"checked"}
    assert all(row["max_relative_error"] is not None for row in outcome.json["rows"])


def test_suites_are_listed_without_measuring(opscope):
    opscope("bench").fine("gelu", "cdist", "cuda_teaching", "approximate=tanh")
    suites = opscope("bench", "--json").json["suites"]
    assert {"name", "summary", "shape_names", "implementations"} <= set(suites[0])


@cases("arguments", "message")
def test_a_users_mistake_is_one_line(opscope, file, arguments, message):
    opscope("bench", *(str(argument).format(file=file) for argument in arguments)).fails(message, lines=1)


def test_a_loaded_machine_is_noticed(capsys, monkeypatch):
    pressures = iter([0.05, 0.67])
    monkeypatch.setattr("opscope.capture.environment.cpu_pressure_fraction", lambda: next(pressures))
    with load_noticed():
        pass
    assert "work waited for a CPU 5.0 % and 67.0 % of the time" in capsys.readouterr().err
