"""Options, the rule for `gpu` tests, and small traces as files and Sessions."""

import atexit
import gc
import os
import signal
import sys
import warnings
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import settings

from fakes import TraceBuilder, benchmark_result
from opscope import api
from opscope.analysis.comparison_rules import compare_benchmarks
from opscope.analysis.counters import CountedKernel, CounterAnalysis
from opscope.analysis.session_comparison import compare_sessions
from opscope.api import load as load_source
from opscope.benchmarking.benchmark_sweep import BenchmarkSweep
from opscope.hardware.limits import MeasuredLimits, MeasuredRate, MeasuredTime
from opscope.model.benchmark import BenchmarkRow, Status, Verdict
from opscope.model.trial import Baseline, BestChanges, Correctness, TrialResult, TrialVerdict, Variant
from opscope.provenance.kernel_names.decoder import decode
from opscope.report.explanation import explanation_document
from opscope.report.sweep import sweep_record
from opscope.toolchain.ncu_report import KernelCounters, NcuDevice, NcuReport, Occupancy, Quantity

REPOSITORY = Path(__file__).resolve().parent.parent
REQUIRE_GPU = "OPSCOPE_REQUIRE_GPU"

# As in a shell, whatever started the tests: xdist tells its processes a width of 80 columns, nohup and
# background jobs have signals ignored, which programs started by tests would inherit. Reports are English.
os.environ.pop("COLUMNS", None)
os.environ["OPSCOPE_LANG"] = "en"
# Triton decides once per process: without a GPU its interpreter runs the kernels.
if "TRITON_INTERPRET" not in os.environ and not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"
for _number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)

# Compiled once: without a cache every process of the tests, and each program that one starts, does it anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Threads of processes side by side would wait for each other, which takes processor time.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# A busy machine is no failure. `make exhaustive` looks further.
settings.register_profile("opscope", deadline=None, max_examples=20)
settings.register_profile("exhaustive", deadline=None, max_examples=400)
settings.load_profile("opscope")


def pytest_addoption(parser):
    parser.addoption(
        "--update-golden", action="store_true", help="write what golden tests find as the new expectation"
    )
    parser.addoption("--every-source", action="store_true", help="run what is exhaustive too: every trace")


# Of what is held for every trace, `make test` takes these: one of each kind, or none (`few=False`).
FEW = (
    "misc_ops_fp32", "amd_trace", "call_stack", "cuda_event_sync/", "vllm_decode_execution", "rank_non_gpu",
)  # fmt: skip

# Fixtures that write a recording or read one.
READING = frozenset(("make_trace", "recording", "trace", "summarized", "shared_session"))


def pytest_configure(config):
    if config.getoption("--every-source"):
        settings.load_profile("exhaustive")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    for item in _repeated(items):
        item.add_marker(pytest.mark.exhaustive(few=False))
    if not config.getoption("--every-source"):
        is_wanted = {one: _is_quick(one) for one in items}
        config.hook.pytest_deselected(items=[one for one in items if not is_wanted[one]])
        items[:] = [one for one in items if is_wanted[one]]
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if gpu and not _has_cuda():
        for item in gpu:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def _repeated(items):
    """Of tests that read a recording for each of their cases, all but the first and the last case."""
    cases = {}
    for item in items:
        has_cases = hasattr(item, "callspec") and not item.get_closest_marker("gpu")
        if has_cases and isinstance(item, pytest.Function) and READING.intersection(item.fixturenames):
            cases.setdefault((item.parent, item.originalname), []).append(item)
    for several in cases.values():
        quick = [one for one in several if not one.get_closest_marker("exhaustive")]
        yield from quick[1:-1]


def _is_quick(item):
    mark = item.get_closest_marker("exhaustive")
    if mark is None:
        return True
    return bool(mark.kwargs.get("few", True)) and any(word in item.name for word in FEW)


def pytest_collection_finish():
    """Leave the thousands of tests out of what the collector of garbage looks at again and again."""
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """One process where there is a GPU: its tests measure times."""
    return 0 if _has_cuda() else min(4, os.cpu_count() or 1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    is_expected = hasattr(report, "wasxfail") or not item.get_closest_marker("gpu")
    return report if is_expected else _without_skips(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    return _without_skips(report) if "gpu" in collector.path.parts else report


def pytest_terminal_summary(terminalreporter):
    """Print what tests found besides passing: their property `terminal_report`."""
    for report in terminalreporter.stats.get("passed", ()):
        for name, text in report.user_properties:
            if name == "terminal_report":
                terminalreporter.section(report.nodeid.rpartition("::")[2])
                terminalreporter.write_line(text)


def _without_skips(report):
    """The report, a failure in place of a skip where a device is required."""
    if report.outcome == "skipped" and os.environ.get(REQUIRE_GPU) == "1":
        report.outcome = "failed"
        report.longrepr = f"{REQUIRE_GPU}=1, but skipped: {report.longrepr}"
    return report


@cache
def _has_cuda():
    try:
        import torch
    except ImportError:
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a driver too old, which is an answer too
        return bool(torch.cuda.is_available())


@pytest.fixture(scope="session")
def shared():
    """The folder of material beside the repository."""
    folder = REPOSITORY.parent / "shared"
    if not (folder / "traces").is_dir():
        pytest.skip(f"no {folder}")
    return folder


@pytest.fixture
def make_trace(tmp_path):
    """Writes a trace, from a builder, text or bytes, and returns its path."""

    def make(content, name="trace.json"):
        text = content.text() if isinstance(content, TraceBuilder) else content
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
        return path

    return make


@pytest.fixture(scope="module", autouse=True)
def own_cache(request, tmp_path_factory):
    """A cache folder without what the user of this machine added, except on a GPU: kernels build long."""
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("gpu") is None:
            patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
        yield


@pytest.fixture(scope="session")
def shared_session():
    """The Session of a shared recording, one for all tests; an analysis may fill its tables."""
    opened = {}

    def once(path):
        session = opened.pop(path, None) or load_source(path, threads=1)
        opened[path] = session
        if len(opened) > 16:  # memory; the one that was asked for longest ago
            opened.pop(next(iter(opened))).close()
        return session

    yield once
    for session in opened.values():
        session.close()


@pytest.fixture
def load(make_trace, shared_session):
    """Loads a builder, a text, bytes or any source as a Session that is closed after the test.

    Several builders are the ranks of a job. A file of the shared folder is loaded once for all tests: they
    read it.
    """
    sessions = []

    def open_session(content, **options):
        if isinstance(content, Path) and REPOSITORY.parent / "shared" in content.parents and not options:
            return shared_session(content)
        if isinstance(content, list | tuple):
            content = [
                make_trace(one, f"rank{rank}.json") if isinstance(one, TraceBuilder) else one
                for rank, one in enumerate(content)
            ]
        is_content = isinstance(content, TraceBuilder | bytes) or (
            isinstance(content, str) and content.lstrip().startswith(("{", "["))
        )
        source = make_trace(content) if is_content else content
        # One thread a process of the tests; where several matter is told in tests of ingest.scan.
        sessions.append(load_source(source, **{"threads": 1, **options}))
        return sessions[-1]

    yield open_session
    for session in sessions:
        session.close()


@pytest.fixture(scope="session")
def results_named(tmp_path_factory):
    """What each verb finds, hand-made, with this as the name of operators, kernels and all else."""

    def recording(name, kernel_us):
        trace = TraceBuilder()
        for step in range(8):
            start = 1_000 * step
            trace.step(step, start, 900).operator(name, start, 50).launch(start + 5)
            trace.kernel(name, start + 100, kernel_us + step / 1000)
            trace.operator("aten::add", start + 400, 50).launch(start + 410).kernel("add", start + 450, 30)
        path = tmp_path_factory.mktemp("made") / "trace.json"
        return load_source(trace.write(path), threads=1)

    def benchmark(name, n, factor=1.0):
        rows = [
            BenchmarkRow(
                name=one,
                status=Status.OK,
                samples_ns=tuple(ns * n + index for index in range(40)),
                sample_rounds=tuple(range(40)),
                median_ns=ns * n + 19.5,
                interval_ns=(ns * n + 15.0, ns * n + 24.0),
                ratio=ns / 1000,
                ratio_interval=(0.99 * ns / 1000, 1.01 * ns / 1000),
                verdict=verdict,
                ceiling="copy",
                ceiling_fraction=400 / ns,
            )
            for one, ns, verdict in (("torch", 1000 * factor, None), (name, 2000 * factor, Verdict.SLOWER))
        ]  # fmt: skip
        return benchmark_result(*rows, shape=(n,), parameters={"n": n})

    def configuration(name, batch, length):
        stats = {
            "config": {"workload": name, "batch_size": batch, "seq_len": length},
            "summary": {
                "kernel_launches": 1, "total_cuda_time_ms": 3.0, "cuda_time_ms_per_step": 1.0,
                "wall_time_ms_per_step": 2.0,
            },
            "top_aten_operators": [
                {"name": one, "self_cuda_time_ms": 1.0, "self_cpu_time_ms": 2.0} for one in (name, "aten::mm")
            ],
            "step": {"busy_fraction": 0.5 + batch / 100},
            "benchmark": {
                "latency_ms": {"median": float(batch * length), "p5": 1.0, "p95": 2.0},
                "throughput_sequences_per_s": 1000 / length,
            },
        }  # fmt: skip
        return sweep_record(f"bs{batch}_seq{length}", stats)

    def counters(name):
        values = {Quantity.DURATION: 10_000, Quantity.SM_FRACTION: 0.25, Quantity.MEMORY_FRACTION: 0.75}
        launch = KernelCounters(
            0, name, name, name, NcuDevice(name="GPU"), values=values, occupancy=Occupancy(0.5, 0.25)
        )
        kernel = CountedKernel(launch, name, decode(name))
        return CounterAnalysis(NcuReport(Path("a.ncu-rep"), (kernel,)), (kernel,))

    def trial(name):
        faster = {
            "verdict": TrialVerdict.FASTER,
            "correctness": Correctness.IDENTICAL,
            "is_recommended": True,
        }
        variants = (
            Variant(name=name, step_ns=6e6, interval_ns=(5.9e6, 6.2e6), ratio=0.6, **faster),
            Variant(name="tf32", step_ns=8e6, ratio=0.8, **faster),
            Variant(name="compile", verdict=TrialVerdict.FAILED, error="no compiler"),
        )  # fmt: skip
        best = BestChanges((name, "tf32"), 5e6, 0.5, (0.4, 0.6), (6e6, 5e6), Correctness.IDENTICAL, name)
        baseline = Baseline(10e6, (9.9e6, 10.1e6), 3, 90, None)
        return TrialResult(name, baseline, None, variants, (), best, 17)

    def make(name):
        with recording(name, 200) as reference, recording(name, 260) as candidate:
            return SimpleNamespace(
                sessions=compare_sessions(reference, candidate),
                statistics=api.stats(reference, ["all"]),
                explanation=explanation_document(api.explain(name, reference)),
                benchmarks=compare_benchmarks([benchmark(name, 8)], [benchmark(name, 8, 1.5)]),
                benchmark=benchmark(name, 8),
                sweep=BenchmarkSweep(
                    suite="gelu", parameters={"n": (8, 64)}, points=(benchmark(name, 8), benchmark(name, 64))
                ),
                configurations=[
                    configuration(name, batch, length) for batch in (1, 8) for length in (128, 256)
                ],
                trial=trial(name),
                counters=counters(name),
            )  # fmt: skip

    return make


@pytest.fixture
def make_measured():
    """Makes what was measured of an H200, or of what else is said: rates and times by name, ± 1 %."""

    def rate(name, per_s):
        unit = "operations" if name.startswith("matrix_") else "bytes"
        return MeasuredRate(
            name=name, unit=unit, per_s=per_s, low_per_s=0.99 * per_s, high_per_s=1.01 * per_s, amount=10**9,
            median_ns=1e18 / per_s, sample_count=20, how=f"{name} as tested",
        )  # fmt: skip

    def make(rates=None, times=None, **facts):
        known = {
            "schema_version": 1, "device": "NVIDIA H200", "compute_capability": "9.0", "sm_count": 132,
            "memory_bytes": 150_109_880_320, "l2_bytes": 62_914_560, "driver": "580.159.04",
            "cuda_runtime": "13.0", "torch": "2.11.0+cu130", "opscope": "0.1.0",
            "created": "2026-11-20T10:00:00+00:00", "duration_ns": 9_000_000_000,
        }  # fmt: skip
        return MeasuredLimits(
            **{**known, **facts},
            rates=tuple(rate(*item) for item in (rates or {"copy": 4.28e12}).items()),
            times=tuple(
                MeasuredTime(
                    name=name, median_ns=ns, low_ns=0.99 * ns, high_ns=1.01 * ns, sample_count=61, how=name
                )
                for name, ns in (times or {}).items()
            ),
        )

    return make
