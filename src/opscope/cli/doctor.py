"""`opscope doctor`: check this machine: torch, CUDA, GPUs, profiler, counters.

Looks, calculates and records, but changes no setting. Exit code 1 says that profiling cannot work.
"""

from __future__ import annotations

from opscope import api
from opscope.cli.app import EXIT_ERROR
from opscope.cli.console import Json, Showing, status
from opscope.report.machine import doctor_document, doctor_json


def doctor(*, json: Json = False) -> int:
    """Check Python, torch, CUDA, the GPUs, the profiler and the tools around them.

    Calculates on every GPU, records a few operators with torch's profiler and reads a hardware counter with
    ncu; each in a process of its own with a time limit. Every finding comes with what mends it.

    Exit codes: 0 if programs can be profiled here, on the GPU if there is one; 1 if not.

    Example: opscope doctor --json
    """
    with status("Looking at this machine"):
        diagnosis = api.doctor()
    Showing(json=json).show(lambda: doctor_json(diagnosis), lambda: doctor_document(diagnosis))
    return 0 if diagnosis.can_profile else EXIT_ERROR
