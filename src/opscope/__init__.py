"""opscope: where every nanosecond of GPU time goes in PyTorch.

    import opscope
    session = opscope.load("trace.json.gz")        # or a folder, an address, a saved .opscope file
    summary = opscope.summarize(session)
    with opscope.profile("out") as profiler:
        for batch in batches:
            train(batch)
            profiler.step()
    profiler.session.query("SELECT name, self_device_ns FROM operators")
    result = opscope.bench("gelu")                 # or opscope.bench(fast, slow, inputs=make_inputs)

Importing the package is quick and imports neither torch nor the engine; names are loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opscope._version import __version__
from opscope.errors import CaptureError, DependencyError, InputError, MeasurementError, OpscopeError

if TYPE_CHECKING:
    from opscope.analysis.summary import Summary
    from opscope.api import (
        analyze,
        bench,
        compare,
        devices,
        doctor,
        explain,
        flamegraph,
        ncu,
        overlap,
        print_table,
        profile,
        profile_call,
        profiled,
        run,
        stats,
        trace,
        try_changes,
    )
    from opscope.benchmarking.decorator import benchmark
    from opscope.capture.cycle import export_chrome_trace, tensorboard_trace
    from opscope.data import example_trace
    from opscope.model.benchmark import BenchmarkResult
    from opscope.model.finding import Finding, Severity
    from opscope.model.session import Check, Session
    from opscope.results import load, load_result, open_session, print_report, save_result, summarize

__all__ = [
    "BenchmarkResult",
    "CaptureError",
    "Check",
    "DependencyError",
    "Finding",
    "InputError",
    "MeasurementError",
    "OpscopeError",
    "Session",
    "Severity",
    "Summary",
    "__version__",
    "analyze",
    "bench",
    "benchmark",
    "compare",
    "devices",
    "doctor",
    "example_trace",
    "explain",
    "export_chrome_trace",
    "flamegraph",
    "load",
    "load_result",
    "ncu",
    "open_session",
    "overlap",
    "print_report",
    "print_table",
    "profile",
    "profile_call",
    "profiled",
    "run",
    "save_result",
    "stats",
    "summarize",
    "tensorboard_trace",
    "trace",
    "try_changes",
]

_HOMES = {
    "BenchmarkResult": "opscope.model.benchmark",
    "Check": "opscope.model.session",
    "Finding": "opscope.model.finding",
    "Session": "opscope.model.session",
    "Severity": "opscope.model.finding",
    "Summary": "opscope.analysis.summary",
    "benchmark": "opscope.benchmarking.decorator",
    "example_trace": "opscope.data",
    "export_chrome_trace": "opscope.capture.cycle",
    "load": "opscope.results",
    "load_result": "opscope.results",
    "open_session": "opscope.results",
    "print_report": "opscope.results",
    "save_result": "opscope.results",
    "summarize": "opscope.results",
    "tensorboard_trace": "opscope.capture.cycle",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'opscope' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - nothing is imported before it is used

    return getattr(import_module(_HOMES.get(name, "opscope.api")), name)


def __dir__() -> list[str]:
    return sorted(__all__)
