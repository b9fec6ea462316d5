"""Activities of one trace's devices, read by themselves: all that a question about device time alone needs.

No Session is made: the scanned columns are enough. Times, and the step that launched an activity, follow the
rules of `kineto.sql` and `linking`. What only few traces hold (names of 2021, broken text, activities known
by their operator alone) is not read here; None says so.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from opscope.ingest.linking import earliest_of_each, look_up
from opscope.ingest.nesting import Int64, RecordedSteps
from opscope.ingest.recorded import read_beside
from opscope.ingest.scan import Chunk, scan
from opscope.ingest.source import TraceFile, is_export, local_text, mapped_text, open_array, trailer
from opscope.ingest.trace_rows import integer

_KINDS = {
    "kernel": "activities", "gpu_memcpy": "activities", "gpu_memset": "activities",
    "cuda_runtime": "calls", "cuda_driver": "calls", "user_annotation": "ranges", "cpu_op": "operators",
}  # fmt: skip
_LEGACY = ("Operator", "Kernel", "Memcpy", "Memset", "Runtime")
_STEP = re.compile(r"ProfilerStep#(\d{1,9})")
# What is read of each kind; an absent number is -1.
_NUMBERS = ("start_ns", "duration_ns", "correlation_id", "external_id", "device")


class DeviceSpans(msgspec.Struct, frozen=True):
    """Activities of all devices of one trace.

    Attributes:
        rank: None if the trace does not tell.
        device: int64[n].
        start_ns: int64[n].
        end_ns: int64[n].
        name: int64[n], positions in `names`.
        is_kernel: bool[n]; else a copy or set.
        step: int64[n], the step that launched it; -1 for none.
        has_steps: Whether steps were recorded.
    """

    rank: int | None
    device: Int64
    start_ns: Int64
    end_ns: Int64
    name: Int64
    names: tuple[str, ...]
    is_kernel: npt.NDArray[np.bool_]
    step: Int64
    has_steps: bool


class _UnusualTraceError(Exception):
    """The trace holds what is not read here."""


def read_device_spans(trace: TraceFile, folder: Path) -> DeviceSpans | None:
    """The activities of a trace; None if it has to be loaded for them.

    Args:
        trace: The file.
        folder: Where compressed text is unpacked.

    Raises:
        InputError: The file cannot be read at all.
    """
    with local_text(trace, folder) as local:
        if local.damage or is_export(trace, local):
            return None
        with mapped_text(local.path, trace.name) as text:
            opened = open_array(text, trace.name)
            rows = _Rows()
            try:
                for chunk in scan(text, opened.start, threads=1):
                    rows.add(chunk)
                keys = trailer(text, chunk.scanned.end, opened) if chunk.scanned.is_closed else None
                return None if keys is None else _spans(rows, _rank(trace, {**(opened.header or {}), **keys}))
            except _UnusualTraceError:
                return None


def _rank(trace: TraceFile, properties: dict[str, Any]) -> int | None:
    distributed = properties.get("distributedInfo")
    rank = integer(distributed.get("rank")) if isinstance(distributed, dict) else None
    if rank is None:
        sidecar, _ = read_beside(0, trace)
        rank = None if sidecar is None else sidecar.rank
    return rank


class _Rows:
    """The events that count, with a usable time, as columns of each kind."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self._found: dict[tuple[str, str], list[Int64]] = {}

    def of(self, kind: str, column: str) -> Int64:
        """One column of one kind."""
        parts = self._found.get((kind, column))
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def add(self, chunk: Chunk) -> None:
        """Take in the next chunk."""
        scanned, texts = chunk.scanned, chunk.texts
        if chunk.flaws or not {*_LEGACY}.isdisjoint(texts):
            raise _UnusualTraceError
        rows = scanned.row_count
        nothing = np.zeros(rows, dtype=np.int64), np.zeros(rows // 8 + 1, dtype=np.uint8)

        def column(name: str) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
            values, present = scanned.columns.get(name, nothing)
            return values, np.unpackbits(present, count=rows, bitorder="little").astype(bool)

        numbers = {
            name: np.where(present, values, -1) for name in _NUMBERS for values, present in [column(name)]
        }
        of_text = np.array([self.names.setdefault(one or "", len(self.names)) for one in (*texts, "")])
        (category, has_category), (phase, has_phase), (name, has_name), (process, has_process) = map(
            column, ("cat", "ph", "name", "pid")
        )
        numbers["name"] = of_text[np.where(has_name, name, len(texts))]
        numbers["is_kernel"] = category == (texts.index("kernel") if "kernel" in texts else -1)
        processes = np.array([-1 if (found := integer(one)) is None else found for one in (*texts, None)])
        numbers["device"] = np.where(
            column("device")[1], numbers["device"], processes[np.where(has_process, process, len(texts))]
        )
        is_span = has_category & has_phase & (phase == (texts.index("X") if "X" in texts else -1))
        is_span &= column("start_ns")[1] & (numbers["duration_ns"] >= 0)
        kinds = [_KINDS.get(one or "", "") for one in texts]
        for kind in {*kinds} - {""}:
            chosen = np.flatnonzero(is_span & np.array([one == kind for one in kinds])[category])
            for key, values in numbers.items():
                self._found.setdefault((kind, key), []).append(values[chosen])


def _spans(rows: _Rows, rank: int | None) -> DeviceSpans:
    steps = _steps(rows)
    start_ns, call_ns = rows.of("activities", "start_ns"), rows.of("calls", "start_ns")
    correlations, launchers = earliest_of_each(rows.of("calls", "correlation_id"), call_ns)
    call = look_up(correlations, launchers, rows.of("activities", "correlation_id"))
    device = rows.of("activities", "device")
    # Of an activity whose call was not recorded, its operator may still tell the step.
    unlinked = rows.of("activities", "external_id")[call < 0]
    if np.isin(unlinked[unlinked >= 0], rows.of("operators", "external_id")).any() or (device < 0).any():
        raise _UnusualTraceError
    call_step = np.append(steps.at(call_ns), -1)
    return DeviceSpans(
        rank=rank,
        device=device,
        start_ns=start_ns,
        end_ns=start_ns + rows.of("activities", "duration_ns"),
        name=rows.of("activities", "name"),
        names=tuple(rows.names),
        is_kernel=rows.of("activities", "is_kernel").astype(bool),
        step=call_step[call],
        has_steps=len(steps.step) > 0,
    )


def _steps(rows: _Rows) -> RecordedSteps:
    names = [_STEP.match(one) for one in rows.names]
    number = np.array([-1 if one is None else int(one[1]) for one in names], dtype=np.int64)
    of_range = number[rows.of("ranges", "name")] if len(number) else np.empty(0, dtype=np.int64)
    chosen = np.flatnonzero(of_range >= 0)
    start_ns, duration_ns = (rows.of("ranges", name)[chosen] for name in ("start_ns", "duration_ns"))
    order = np.argsort(start_ns, kind="stable")
    return RecordedSteps(of_range[chosen][order], start_ns[order], duration_ns[order])
