"""What only a device shows of regions, of the autograd engine and of recorded scripts: exact kernel counts.

The device lags milliseconds behind the host in every test, so a switch that did not wait for it would record
kernels on the wrong side.
"""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import opscope  # noqa: E402
from opscope.cli import main  # noqa: E402
from opscope.cli.app import separate_script  # noqa: E402

pytestmark = pytest.mark.gpu

FIRST, SECOND, THIRD, STEPS = 11, 13, 7, 3


@pytest.fixture(scope="module")
def data():
    values = torch.rand(1 << 26, device="cuda")
    for function in (torch.sin, torch.cos, torch.exp):
        function(values)
    torch.cuda.synchronize()
    return values


def repeat(function, data, count):
    for _ in range(count):
        function(data)


def kernels(session):
    """Launches of each function's kernel, by function."""
    names = session.query("SELECT k.name FROM device_activities d JOIN kernel_names k USING (name_id)")
    found = Counter()
    for (name,) in names:
        found.update(one for one in ("sin", "cos", "exp") if f"{one}_kernel_cuda" in name)
    assert found.total() == len(names)
    return found


def operators(session):
    rows = session.query("SELECT name FROM operators WHERE name IN ('aten::sin', 'aten::cos', 'aten::exp')")
    return Counter(name.removeprefix("aten::") for (name,) in rows)


def attributed(session):
    """Kernels whose operator is the function they belong to, by function."""
    rows = session.query(
        """SELECT o.name, k.name FROM device_activities d JOIN kernel_names k USING (name_id)
        JOIN operators o ON o.operator_id = d.operator_id"""
    )
    found = Counter()
    for operator, kernel in rows:
        function = operator.removeprefix("aten::")
        assert f"{function}_kernel_cuda" in kernel
        found[function] += 1
    return found


def partial(session):
    findings = [one for one in session.findings() if one.code == "capture.partial_collection"]
    return {tuple(one.evidence["off"]): (str(one.severity), one.evidence["region_count"]) for one in findings}


def holds(session):
    assert [check.name for check in session.check() if check.violations] == []


BOTH_OFF, CPU_OFF, CUDA_OFF = ("cpu", "cuda"), ("cpu",), ("cuda",)


@pytest.mark.parametrize(
    ("inner", "half", "recorded"),
    [
        (("cuda",), CPU_OFF, {"kernels"}),  # off, then only the GPU
        (None, None, set()),  # off all the way
        (("cpu",), CUDA_OFF, {"operators"}),  # off, then only the CPU
        (("cpu", "cuda"), None, {"kernels", "operators"}),  # off, then both
    ],
    ids=["cuda", "none", "cpu", "both"],
)
def test_each_kind_of_switching_records_exactly_its_part(tmp_path, data, inner, half, recorded):
    with opscope.profile(tmp_path, wait=1, warmup=1, active=STEPS) as profiler:
        for _ in range(profiler.total_steps):
            with profiler.off():
                repeat(torch.sin, data, FIRST)
                if inner is None:
                    repeat(torch.cos, data, SECOND)
                else:
                    with profiler.only(*inner):
                        repeat(torch.cos, data, SECOND)
            profiler.step()
    session, expected = profiler.session, {"cos": SECOND * STEPS}
    assert kernels(session) == (expected if "kernels" in recorded else {})
    assert operators(session) == (expected if "operators" in recorded else {})
    assert attributed(session) == (expected if len(recorded) == 2 else {})
    # An inner region has a part of the outer one before and after it.
    found = {BOTH_OFF: ("info", STEPS if inner is None else 2 * STEPS)}
    assert partial(session) == (found | {half: ("warning", STEPS)} if half else found)
    assert session.scalar("SELECT count(*) FROM steps") == STEPS
    holds(session)


def test_switching_on_what_is_on_changes_nothing(tmp_path, data):
    with opscope.profile(tmp_path, active=STEPS) as profiler:
        for _ in range(profiler.total_steps):
            with profiler.only("cpu", "cuda"):
                repeat(torch.sin, data, FIRST)
            with profiler.only("cpu", "cuda"):
                repeat(torch.cos, data, SECOND)
            profiler.step()
    session = profiler.session
    assert kernels(session) == {"sin": FIRST * STEPS, "cos": SECOND * STEPS}
    assert attributed(session) == kernels(session)
    assert partial(session) == {}
    holds(session)


@pytest.mark.parametrize("inside", [(), ("cpu",), ("cuda",)], ids=["off", "cpu", "cuda"])
def test_kernels_around_a_region_are_all_recorded_and_keep_their_operators(tmp_path, data, inside):
    with opscope.profile(tmp_path, active=STEPS) as profiler:
        for _ in range(profiler.total_steps):
            repeat(torch.sin, data, FIRST)
            with profiler.only(*inside) if inside else profiler.off():
                repeat(torch.cos, data, SECOND)
            repeat(torch.exp, data, THIRD)
            profiler.step()
    session = profiler.session
    around = {"sin": FIRST * STEPS, "exp": THIRD * STEPS}
    assert kernels(session) == {**around, **({"cos": SECOND * STEPS} if inside == ("cuda",) else {})}
    assert operators(session) == {**around, **({"cos": SECOND * STEPS} if inside == ("cpu",) else {})}
    assert attributed(session) == around
    holds(session)


def test_a_region_without_operators_leaves_its_kernels_unattributed_with_the_reason(tmp_path, data):
    with opscope.profile(tmp_path, active=1) as profiler:
        for _ in range(profiler.total_steps):
            repeat(torch.sin, data, FIRST)
            with profiler.only("cuda"):
                repeat(torch.cos, data, SECOND)
            profiler.step()
    reasons = profiler.session.query(
        "SELECT attribution, count(*) FROM device_activities WHERE operator_id IS NULL GROUP BY ALL"
    )
    assert reasons == [("outside_operator", SECOND)]
    assert partial(profiler.session) == {CPU_OFF: ("warning", 1)}


def test_a_region_that_spans_steps_and_windows(tmp_path, data):
    with opscope.profile(tmp_path, warmup=1, active=2, repeat=2) as profiler:
        repeat(torch.sin, data, FIRST)
        profiler.step()
        repeat(torch.sin, data, FIRST)
        with profiler.off():
            for _ in range(3):  # the rest of the first window, and the second one's warm-up
                repeat(torch.cos, data, SECOND)
                profiler.step()
            repeat(torch.cos, data, SECOND)
        repeat(torch.exp, data, THIRD)
        profiler.step()
        repeat(torch.exp, data, THIRD)
        profiler.step()
    first, second = (opscope.load(cycle.trace_path) for cycle in profiler.cycles)
    assert kernels(first) == {"sin": FIRST}
    assert kernels(second) == {"exp": 2 * THIRD}
    for session in (first, second):
        assert attributed(session) == kernels(session)
        assert session.scalar("SELECT count(*) FROM steps") == 2
        assert partial(session) == {BOTH_OFF: ("info", 1)}
        holds(session)
        session.close()


def test_a_recording_after_one_that_ended_switched_off_is_whole(tmp_path, data):
    failing = opscope.profile(tmp_path, name="a", warmup=0)
    with pytest.raises(ZeroDivisionError), failing, failing.off():
        _ = 1 / 0
    region = opscope.profile(tmp_path, name="b", warmup=0, active=1)
    with region, region.off():
        repeat(torch.sin, data, FIRST)
    with opscope.profile(tmp_path, name="c", warmup=0, active=1) as after:
        repeat(torch.cos, data, SECOND)
    assert kernels(region.session) == {}
    assert kernels(after.session) == {"cos": SECOND}
    assert attributed(after.session) == {"cos": SECOND}


def test_backward_follows_the_region_it_is_called_in(tmp_path):
    weight = torch.rand(1 << 20, device="cuda", requires_grad=True)
    torch.sin(weight).sum().backward()
    with opscope.profile(tmp_path, active=1) as profiler:
        for _ in range(profiler.total_steps):
            loss = torch.sin(weight).sum()
            with profiler.off():
                loss.backward()
            profiler.step()
    names = {
        name
        for (name,) in profiler.session.query(
            "SELECT k.name FROM device_activities d JOIN kernel_names k USING (name_id)"
        )
    }
    assert any("sin_kernel_cuda" in name for name in names)
    assert not any("cos_kernel_cuda" in name for name in names)


def test_torch_does_not_log_each_switch(tmp_path, data, capfd):
    with opscope.profile(tmp_path, warmup=0, active=1) as profiler:
        for activities in (("cpu",), ("cuda",)):
            with profiler.off(), profiler.only(*activities):
                torch.sin(data)
    assert "Toggling" not in capfd.readouterr().err


@pytest.mark.parametrize("repeats", [1, 2])
def test_the_autograd_engine_records_the_same_clean_windows(tmp_path, data, repeats):
    sessions = {}
    for engine in ("profiler", "autograd"):
        with opscope.profile(
            tmp_path, name=engine, wait=1, active=STEPS, repeat=repeats, engine=engine
        ) as profiler:
            for _ in range(profiler.total_steps):
                repeat(torch.sin, data, FIRST)
                profiler.step()
        sessions[engine] = profiler.session
    for session in sessions.values():
        assert kernels(session) == {"sin": FIRST * STEPS}
        assert attributed(session) == kernels(session)
        assert session.scalar("SELECT name FROM devices") == torch.cuda.get_device_name(0)
        holds(session)


SCRIPT = """
import sys, torch
model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.Linear(512, 8)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    model(torch.ones(64, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == int(sys.argv[1]):
        raise ValueError("boom")
print("trained")
"""


@pytest.fixture
def run_script(tmp_path, monkeypatch):
    """Runs a script by the command line, without output of ours; its exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANK", raising=False)

    def run(text, *arguments):
        Path("script.py").write_text(text)
        return main(separate_script(["run", "--quiet", "script.py", *arguments]))

    return run


@pytest.mark.parametrize(("fails_at", "code", "whole_steps"), [("-1", 0, 3), ("4", 1, 2)])
def test_a_training_script_is_recorded_with_identical_steps(run_script, fails_at, code, whole_steps):
    assert run_script(SCRIPT, fails_at) == code
    with opscope.load("opscope_run/trace.json") as session:
        rows = session.query(
            "SELECT step, k.name FROM device_activities d JOIN kernel_names k USING (name_id) ORDER BY step"
        )
        assert session.scalar("SELECT count(*) FROM device_activities WHERE operator_id IS NULL") == 0
        holds(session)
    steps = [Counter(name for step, name in rows if step == one) for one in dict(rows)]
    assert len(steps) >= whole_steps
    assert all(step == steps[0] for step in steps[:whole_steps])
    assert steps[0].total() >= 8


def test_a_script_chooses_its_devices_itself(tmp_path):
    """Nothing starts CUDA before the script has set what CUDA reads at its start."""
    script = tmp_path / "choose.py"
    script.write_text(
        "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = ''\nimport torch\nprint(torch.cuda.is_available())\n"
        "weight = torch.nn.Parameter(torch.ones(2))\noptimizer = torch.optim.SGD([weight], lr=1)\n"
        "for _ in range(6):\n    weight.sum().backward()\n    optimizer.step()\n"
    )
    command = separate_script(["run", "--quiet", "--output-dir", str(tmp_path / "out"), str(script)])
    result = subprocess.run(
        [sys.executable, "-m", "opscope", *command], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout) == (0, "False\n"), result.stderr
