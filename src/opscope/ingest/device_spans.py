"""Activities of one trace's devices, read by themselves: all that a question about device time alone needs.

A Session is not made: the few keys that count are decoded from the text, window by window, which takes a
tenth of the time of loading. It tells the same: times, and the step that launched an activity, follow the
rules of `kineto.sql` and `linking`. What only few traces hold (times that a double cannot hold, names of
2021, broken text, activities known by their operator alone) is not read here; None says so.
"""

from __future__ import annotations

import mmap
import re
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from opscope.ingest.linking import earliest_of_each, look_up
from opscope.ingest.nesting import Int64, RecordedSteps
from opscope.ingest.recorded import read_beside
from opscope.ingest.source import (
    LARGEST_EXACT_DOUBLE_US,
    EventArray,
    TraceFile,
    is_export,
    local_text,
    locate_events,
    split_windows,
)
from opscope.ingest.trace_rows import integer

_WINDOW_BYTES = 2 << 20  # what a cache holds: larger windows take longer by page faults
_KERNEL = "kernel"
_ACTIVITIES = frozenset((_KERNEL, "gpu_memcpy", "gpu_memset"))
_CALLS = frozenset(("cuda_runtime", "cuda_driver"))
_RANGES = frozenset(("user_annotation",))
_OPERATORS = frozenset(("cpu_op",))
_LEGACY = frozenset(("Operator", "Kernel", "Memcpy", "Memset", "Runtime"))
_STEP = re.compile(r"ProfilerStep#(\d{1,9})")


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


class _Arguments(msgspec.Struct, gc=False):
    correlation: int = -1
    external_id: int = msgspec.field(default=-1, name="External id")
    device: int | None = None


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str | None = None
    name: str | None = None
    pid: int | str | None = None
    ts: float | None = None
    dur: float | None = None
    args: _Arguments | None = None


_DECODER = msgspec.json.Decoder(list[_Event])


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
        try:
            with local.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
                events = locate_events(text, trace.name)
                if events.lost_bytes:
                    return None
                return _spans(_Events(text, events), _rank(trace, events))
        except (msgspec.MsgspecError, UnicodeError, RecursionError, _UnusualTraceError, ValueError):
            return None


def _rank(trace: TraceFile, events: EventArray) -> int | None:
    distributed = events.properties.get("distributedInfo")
    rank = integer(distributed.get("rank")) if isinstance(distributed, dict) else None
    if rank is None:
        sidecar, _ = read_beside(0, trace)
        rank = None if sidecar is None else sidecar.rank
    return rank


class _Events:
    """The events of a text that count: those of some categories, with a usable time."""

    def __init__(self, text: mmap.mmap, events: EventArray) -> None:
        self._text, self._events = text, events
        found = self.of(_ACTIVITIES | _CALLS | _RANGES)
        self.activities, self.calls, self.ranges = (
            [one for one in found if one.cat in kinds] for kinds in (_ACTIVITIES, _CALLS, _RANGES)
        )

    def of(self, kinds: frozenset[str]) -> list[_Event]:
        """The events of these categories, in their order."""
        found: list[_Event] = []
        size = self._events.end - self._events.start
        count = -(-size // _WINDOW_BYTES)
        for start, end in split_windows(self._text, self._events.start, self._events.end, count):
            decoded = _DECODER.decode(b"[" + self._text[start:end] + b"]")
            if not _LEGACY.isdisjoint({one.cat for one in decoded}):
                raise _UnusualTraceError
            found += [one for one in decoded if one.cat in kinds]
        return [
            one
            for one in found
            if one.ph == "X" and one.ts is not None and one.dur is not None and one.dur >= 0
        ]


def _spans(events: _Events, rank: int | None) -> DeviceSpans:
    activities, calls = events.activities, events.calls
    steps = _steps(events.ranges)
    start_ns, duration_ns = _times(activities)
    call_ns, _ = _times(calls)
    names: dict[str, int] = {}
    name = np.array([names.setdefault(one.name or "", len(names)) for one in activities], dtype=np.int64)
    correlations, launchers = earliest_of_each(_correlations(calls), call_ns)
    call = look_up(correlations, launchers, _correlations(activities))
    _require_calls(events, call)
    call_step = np.append(steps.at(call_ns), -1)
    return DeviceSpans(
        rank=rank,
        device=np.array([_device(one) for one in activities], dtype=np.int64),
        start_ns=start_ns,
        end_ns=start_ns + duration_ns,
        name=name,
        names=tuple(names),
        is_kernel=np.array([one.cat == _KERNEL for one in activities], dtype=np.bool_),
        step=call_step[call],
        has_steps=len(steps.step) > 0,
    )


def _times(events: list[_Event]) -> tuple[Int64, Int64]:
    """Starts and durations in ns, as `kineto.sql` converts them."""
    start_us = np.array([one.ts for one in events], dtype=np.float64)
    duration_us = np.array([one.dur for one in events], dtype=np.float64)
    if np.any(start_us >= LARGEST_EXACT_DOUBLE_US):
        raise _UnusualTraceError
    whole_us = np.floor(start_us)
    start_ns = whole_us.astype(np.int64) * 1000 + np.round((start_us - whole_us) * 1000).astype(np.int64)
    return start_ns, np.round(duration_us * 1000).astype(np.int64)


def _steps(ranges: list[_Event]) -> RecordedSteps:
    found = [(int(match[1]), one) for one in ranges if (match := _STEP.match(one.name or ""))]
    start_ns, duration_ns = _times([one for _, one in found])
    order = np.argsort(start_ns, kind="stable")
    number = np.array([number for number, _ in found], dtype=np.int64)
    return RecordedSteps(number[order], start_ns[order], duration_ns[order])


def _correlations(events: list[_Event]) -> Int64:
    return np.array([-1 if one.args is None else one.args.correlation for one in events], dtype=np.int64)


def _device(event: _Event) -> int:
    device = None if event.args is None else event.args.device
    found = integer(event.pid) if device is None else device
    if found is None:
        raise _UnusualTraceError
    return found


def _require_calls(events: _Events, call: Int64) -> None:
    """Of an activity whose call was not recorded, its operator may still tell the step."""
    unlinked = {
        one.args.external_id
        for one, place in zip(events.activities, call.tolist(), strict=True)
        if place < 0 and one.args is not None and one.args.external_id >= 0
    }
    if unlinked and any(
        one.args is not None and one.args.external_id in unlinked for one in events.of(_OPERATORS)
    ):
        raise _UnusualTraceError
