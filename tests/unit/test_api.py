"""The public functions, from recording to a Session, and verbs as functions."""

import io
import json
import re
import subprocess
import sys

import pytest

import opscope
from fakes import TraceBuilder
from opscope.errors import CaptureError, InputError


def test_every_public_name_exists():
    assert all(getattr(opscope, name) is not None for name in opscope.__all__)
    assert dir(opscope) == sorted(opscope.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = opscope.no_such_name


def test_importing_is_free_of_torch_and_the_engine():
    script = (
        "import opscope, sys; sys.exit(any(m in sys.modules for m in ('torch', 'duckdb', 'numpy', 'rich')))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_what_reads_and_what_is_not_yet_used_does_not_import_torch(tmp_path):
    trace = TraceBuilder()
    sizes = {"Input Dims": [[16, 16], [16, 16]], "Input type": ["float", "float"]}
    trace.step(1, 0, 90).operator("aten::mm", 1, 5, **sizes).launch(2).kernel("k", 9, 3)
    script = (
        "import sys, opscope\n"
        "import opscope.benchmarking.run, opscope.benchmarking.timer, opscope.capture.calls\n"
        "import opscope.capture.cycle, opscope.capture.process_sources\n"
        "import opscope.workloads.target\n"
        "with opscope.load(sys.argv[1]) as session:\n"
        "    opscope.summarize(session)\n"
        "    opscope.explain('aten::mm', session)\n"
        "opscope.explain('aten::mm')\n"
        "print(sorted({'torch', 'torchgen', 'transformers', 'triton'} & set(sys.modules)))\n"
    )
    command = [sys.executable, "-W", "error", "-c", script, str(trace.write(tmp_path / "t.json"))]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


def test_load_takes_traces_paths_and_saved_sessions(tmp_path):
    trace = TraceBuilder().operator("aten::mm", 1, 5).launch(2).kernel("k", 9, 3).write(tmp_path / "t.json")
    with opscope.load(trace) as session:
        saved = session.save(tmp_path / "s.opscope")
    for opened in (opscope.load(saved), opscope.load([str(saved)]), opscope.open_session(saved)):
        with opened:
            assert opened.query("SELECT name, self_device_ns FROM operators") == [("aten::mm", 3_000)]
    with pytest.raises(InputError, match="not an opscope session"):
        opscope.open_session(trace)


class TestRecording:
    @pytest.fixture
    def matmul(self):
        torch = pytest.importorskip("torch")
        matrix = torch.randn(256, 256)
        return lambda: matrix @ matrix

    def test_a_profile_has_the_session_of_its_last_cycle(self, matmul, tmp_path):
        printed = io.StringIO()
        handler = opscope.print_table(top=2, file=printed)
        with opscope.profile(tmp_path, warmup=0, active=1, repeat=2, on_cycle=handler) as profiler:
            with pytest.raises(CaptureError, match="no cycle has finished"):
                _ = profiler.session
            for _ in range(2):
                matmul()
                profiler.step()
        session = profiler.session
        assert session is profiler.session
        assert session.query("SELECT source FROM traces") == [(str(tmp_path / "trace_cycle1.json"),)]
        assert session.metadata("sidecar:0") is not None
        assert session.scalar("SELECT count(*) FROM operators WHERE name = 'aten::mm'") == 1
        assert len(re.findall(r"^ *1  aten::mm", printed.getvalue(), re.MULTILINE)) == 2
        session.close()

    @pytest.mark.parametrize("schedule", [{}, {"warmup": 2, "active": 1}, {"warmup": 0}])
    def test_a_block_without_steps_is_one_step(self, matmul, tmp_path, schedule):
        with opscope.profile(tmp_path, **schedule) as profiler:
            matmul()
            matmul()
        (cycle,) = profiler.cycles
        assert (cycle.sidecar.steps, cycle.sidecar.partial) == (1, False)
        with profiler.session as session:
            assert session.scalar("SELECT count(*) FROM operators WHERE name = 'aten::mm'") == 2

    @pytest.mark.parametrize("warmup", [2, 3])
    def test_what_was_recorded_of_the_warm_up_is_dropped(self, matmul, tmp_path, warmup):
        with opscope.profile(tmp_path, warmup=warmup, active=2) as profiler:
            for _ in range(profiler.total_steps):
                matmul()
                profiler.step()
        with profiler.session as session:
            assert session.query("SELECT count(*), min(step) FROM steps") == [(2, warmup)]
            assert session.scalar("SELECT count(*) FROM operators WHERE name = 'aten::mm'") == 2

    def test_as_a_decorator_with_brackets_or_without_it_records_the_first_call(self, matmul, tmp_path):
        call, bare = opscope.profile(tmp_path)(matmul), opscope.profile(matmul)
        for one in (call, bare):
            assert one().shape == one().shape == (256, 256)
            with one.recording.session as session:
                assert session.scalar("SELECT count(*) FROM operators WHERE name = 'aten::mm'") == 1
        with pytest.raises(InputError, match="overwrite=True"), opscope.profile(tmp_path):
            pass

    def test_profile_call(self, matmul, tmp_path):
        result, session = opscope.profile_call(matmul, output_dir=tmp_path, active=2)
        with session:
            assert result.shape == (256, 256)
            assert session.scalar("SELECT count(*) FROM steps") == 2


@pytest.fixture(scope="module")
def trace():
    return opscope.example_trace()


def test_analyze_is_the_summary_with_advice(trace):
    summary = opscope.analyze(trace)
    with opscope.load(trace) as session:
        other = opscope.summarize(session)
        assert summary.advice
        assert summary.advice == other.advice


def test_stats_and_flamegraph_hold_all_device_time(trace):
    with opscope.load(trace) as session:
        device_ns = session.scalar("SELECT sum(duration_ns) FROM device_activities")
        (table,) = opscope.stats(session)
        lines = opscope.flamegraph(session, format="collapsed").splitlines()
        assert sum(int(line.rpartition(" ")[2]) for line in lines) == device_ns
        assert len(opscope.stats(session, ["all"])) > 1
    assert table.rows
    assert json.loads(opscope.flamegraph(trace, name="mine"))["name"] == "mine"
    with pytest.raises(InputError):
        opscope.flamegraph(trace, weight="gold")


@pytest.mark.parametrize("target", ["none.py", "none.py:f", "none"])
def test_nothing_to_try_is_one_clear_error(target):
    pytest.importorskip("torch")
    with pytest.raises(InputError):
        opscope.try_changes(target)
