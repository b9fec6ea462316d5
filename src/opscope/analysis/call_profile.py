"""What one call launches, by the profiler: kernels with their titles, operators, geometry and source files.

`profile_calls` is what the benchmark asks. It records a few calls in a temporary folder, reads the recording
as a Session, and removes it. torch is reached through capture alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from opscope.analysis.provenance import read_provenance
from opscope.analysis.totals import kernel_totals
from opscope.capture.calls import profile_call
from opscope.errors import CaptureError, OpscopeError
from opscope.ingest.reader import load
from opscope.model.benchmark import CallProfile, KernelUse
from opscope.model.files import scratch_prefix
from opscope.model.queries import grouped, sql, summed
from opscope.model.session import Session

T = TypeVar("T")


def profile_calls(fn: Callable[[], object], calls: int = 3) -> CallProfile:
    """What one call of a function launches, by recording some.

    Calls that launch different kernels make counts that are no integers. CaptureError where nothing can be
    recorded, of which errors of the recorded function are the cause.
    """
    with tempfile.TemporaryDirectory(prefix=scratch_prefix(), ignore_cleanup_errors=True) as folder:
        try:
            # Attaching the profiler the first time takes longer than most calls.
            _, cycle = profile_call(
                fn, output_dir=Path(folder), warmup=1, active=calls, unrecorded=0, record_shapes=False
            )
            with load([str(cycle.trace_path)]) as session:
                return call_profile_of(session, calls)
        except OpscopeError:
            raise
        except Exception as error:  # of the user's function, or of the profiler beneath
            reason = f"{type(error).__name__}: {error}".rstrip(": ")
            raise CaptureError(f"the call could not be profiled ({reason})") from error


def call_profile_of(session: Session, calls: int) -> CallProfile:
    provenance = read_provenance(session)
    launches = session.records(sql(__package__, "launches"))
    device_ns = sum(row["total_ns"] for row in launches)
    totals = kernel_totals(launches, provenance, device_ns)
    by_name = grouped((row["name"], row) for row in launches if row["operator"])
    uses = []
    for total in totals:
        facts, source_file = provenance.kernels.get(total.name), None
        time_ns = summed((row["operator"], row["total_ns"]) for row in by_name[total.name])
        if facts is not None and len(facts.units) == 1:
            source_file = facts.units[0]
        elif facts is not None and facts.location is not None:
            source_file = facts.location.file
        uses.append(
            KernelUse(
                name=total.name,
                title=total.name if facts is None else facts.title,
                kind=total.kind,
                launches=_per_call(total.calls, calls),
                device_ns=total.total_ns / calls,
                operator=max(sorted(time_ns), key=time_ns.__getitem__, default=None),  # launched most of it
                grid=_only(one.grid for one in total.geometries),
                block=_only(one.block for one in total.geometries),
                registers_per_thread=_only(one.registers_per_thread for one in total.geometries),
                shared_memory_bytes=_only(one.shared_memory_bytes for one in total.geometries),
                source_file=source_file,
            )
        )
    return CallProfile(
        calls=calls,
        kernels_launched=_per_call(sum(total.calls for total in totals), calls),
        device_ns=device_ns / calls,
        kernels=tuple(uses),
    )


def _only(values: Iterable[T | None]) -> T | None:
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def _per_call(count: int, calls: int) -> float:
    return count // calls if count % calls == 0 else count / calls
