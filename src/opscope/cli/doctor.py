"""`opscope doctor`: check this machine: torch, CUDA, GPUs, profiler, counters.

It computes and records, but changes no setting. Exit code 1 means that profiling cannot work.
"""

from __future__ import annotations

from opscope import api
from opscope.cli.app import EXIT_ERROR
from opscope.cli.console import Json, Showing, status
from opscope.report.machine import doctor_document, doctor_json


def doctor(*, json: Json = False) -> int:
    """Check Python, torch, CUDA, the GPUs, the profiler and the tools around them.

    Computes on every GPU, records a few operators with torch's profiler and reads a hardware counter with
    ncu, each in its own process with a time limit. Every finding comes with its fix.

    Exit codes: 0 if programs can be profiled here, on the GPU if there is one; 1 if not.

    Example: opscope doctor --json
    """
    with status("Looking at this machine"):
        diagnosis = api.doctor()
    Showing(json=json).show(lambda: doctor_json(diagnosis), lambda: doctor_document(diagnosis))
    return 0 if diagnosis.can_profile else EXIT_ERROR
