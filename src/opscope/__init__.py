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

from opscope._version import __version__ as __version__

if TYPE_CHECKING:
    from opscope.analysis.summary import Summary as Summary
    from opscope.api import (
        analyze as analyze,
        bench as bench,
        compare as compare,
        devices as devices,
        doctor as doctor,
        explain as explain,
        flamegraph as flamegraph,
        ncu as ncu,
        print_table as print_table,
        profile as profile,
        profile_call as profile_call,
        stats as stats,
        try_changes as try_changes,
    )
    from opscope.capture.cycle import (
        export_chrome_trace as export_chrome_trace,
        tensorboard_trace as tensorboard_trace,
    )
    from opscope.data import example_trace as example_trace
    from opscope.errors import (
        CaptureError as CaptureError,
        DependencyError as DependencyError,
        InputError as InputError,
        MeasurementError as MeasurementError,
        OpscopeError as OpscopeError,
    )
    from opscope.model.benchmark import BenchmarkResult as BenchmarkResult
    from opscope.model.finding import Finding as Finding, Severity as Severity
    from opscope.model.session import Check as Check, Session as Session
    from opscope.results import (
        load as load,
        load_result as load_result,
        open_session as open_session,
        print_report as print_report,
        save_result as save_result,
        summarize as summarize,
    )

_NAMES = {
    "opscope.analysis.summary": "Summary",
    "opscope.api": "analyze bench compare devices doctor explain flamegraph ncu print_table profile "
    "profile_call stats try_changes",
    "opscope.capture.cycle": "export_chrome_trace tensorboard_trace",
    "opscope.data": "example_trace",
    "opscope.errors": "CaptureError DependencyError InputError MeasurementError OpscopeError",
    "opscope.model.benchmark": "BenchmarkResult",
    "opscope.model.finding": "Finding Severity",
    "opscope.model.session": "Check Session",
    "opscope.results": "load load_result open_session print_report save_result summarize",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'opscope' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - nothing is imported before it is used

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
