"""Records of one process → the events of its trace as JSON text, in Kineto's words.

What has no end (a kernel that ran when the program was killed) is left out and counted. Calls of the driver
that the runtime made on its own behalf are left out too, as in Kineto and Nsight Systems. Times stay exact:
nanoseconds become microseconds with three decimals without passing through a float.

Source: libkineto/src/cupti_strings.cpp and CuptiActivity.cpp; the numbers are those of cupti_activity.h.
Copies of unified memory, which Kineto does not record, are called after Nsight Systems.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from opscope.cupti.recording import ABSENT, LATEST_NS, ChunkKind, CuptiRecording, Records, TextTable

_COPIES = {
    1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH",
    10: "PtoP",
}  # fmt: skip
_MEMORY = {
    0: "Unknown", 1: "Pageable", 2: "Pinned", 3: "Device", 4: "Array", 5: "Managed", 6: "Device Static",
    7: "Managed Static",
}  # fmt: skip
_MIGRATIONS = {1: "HtoD", 2: "DtoH", 8: "DtoD"}
_OVERHEADS = {
    1: "Driver Compiler", 1 << 16: "Buffer Flush", 2 << 16: "Instrumentation", 3 << 16: "Resource",
    4 << 16: "Runtime Triggered Module Loading", 5 << 16: "Lazy Function Loading",
    6 << 16: "Command Buffer Full", 7 << 16: "Activity Buffer Request", 8 << 16: "UVM Activity Init",
}  # fmt: skip
_UNKNOWN = "<unknown>"
# CUPTI numbers the versions of a runtime function; those of the driver are part of their names.
_RUNTIME_VERSION = re.compile(r"_v\d{4,}$")
_PER_THREAD_STREAM = re.compile(r"_pts[zd]$")


def copy_name(kind: int, source: int, target: int) -> str:
    """`Memcpy HtoD (Pageable -> Device)`."""
    ends = f"{_MEMORY.get(source, _UNKNOWN)} -> {_MEMORY.get(target, _UNKNOWN)}"
    return f"Memcpy {_COPIES.get(kind, _UNKNOWN)} ({ends})"


def set_name(memory_kind: int) -> str:
    """`Memset (Device)`."""
    return f"Memset ({_MEMORY.get(memory_kind, _UNKNOWN)})"


def migration_name(kind: int) -> str:
    """`Memcpy Unified HtoD`."""
    return f"Memcpy Unified {_MIGRATIONS.get(kind, _UNKNOWN)}"


def overhead_name(kind: int) -> str:
    """`Buffer Flush`."""
    return _OVERHEADS.get(kind, "Unknown")


def call_name(name: str | None, function: int, *, is_driver: bool) -> str:
    """`cudaLaunchKernel`, of CUPTI's `cudaLaunchKernel_ptsz_v7000`.

    Args:
        name: CUPTI's name, None if it knows none.
        function: Its number, shown then.
        is_driver: Whether it is a function of the driver.
    """
    if name is None:
        return f"{'driver' if is_driver else 'runtime'} function {function}"
    bare = name if is_driver else _RUNTIME_VERSION.sub("", name)
    return _PER_THREAD_STREAM.sub("", bare)


Times = tuple[str, str]
"""Start and duration of an event, as JSON numbers of microseconds."""


def microseconds(times_ns: npt.NDArray[np.int64]) -> list[str]:
    """Nanoseconds as JSON numbers of microseconds, exactly."""
    whole, rest = np.divmod(times_ns, 1000)
    return [f"{us}.{ns:03d}" for us, ns in zip(whole.tolist(), rest.tolist(), strict=True)]


def head(category: str, name: str, process: int | str, row: int | str) -> str:
    """An event's text up to the value of its start."""
    return (
        f'{{"ph": "X", "cat": "{category}", "name": {json.dumps(name)}, '
        f'"pid": {json.dumps(process)}, "tid": {json.dumps(row)}, "ts": '
    )


def event(head_text: str, times: Times, arguments: Mapping[str, Any]) -> str:
    """A whole event, of what `head` made."""
    return f'{head_text}{times[0]}, "dur": {times[1]}, "args": {json.dumps(arguments)}}}'


def arrow(phase: str, correlation: int, place: tuple[int, int], start: str) -> str:
    """One end of an arrow from a call to its activity.

    Args:
        phase: `s` at the call, `f` at the activity.
        correlation: What ties the two.
        place: Process and row.
        start: Start of the event it is tied to.
    """
    binding = ', "bp": "e"' if phase == "f" else ""
    return (
        f'{{"ph": "{phase}", "id": {correlation}, "pid": {place[0]}, "tid": {place[1]}, "ts": {start}, '
        f'"cat": "ac2g", "name": "ac2g"{binding}}}'
    )


def process_labels(process: int, name: str, text: str, sort_index: int) -> Iterator[str]:
    """What viewers call a process, and where they show it."""
    yield label("process_name", (process, 0), "name", name)
    yield label("process_labels", (process, 0), "labels", text)
    yield label("process_sort_index", (process, 0), "sort_index", sort_index)


def label(kind: str, place: tuple[int, int | str], key: str, value: Any) -> str:
    """One metadata event."""
    return json.dumps(
        {"name": kind, "ph": "M", "ts": 0, "pid": place[0], "tid": place[1], "args": {key: value}}
    )


_UNIFIED_ROW = "unified memory"
_GPU_SORT_INDEX = 5_000_000
_CALLS = (ChunkKind.RUNTIME_CALLS, ChunkKind.DRIVER_CALLS)
_ON_STREAMS = (ChunkKind.KERNELS, ChunkKind.COPIES, ChunkKind.SETS)
_TIMED = (*_ON_STREAMS, *_CALLS, ChunkKind.MIGRATIONS, ChunkKind.OVERHEADS)
_MANAGED = ("cudaMallocManaged", "cuMemAllocManaged")


@dataclass(frozen=True)
class ProcessEvents:
    """The events of one process, and what was left out.

    Args:
        lines: JSON objects.
        counts: Events by what they are: `kernels`, `copies`, `sets`, `migrations`, `calls`.
        unfinished_count: Activities that had not ended when the recording did.
        nested_call_count: Calls of the driver from within calls of the runtime.
        uses_managed_memory: Whether the program allocated unified memory.
    """

    lines: tuple[str, ...]
    counts: Mapping[str, int]
    unfinished_count: int
    nested_call_count: int
    uses_managed_memory: bool


def first_moment_ns(recording: CuptiRecording) -> int:
    """When the recording began, or its first event if that was earlier, on CUPTI's clock."""
    starts = [int(found["start_ns"].min()) for kind in _TIMED if len(found := _ended(recording.of(kind)))]
    return min([recording.start_ns, *starts])


def process_events(recording: CuptiRecording, kernel_names: Mapping[int, str], base_ns: int) -> ProcessEvents:
    """The events of one process.

    Args:
        recording: Its records.
        kernel_names: Names to show, by id.
        base_ns: Zero of the trace's time, on CUPTI's clock.
    """
    return _Writer(recording, kernel_names, base_ns).events()


def _ended(records: Records) -> Records:
    """The records with a start and an end, by start; damaged ones have times that no clock gives."""
    starts_ns, ends_ns = records["start_ns"], records["end_ns"]
    whole = records[(starts_ns > 0) & (ends_ns >= starts_ns) & (ends_ns < LATEST_NS)]
    return whole[np.argsort(whole["start_ns"], kind="stable")]


def _is_nested(inner: Records, outer: Records) -> npt.NDArray[np.bool_]:
    """Whether each of some calls lies within one of the others, on its thread. Both are sorted by start."""
    nested = np.zeros(len(inner), dtype=np.bool_)
    for thread in np.intersect1d(inner["thread"], outer["thread"]):
        mine = np.flatnonzero(inner["thread"] == thread)
        others = outer[outer["thread"] == thread]
        slot = np.searchsorted(others["start_ns"], inner["start_ns"][mine], side="right") - 1
        found = slot >= 0
        nested[mine[found]] = inner["end_ns"][mine[found]] <= others["end_ns"][slot[found]]
    return nested


class _Writer:
    def __init__(self, recording: CuptiRecording, kernel_names: Mapping[int, str], base_ns: int) -> None:
        self._recording = recording
        self._kernel_names = kernel_names
        self._base_ns = base_ns
        self._whole = {kind: _ended(recording.of(kind)) for kind in _TIMED}
        self._unfinished = sum(len(recording.of(kind)) - len(self._whole[kind]) for kind in _TIMED)
        runtime, driver = (self._whole[kind] for kind in _CALLS)
        nested = _is_nested(driver, runtime)
        self._nested = int(nested.sum())
        self._whole[ChunkKind.DRIVER_CALLS] = driver[~nested]
        self._multiprocessors = {
            int(device["device"]): int(device["multiprocessors"])
            for device in recording.of(ChunkKind.DEVICES)
        }

    def events(self) -> ProcessEvents:
        whole, names = self._whole, self._recording.names
        lines = [
            *self._labels(),
            self._span(),
            *self._calls(ChunkKind.RUNTIME_CALLS, "cuda_runtime", TextTable.RUNTIME_FUNCTION),
            *self._calls(ChunkKind.DRIVER_CALLS, "cuda_driver", TextTable.DRIVER_FUNCTION),
            *self._kernels(),
            *self._copies(),
            *self._sets(),
            *self._migrations(),
            *self._overheads(),
            *self._arrows(),
        ]
        called = {*names[TextTable.RUNTIME_FUNCTION].values(), *names[TextTable.DRIVER_FUNCTION].values()}
        counts = {
            "kernels": len(whole[ChunkKind.KERNELS]),
            "copies": len(whole[ChunkKind.COPIES]),
            "sets": len(whole[ChunkKind.SETS]),
            "migrations": len(whole[ChunkKind.MIGRATIONS]),
            "calls": sum(len(whole[kind]) for kind in _CALLS),
        }
        uses_managed = any(name.startswith(_MANAGED) for name in called)
        return ProcessEvents(tuple(lines), counts, self._unfinished, self._nested, uses_managed)

    def _span(self) -> str:
        """The recording as a whole, which readers take for its window."""
        ends = [int(found["end_ns"].max()) for found in self._whole.values() if len(found)]
        start_ns = self._recording.start_ns
        end_ns = max([self._recording.end_ns or start_ns, *ends])
        times = microseconds(np.array([start_ns - self._base_ns, end_ns - start_ns]))
        return event(head("Trace", "opscope trace (0)", "Spans", "opscope trace"), (times[0], times[1]), {})

    def _times(self, records: Records) -> Iterable[Times]:
        starts_ns = records["start_ns"].astype(np.int64)
        durations_ns = records["end_ns"].astype(np.int64) - starts_ns
        return zip(microseconds(starts_ns - self._base_ns), microseconds(durations_ns), strict=True)

    def _calls(self, kind: ChunkKind, category: str, table: TextTable) -> Iterator[str]:
        records, names = self._whole[kind], self._recording.names[table]
        is_driver = kind is ChunkKind.DRIVER_CALLS
        heads: dict[tuple[int, int], str] = {}
        columns = (records[name].tolist() for name in ("function", "thread", "correlation"))
        for function, thread, correlation, times in zip(*columns, self._times(records), strict=True):
            head_text = heads.get((function, thread))
            if head_text is None:
                name = call_name(names.get(function), function, is_driver=is_driver)
                head_text = heads[function, thread] = head(category, name, self._recording.process, thread)
            yield (
                f'{head_text}{times[0]}, "dur": {times[1]}, '
                f'"args": {{"cbid": {function}, "correlation": {correlation}}}}}'
            )

    def _kernels(self) -> Iterator[str]:
        """Kernels; what launches alike have in common is put into words once."""
        records = self._whole[ChunkKind.KERNELS]
        fields = ("name", "device", "context", "stream", "graph", "graph_node", "registers")
        shared_bytes = records["static_shared_bytes"].astype(np.int64) + records["dynamic_shared_bytes"]
        alike = zip(
            *(records[field].tolist() for field in fields),
            shared_bytes.tolist(),
            map(tuple, records["grid"].tolist()),
            map(tuple, records["block"].tolist()),
            strict=True,
        )
        said: dict[Any, tuple[str, str]] = {}
        correlations = records["correlation"].tolist()
        for key, correlation, times in zip(alike, correlations, self._times(records), strict=True):
            texts = said.get(key)
            if texts is None:
                texts = said[key] = self._kernel_texts(key)
            yield (
                f'{texts[0]}{times[0]}, "dur": {times[1]}, '
                f'"args": {{"correlation": {correlation}, {texts[1]}}}}}'
            )

    def _kernel_texts(self, key: Any) -> tuple[str, str]:
        """The text in front of a kernel's times, and its arguments behind them."""
        name, device, context, stream, graph, node, registers, shared_bytes, grid, block = key
        arguments: dict[str, Any] = {
            "device": device,
            "context": context,
            "stream": stream,
            "registers per thread": registers,
            "shared memory": shared_bytes,
            **self._per_multiprocessor(device, grid, block),
            "grid": list(grid),
            "block": list(block),
            **_graph(graph, node),
        }
        shown = self._kernel_names.get(name, "<unknown kernel>")
        return head("kernel", shown, device, stream), json.dumps(arguments)[1:-1]

    def _per_multiprocessor(
        self, device: int, grid: tuple[int, ...], block: tuple[int, ...]
    ) -> dict[str, float]:
        """Blocks and warps of a launch for each multiprocessor; nothing if their number is unknown.

        Source: libkineto/src/CuptiActivity.cpp, kernelBlocksPerSm and kernelWarpsPerSm.
        """
        multiprocessors = self._multiprocessors.get(device, 0)
        if multiprocessors <= 0:
            return {}
        blocks = grid[0] * grid[1] * grid[2]
        warps = blocks * (block[0] * block[1] * block[2]) / 32
        return {
            "blocks per SM": round(blocks / multiprocessors, 6),
            "warps per SM": round(warps / multiprocessors, 6),
        }

    def _copies(self) -> Iterator[str]:
        for record, times in self._each(ChunkKind.COPIES):
            name = copy_name(int(record["kind"]), int(record["source"]), int(record["target"]))
            peers = {
                key: int(record[field])
                for key, field in (("fromDevice", "source_device"), ("toDevice", "target_device"))
                if record[field] != ABSENT
            }
            place = head("gpu_memcpy", name, int(record["device"]), int(record["stream"]))
            yield event(place, times, {**_memory_arguments(record), **peers})

    def _sets(self) -> Iterator[str]:
        for record, times in self._each(ChunkKind.SETS):
            name = set_name(int(record["memory_kind"]))
            place = head("gpu_memset", name, int(record["device"]), int(record["stream"]))
            yield event(place, times, _memory_arguments(record))

    def _migrations(self) -> Iterator[str]:
        """Copies of unified memory, on a row of their own: CUPTI names no stream."""
        for record, times in self._each(ChunkKind.MIGRATIONS):
            device, name = _migration_device(record), migration_name(int(record["kind"]))
            arguments = {"device": device, **_traffic(record)}
            yield event(head("gpu_memcpy", name, device, _UNIFIED_ROW), times, arguments)

    def _overheads(self) -> Iterator[str]:
        for record, times in self._each(ChunkKind.OVERHEADS):
            yield event(head("overhead", overhead_name(int(record["kind"])), -1, 0), times, {})

    def _each(self, kind: ChunkKind) -> Iterable[tuple[Any, Times]]:
        records = self._whole[kind]
        return zip(records, self._times(records), strict=True)

    def _arrows(self) -> Iterator[str]:
        """From each call to the device activities it caused."""
        calls = np.concatenate([self._whole[kind] for kind in _CALLS])
        caused = np.concatenate([self._whole[kind]["correlation"] for kind in _ON_STREAMS])
        calls = calls[np.isin(calls["correlation"], caused)]
        columns = (calls["correlation"].tolist(), calls["thread"].tolist(), self._times(calls))
        for correlation, thread, (start, _) in zip(*columns, strict=True):
            yield arrow("s", correlation, (self._recording.process, thread), start)
        for kind in _ON_STREAMS:
            tied = self._whole[kind][np.isin(self._whole[kind]["correlation"], calls["correlation"])]
            fields = (tied[field].tolist() for field in ("correlation", "device", "stream"))
            for correlation, device, stream, (start, _) in zip(*fields, self._times(tied), strict=True):
                yield arrow("f", correlation, (device, stream), start)

    def _labels(self) -> Iterator[str]:
        """Names of processes, threads and streams."""
        recording = self._recording
        program = recording.program.rpartition("/")[2] or "program"
        yield from process_labels(recording.process, program, "CPU", recording.process)
        names = recording.names[TextTable.THREAD]
        threads = np.unique(np.concatenate([self._whole[kind]["thread"] for kind in _CALLS]))
        for thread in threads.tolist():
            text = f"thread {thread} ({names.get(thread, program)})"
            yield label("thread_name", (recording.process, thread), "name", text)
        for device, rows in sorted(self._rows().items()):
            yield from process_labels(device, program, f"GPU {device}", _GPU_SORT_INDEX + device)
            for row in rows:
                text = f"stream {row}" if isinstance(row, int) else row
                yield label("thread_name", (device, row), "name", text)

    def _rows(self) -> dict[int, list[int | str]]:
        """Rows of each device in use: its streams, and unified memory."""
        places = [np.unique(self._whole[kind][["device", "stream"]]) for kind in _ON_STREAMS]
        rows: dict[int, list[int | str]] = {}
        for device, stream in sorted({tuple(place) for found in places for place in found.tolist()}):
            rows.setdefault(device, []).append(stream)
        for device in sorted(set(map(_migration_device, self._whole[ChunkKind.MIGRATIONS]))):
            rows.setdefault(device, []).append(_UNIFIED_ROW)
        return rows


def _migration_device(record: Any) -> int:
    """The device at the end of a copy, else at its start: the host has no number."""
    return int(record["target"] if record["target"] != ABSENT else record["source"])


def _memory_arguments(record: Any) -> dict[str, Any]:
    return {
        "device": int(record["device"]),
        "context": int(record["context"]),
        "stream": int(record["stream"]),
        "correlation": int(record["correlation"]),
        **_traffic(record),
        **_graph(int(record["graph"]), int(record["graph_node"])),
    }


def _traffic(record: Any) -> dict[str, Any]:
    """Bytes of a copy, and their rate."""
    size_bytes, duration_ns = int(record["size_bytes"]), int(record["end_ns"]) - int(record["start_ns"])
    rate = {"memory bandwidth (GB/s)": round(size_bytes / duration_ns, 6)} if duration_ns else {}
    return {"bytes": size_bytes, **rate}


def _graph(graph: int, node: int) -> dict[str, int]:
    return {"graph id": graph, "graph node id": node} if graph else {}
