"""`opscope try`: real runs of small programs; that nothing of them is left behind; what is refused."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from case_tables import cases, tables

pytest.importorskip("torch")

pytestmark = pytest.mark.torch
exhaustive = pytest.mark.exhaustive(few=False)

TRAINING = Path(__file__).with_name("trained.py.txt").read_text(encoding="utf-8")
OWN = tables(Path(__file__).with_suffix(".toml"))["own_changes"]
CONTRACT = {
    "baseline": "step_ns interval_ns rounds steps taken",
    "noise": "ratio interval",
    "variants": "name finding step_ns interval_ns ratio ratio_interval verdict correctness predicted_gain_ns "
    "peak_bytes warm_up_ns error patch process_ratios",
    "not_tried": "name reason",
    "best": "names step_ns ratio ratio_interval patch process_ratios",
    "best_reduced_precision": "names step_ns ratio ratio_interval patch process_ratios",
}


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scratch = tmp_path / "temporary"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (tmp_path / "train.py").write_text(TRAINING)
    for name, text in OWN.items():
        (tmp_path / f"{name}.py").write_text(text)
    return "train.py"


def left_behind(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if "__pycache__" not in path.parts}


@exhaustive
def test_changes_are_measured_checked_and_leave_nothing(opscope, script, tmp_path):
    before = left_behind(tmp_path)
    quick = ("--budget", "60s", "--skip", "predict", "--json", "-o", "result.json", "-o", "page.html")
    own = ("--change", *(f"{name}.py" for name in OWN))
    tried = ("--only", "set_to_none", "fused_optimizer", "tf32", *own)
    result = opscope("try", *quick, *tried, "--", script).fine().json
    assert result == json.loads((tmp_path / "result.json").read_text())
    assert set(CONTRACT) <= set(result)
    for part, keys in CONTRACT.items():
        for one in result[part] if isinstance(result[part], list) else [result[part]]:
            assert set(keys.split()) <= set(one or keys.split()), part
    found = {one["name"]: one for one in result["variants"]}
    assert found["set_to_none"]["correctness"] == "identical"
    assert found["fused_optimizer"]["correctness"] in {"identical", "within_rounding"}
    assert found["diverging"]["verdict"] in {"same", "slower", "faster", "inconclusive"}
    for name in ("wrong", "shallow"):
        assert (found[name]["correctness"], found[name]["verdict"]) == ("changed", "refused")
    assert (found["diverging"]["correctness"], found["diverging"]["is_recommended"]) == ("changed", False)
    assert found["broken"]["verdict"] == "failed"
    assert "no such thing" in found["broken"]["error"]
    assert [one["name"] for one in result["not_tried"]] == ["tf32"]
    assert result["baseline"]["steps"] >= 6
    assert result["baseline"]["peak_bytes"] > 1 << 20
    assert set(result["best"]["names"] if result["best"] else ()) <= {"set_to_none", "fused_optimizer"}
    assert left_behind(tmp_path) == before | {"result.json", "page.html"}
    assert "Changes tried" in (tmp_path / "page.html").read_text("utf-8")


@exhaustive
def test_a_workload_is_tried_without_a_script(opscope, script):
    small = ("--param", "batch_size=1", "seq_len=8", "layers=1", "hidden=64", "device=cpu")
    quick = ("--budget", "8s", "--skip", "predict", "--only", "inference_mode")
    opscope("try", "bert", *small, *quick).fine("Changes tried on bert", "inference_mode")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("raise ValueError('not today')\n", "not today"),
        pytest.param("import torch\n", "too few steps", marks=exhaustive),
        pytest.param("import torch\ntorch.load('weights.pt')", "use --in-place", marks=exhaustive),
        ("raise SystemExit('train.py could be in the way')", "use --in-place"),
        ("import argparse; argparse.ArgumentParser().parse_args()", "note: --budget stands after the script"),
        ("import os\nos._exit(3)\n", "exit code 3"),
    ],
)
def test_a_program_that_cannot_be_timed_is_one_error(opscope, script, text, words):
    Path("other.py").write_text(text)
    outcome = opscope("try", "--skip", "predict", "other.py", "--budget", "3").fails(words)
    assert ("--in-place" in outcome.err) == ("--in-place" in words)
    assert 'Traceback (most recent call last):\n  File "' not in outcome.err.partition("error:")[0]


@cases("arguments", "words")
def test_what_cannot_be_tried_is_one_error(opscope, script, arguments, words):
    opscope("try", *arguments).fails(words)


@exhaustive
@pytest.mark.skipif(sys.platform == "win32", reason="no such signal")
def test_interrupted_it_prints_what_is_measured_and_leaves_nothing(script, tmp_path):
    marker = tmp_path / "endless_runs"
    (tmp_path / "endless.py").write_text(
        f"import time\ndef change(hooks):\n    open({str(marker)!r}, 'w').close()\n    time.sleep(600)\n"
    )
    before = left_behind(tmp_path)
    command = [sys.executable, "-m", "opscope", "try", "--skip", "predict", "--json", "--budget", "15s"]
    command += ["--only", "set_to_none", "--change", "endless.py", "--", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_until(marker.exists)
        children = children_of(process.pid)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    result = json.loads(out)
    assert result["baseline"]["steps"] >= 6
    assert [one["name"] for one in result["variants"]] == ["set_to_none"]
    assert [one["name"] for one in result["not_tried"]] == ["endless"]
    assert children
    wait_until(lambda: not any(map(is_alive, children)))
    assert left_behind(tmp_path) == before | {"endless_runs"}


@exhaustive
def test_in_place_it_runs_here_and_a_gate_fails_below_a_factor(opscope, script, tmp_path):
    Path("data.txt").write_text("3")
    Path(script).write_text(TRAINING.replace("range(10_000)", "range(10_000 * int(open('data.txt').read()))"))
    quick = ("--budget", "5s", "--skip", "predict", "--only", "set_to_none")
    outcome = opscope("try", *quick, "--", script).fails("data.txt", "use --in-place", out=None)
    outcome = opscope("try", *quick, "--in-place", "--fail-below", "50", "--", script).fails(
        "fails --fail-below 50", code=3, out=None
    )
    assert "of the program" in outcome.out
    assert (tmp_path / "notes.txt").exists()


SLOW = Path(__file__).with_name("looping.py.txt").read_text(encoding="utf-8")
FORKS = "import os\npid = os.fork()\nif pid:\n    os.waitpid(pid, 0)\n    sys.exit()"


def looping(before="", within="pass"):
    return SLOW.format(before=before, within=within)


@exhaustive
@pytest.mark.parametrize(
    ("program", "words"),
    [
        (looping("import inspect; inspect.getsource(sys.modules['__main__']); open(__file__).read()"), ""),
        (looping("assert __name__ == '__main__' and sys.argv == [__file__, '--own']"), ""),
        (looping("from torch.profiler import profile\nprofiler = profile(); profiler.__enter__()",
                 "profiler.__exit__(None, None, None) if number == 20 else None"), ""),
        (looping(within="sys.exit('enough') if number == 5 else None"), "enough"),
        (looping(FORKS), "too few steps to time: it made 0"),
        (looping(within="exec('raise MemoryError(number)') if number == 3 else None"), "MemoryError: 3"),
    ],
    ids=["reads its source", "looks at its name", "has a profiler", "exits early", "forks", "fails"],
)  # fmt: skip
def test_programs_that_look_at_themselves_or_end_early(opscope, script, tmp_path, program, words):
    Path("other.py").write_text(program)
    kept = left_behind(tmp_path)
    quick = ("--budget", "4s", "--only", "inference_mode", "--skip", "predict")
    outcome = opscope("try", "--steps", "forward", *quick, "--json", "other.py", "--own")
    assert left_behind(tmp_path) == kept
    if words:
        outcome.fails(words, out=None)
    else:
        outcome.fine()
        assert outcome.json["variants"][0]["correctness"] == "identical"


RANKS = TRAINING.replace("\nmodel = ", "\ntorch.distributed.init_process_group('gloo')\nmodel = ").replace(
    "\noptimizer = ", "\nmodel = torch.nn.parallel.DistributedDataParallel(model)\noptimizer = ", 1
)
TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node", "2", "ranks.py")

STUCK = Path(__file__).with_name("stuck.py.txt").read_text(encoding="utf-8")


@exhaustive
def test_every_rank_of_torchrun_is_changed_alike(opscope, script, tmp_path):
    Path("ranks.py").write_text(RANKS)
    (tmp_path / "told.py").write_text(
        "import os\ndef change(hooks):\n"
        f"    open(f'{tmp_path}/rank' + os.environ['RANK'], 'w').write('changed')\n"
    )
    kept = left_behind(tmp_path)
    quick = ("--budget", "2m", "--json", "--change", "told.py", "--only", "set_to_none")
    outcome = opscope("try", *quick, "--", *TORCHRUN).fine()
    assert "no predictions of a program of several ranks" in outcome.err
    found = {one["name"]: one["correctness"] for one in outcome.json["variants"]}
    assert found == {"told": "identical", "set_to_none": "identical"}
    assert left_behind(tmp_path) == kept | {"rank0", "rank1"}


def test_a_rank_that_is_asked_to_try_is_refused(opscope, script, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    opscope("try", script).fails("opscope try torchrun")


@exhaustive
@pytest.mark.skipif(sys.platform != "linux", reason="the death of a parent is told on Linux alone")
@pytest.mark.parametrize(
    ("words", "program", "written", "processes"),
    [
        (("--skip", "predict", "--", "train.py"), "", "notes.txt", 1),
        # The run, torchrun and two ranks.
        (TORCHRUN, RANKS, "notes.txt", 4),
        (TORCHRUN, RANKS.replace("range(10_000)", "range(3)") + STUCK, "stuck0.txt", 4),
    ],
    ids=["a script", "ranks at work", "ranks inside of a library"],
)
def test_killed_it_leaves_no_process_and_no_files(script, tmp_path, words, program, written, processes):  # noqa: PLR0917
    Path("ranks.py").write_text(program)
    before = left_behind(tmp_path)
    command = [sys.executable, "-m", "opscope", "try", *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as parent:
        # They are at work once the program has written its file.
        wait_until(lambda: list(tmp_path.rglob(written)))
        descendants = descendants_of(parent.pid)
        os.kill(parent.pid, signal.SIGKILL)
    assert len(descendants) >= processes
    wait_until(lambda: not any(map(is_alive, descendants)))
    wait_until(lambda: left_behind(tmp_path) == before)


def wait_until(holds):
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def children_of(pid):
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def descendants_of(pid):
    children = children_of(pid)
    return [*children, *(one for child in children for one in descendants_of(child))]


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
