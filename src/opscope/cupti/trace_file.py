"""A recording → a trace file like Kineto's, which other tools and `opscope.load` open, and its sidecar.

Written whole or not at all. What has no end (a kernel that ran when the program was killed) is left out and
counted. Calls of the driver that the runtime made on its own behalf are left out too, as in Kineto and Nsight
Systems. What Kineto has no place for is under the key `opscopeRecorder`: the recorder's findings (what is
missing, and why), and the mangled names of the kernels, which tell more than those shown.

Source: libkineto/src/cupti_strings.cpp and CuptiActivity.cpp; the numbers are those of cupti_activity.h.
Copies of unified memory, which Kineto does not record, are called after Nsight Systems.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from opscope._version import __version__
from opscope.cupti.recording import (
    ABSENT,
    LATEST_NS,
    WRITE_LIMIT,
    ChunkKind,
    CuptiRecording,
    FileState,
    Records,
    TextTable,
    UnifiedState,
)
from opscope.errors import CaptureError
from opscope.hardware.driver import version_text
from opscope.ingest.wording import finding
from opscope.model.files import replacing
from opscope.model.finding import RECORDER_KEY, Finding, findings_as_json
from opscope.model.origin import Gap, RecordedKernel
from opscope.model.sidecar import Environment, GpuInfo, RecordedSchedule, RecordedSettings, Sidecar
from opscope.provenance.kernel_names.cxx_name import demangle_all
from opscope.toolchain.programs import signal_name
from opscope.visible_text import without_secrets

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


def call_name(name: str | None, function: int, *, is_driver: bool) -> str:
    """`cudaLaunchKernel`, of CUPTI's `cudaLaunchKernel_ptsz_v7000`; its number where it has no name."""
    if name is None:
        return f"{'driver' if is_driver else 'runtime'} function {function}"
    return _PER_THREAD_STREAM.sub("", name if is_driver else _RUNTIME_VERSION.sub("", name))


_UNIFIED_ROW = "unified memory"
_GPU_SORT_INDEX = 5_000_000
_CALLS = (ChunkKind.RUNTIME_CALLS, ChunkKind.DRIVER_CALLS)
_ON_STREAMS = (ChunkKind.KERNELS, ChunkKind.COPIES, ChunkKind.SETS)
_TIMED = (*_ON_STREAMS, *_CALLS, ChunkKind.MIGRATIONS, ChunkKind.OVERHEADS)
_COUNTED = {
    "kernels": ChunkKind.KERNELS, "copies": ChunkKind.COPIES, "sets": ChunkKind.SETS,
    "migrations": ChunkKind.MIGRATIONS,
}  # fmt: skip
_MANAGED = ("cudaMallocManaged", "cuMemAllocManaged")

Event = dict[str, Any]


class ProcessEvents(msgspec.Struct, frozen=True):
    """The events of one process as JSON objects, counted by what they are, and what was left out."""

    lines: tuple[bytes, ...]
    counts: Mapping[str, int]
    unfinished_count: int  # activities that had not ended when the recording did
    uses_managed_memory: bool


def first_moment_ns(recording: CuptiRecording) -> int:
    """When the recording began, or its first event if that was earlier, on CUPTI's clock."""
    starts = [int(found["start_ns"].min()) for kind in _TIMED if len(found := _ended(recording.of(kind)))]
    return min([recording.start_ns, *starts])


def process_events(recording: CuptiRecording, kernel_names: Mapping[int, str], base_ns: int) -> ProcessEvents:
    """The events of one process; `base_ns` is zero of the trace's time, on CUPTI's clock."""
    whole = {kind: _ended(recording.of(kind)) for kind in _TIMED}
    unfinished = sum(len(recording.of(kind)) - len(found) for kind, found in whole.items())
    runtime, driver = (whole[kind] for kind in _CALLS)
    whole[ChunkKind.DRIVER_CALLS] = driver[~_is_nested(driver, runtime)]
    # The recording as a whole, which readers take for its window.
    start_ns = recording.start_ns
    ends = [int(found["end_ns"].max()) for found in whole.values() if len(found)]
    end_ns = max([recording.end_ns or start_ns, *ends])
    times = {"ts": (start_ns - base_ns) / 1000, "dur": (end_ns - start_ns) / 1000}
    events = chain(
        _labels(recording, whole),
        [_event("Trace", "opscope trace (0)", ("Spans", "opscope trace"), times, {})],
        _calls(recording, whole, base_ns),
        _kernels(recording, whole[ChunkKind.KERNELS], kernel_names, base_ns),
        _memory(whole, base_ns),
        _arrows(recording, whole, base_ns),
    )
    return ProcessEvents(
        tuple(map(msgspec.json.Encoder().encode, events)),
        {
            **{word: len(whole[kind]) for word, kind in _COUNTED.items()},
            "calls": sum(len(whole[kind]) for kind in _CALLS),
        },
        unfinished,
        any(name.startswith(_MANAGED) for table in _FUNCTIONS for name in recording.names[table].values()),
    )


_FUNCTIONS = (TextTable.RUNTIME_FUNCTION, TextTable.DRIVER_FUNCTION)


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


def _rows(records: Records, base_ns: int) -> Iterator[Event]:
    """Each record's fields, with `ts` and `dur` in microseconds.

    A double holds them to the nanosecond for 11 days, and JSON has its shortest decimals.
    """
    fields = records.dtype.names or ()
    starts_ns = records["start_ns"].astype(np.int64)
    columns = {name: records[name].tolist() for name in fields}
    columns["ts"] = ((starts_ns - base_ns) / 1000).tolist()
    columns["dur"] = ((records["end_ns"].astype(np.int64) - starts_ns) / 1000).tolist()
    for row in zip(*columns.values(), strict=True):
        yield dict(zip(columns, row, strict=True))


def _event(category: str, name: str, place: tuple[int | str, int | str], row: Event, args: Event) -> Event:
    return {
        "ph": "X", "cat": category, "name": name, "pid": place[0], "tid": place[1], "ts": row["ts"],
        "dur": row["dur"], "args": args,
    }  # fmt: skip


def _calls(recording: CuptiRecording, whole: Mapping[ChunkKind, Records], base_ns: int) -> Iterator[Event]:
    for kind, table, category in zip(_CALLS, _FUNCTIONS, ("cuda_runtime", "cuda_driver"), strict=True):
        names = recording.names[table]
        shown = {
            function: call_name(names.get(function), function, is_driver=kind is ChunkKind.DRIVER_CALLS)
            for function in np.unique(whole[kind]["function"]).tolist()
        }
        for row in _rows(whole[kind], base_ns):
            args = {"cbid": row["function"], "correlation": row["correlation"]}
            yield _event(category, shown[row["function"]], (recording.process, row["thread"]), row, args)


def _kernels(
    recording: CuptiRecording, records: Records, names: Mapping[int, str], base_ns: int
) -> Iterator[Event]:
    devices = recording.of(ChunkKind.DEVICES)[["device", "multiprocessors"]].tolist()
    multiprocessors = {device: count for device, count in devices if count > 0}
    for row in _rows(records, base_ns):
        args = {
            "correlation": row["correlation"], "device": row["device"], "context": row["context"],
            "stream": row["stream"], "registers per thread": row["registers"],
            "shared memory": row["static_shared_bytes"] + row["dynamic_shared_bytes"],
        }  # fmt: skip
        if row["device"] in multiprocessors:
            # Source: libkineto/src/CuptiActivity.cpp, kernelBlocksPerSm and kernelWarpsPerSm.
            blocks = math.prod(row["grid"]) / multiprocessors[row["device"]]
            args["blocks per SM"] = round(blocks, 6)
            args["warps per SM"] = round(blocks * math.prod(row["block"]) / 32, 6)
        args |= {"grid": row["grid"], "block": row["block"], **_graph(row)}
        name = names.get(row["name"], "<unknown kernel>")
        yield _event("kernel", name, (row["device"], row["stream"]), row, args)


def _memory(whole: Mapping[ChunkKind, Records], base_ns: int) -> Iterator[Event]:
    """Copies, sets, those of unified memory (on a row of their own: CUPTI names no stream), overheads."""
    for kind, category in ((ChunkKind.COPIES, "gpu_memcpy"), (ChunkKind.SETS, "gpu_memset")):
        for row in _rows(whole[kind], base_ns):
            args = {key: row[key] for key in ("device", "context", "stream", "correlation")}
            args |= {**_traffic(row), **_graph(row)}
            if kind is ChunkKind.SETS:
                name = f"Memset ({_MEMORY.get(row['memory_kind'], _UNKNOWN)})"
            else:
                source, target = (_MEMORY.get(row[end], _UNKNOWN) for end in ("source", "target"))
                name = f"Memcpy {_COPIES.get(row['kind'], _UNKNOWN)} ({source} -> {target})"
                ends = {"fromDevice": row["source_device"], "toDevice": row["target_device"]}
                args |= {key: end for key, end in ends.items() if end != ABSENT}
            yield _event(category, name, (row["device"], row["stream"]), row, args)
    for row in _rows(whole[ChunkKind.MIGRATIONS], base_ns):
        device = _migration_device(row)
        name = f"Memcpy Unified {_MIGRATIONS.get(row['kind'], _UNKNOWN)}"
        yield _event("gpu_memcpy", name, (device, _UNIFIED_ROW), row, {"device": device, **_traffic(row)})
    for row in _rows(whole[ChunkKind.OVERHEADS], base_ns):
        yield _event("overhead", _OVERHEADS.get(row["kind"], "Unknown"), (-1, 0), row, {})


def _migration_device(row: Any) -> int:
    """The device at the end of a copy, else at its start: the host has no number."""
    return int(row["target"] if row["target"] != ABSENT else row["source"])


def _traffic(row: Event) -> Event:
    duration_ns = row["end_ns"] - row["start_ns"]
    rate = {"memory bandwidth (GB/s)": round(row["size_bytes"] / duration_ns, 6)} if duration_ns else {}
    return {"bytes": row["size_bytes"], **rate}


def _graph(row: Event) -> Event:
    return {"graph id": row["graph"], "graph node id": row["graph_node"]} if row["graph"] else {}


def _arrows(recording: CuptiRecording, whole: Mapping[ChunkKind, Records], base_ns: int) -> Iterator[Event]:
    calls = np.concatenate([whole[kind] for kind in _CALLS])
    caused = np.concatenate([whole[kind]["correlation"] for kind in _ON_STREAMS])
    calls = calls[np.isin(calls["correlation"], caused)]
    arrow = {"cat": "ac2g", "name": "ac2g"}
    for row in _rows(calls, base_ns):
        place = {"pid": recording.process, "tid": row["thread"]}
        yield {"ph": "s", "id": row["correlation"], **place, "ts": row["ts"], **arrow}
    for kind in _ON_STREAMS:
        tied = whole[kind][np.isin(whole[kind]["correlation"], calls["correlation"])]
        for row in _rows(tied[["start_ns", "end_ns", "correlation", "device", "stream"]], base_ns):
            place = {"pid": row["device"], "tid": row["stream"]}
            yield {"ph": "f", "id": row["correlation"], **place, "ts": row["ts"], **arrow, "bp": "e"}


def _labels(recording: CuptiRecording, whole: Mapping[ChunkKind, Records]) -> Iterator[Event]:
    """What viewers call processes, threads and streams, and where they show them."""
    program, names = recording.program.rpartition("/")[2] or "program", recording.names[TextTable.THREAD]
    threads = np.unique(np.concatenate([whole[kind]["thread"] for kind in _CALLS])).tolist()
    places = {place for kind in _ON_STREAMS for place in whole[kind][["device", "stream"]].tolist()}
    migrated = set(map(_migration_device, whole[ChunkKind.MIGRATIONS]))
    devices = sorted({device for device, _ in places} | migrated)

    def label(kind: str, process: int, row: int | str, **args: Any) -> Event:
        return {"name": kind, "ph": "M", "ts": 0, "pid": process, "tid": row, "args": args}

    of_devices = [(device, f"GPU {device}", _GPU_SORT_INDEX + device) for device in devices]
    for process, text, index in [(recording.process, "CPU", recording.process), *of_devices]:
        yield label("process_name", process, 0, name=program)
        yield label("process_labels", process, 0, labels=text)
        yield label("process_sort_index", process, 0, sort_index=index)
    for thread in threads:
        text = f"thread {thread} ({names.get(thread, program)})"
        yield label("thread_name", recording.process, thread, name=text)
    for device, stream in sorted(places):
        yield label("thread_name", device, stream, name=f"stream {stream}")
    for device in sorted(migrated):
        yield label("thread_name", device, _UNIFIED_ROW, name=_UNIFIED_ROW)


_FLUSH_PERIOD = "0.2 s"  # FLUSH_PERIOD_MS in native/recorder.c


def recording_findings(recording: CuptiRecording, events: ProcessEvents) -> Iterator[Finding]:
    """Findings on one process's recording, whatever is missing first."""
    outcome = recording.outcome
    if outcome.dropped_count:
        yield finding("recorder.dropped", None, {"dropped_count": outcome.dropped_count})
    if outcome.lost_count and outcome.write_errno == WRITE_LIMIT:
        yield finding("recorder.size_limit", None, {"lost_count": outcome.lost_count})
    elif outcome.lost_count:
        reason = os.strerror(outcome.write_errno)
        yield finding("recorder.lost", None, {"lost_count": outcome.lost_count, "reason": reason})
    if outcome.unreadable_count:
        yield finding("recorder.unreadable", None, {"buffer_count": outcome.unreadable_count})
    if outcome.state is not FileState.ENDED:
        yield finding(
            "recorder.not_ended", None, {"truncated_bytes": outcome.truncated_bytes}, period=_FLUSH_PERIOD
        )
    elif outcome.signal is not None:
        yield finding("recorder.signal", None, {"signal": outcome.signal}, name=signal_name(outcome.signal))
    if events.unfinished_count:
        yield finding("recorder.unfinished", None, {"activity_count": events.unfinished_count})
    if outcome.unified is not UnifiedState.RECORDED:
        reason = {
            UnifiedState.REFUSED: f"CUPTI refuses them here ({outcome.unified_refusal})",
            UnifiedState.UNWANTED: "they were switched off",
        }.get(outcome.unified, "CUPTI was not ready for them")
        kind = "used" if events.uses_managed_memory else None
        yield finding("recorder.unified_memory", None, {"reason": reason}, kind=kind)


class WrittenTrace(msgspec.Struct, frozen=True):
    path: Path
    recording: CuptiRecording
    counts: Mapping[str, int]  # events by what they are: `kernels`, `copies`, `sets`, `migrations`, `calls`
    findings: tuple[Finding, ...]  # of the recorder; the trace holds them too
    kernel_names: frozenset[str]  # as shown
    is_clean: bool  # the recording ended in order, with nothing still running


def write_trace(path: Path, recording: CuptiRecording, base_ns: int) -> WrittenTrace:
    """Write one process's trace; `base_ns` is zero of its time, on CUPTI's clock."""
    mangled = recording.names[TextTable.KERNEL]
    texts = dict(zip(mangled.values(), demangle_all(mangled.values()), strict=True))
    shown = {id_: texts[name] or name for id_, name in mangled.items()}
    events = process_events(recording, shown, base_ns)
    findings = tuple(recording_findings(recording, events))
    recorder = {
        "schema_version": 1,
        "opscope_version": __version__,
        "process": recording.process,
        "command": without_secrets(recording.command),
        "findings": findings_as_json(findings),
        "mangled_names": {text: name for name, text in texts.items() if text is not None},
    }
    versions = {"cupti_version": recording.cupti_version, "cuda_driver_version": recording.driver_version}
    properties = {  # which Kineto writes in front of the events, as far as they are known
        "schemaVersion": 1,
        "deviceProperties": [_device(record) for record in recording.of(ChunkKind.DEVICES)],
        **{key: value for key, value in versions.items() if value is not None},
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": base_ns + recording.clock_offset_ns,
        RECORDER_KEY: recorder,
    }
    head = json.dumps(properties, indent=1)
    with replacing(path, "the trace", error=CaptureError) as partial, partial.open("wb") as stream:
        stream.write(f'{head.rstrip()[:-1].rstrip()},\n"traceEvents": [\n'.encode())
        stream.write(b",\n".join(events.lines))
        stream.write(b"\n]}\n")
    is_clean = not any(one.code in {"recorder.not_ended", "recorder.unfinished"} for one in findings)
    return WrittenTrace(path, recording, events.counts, findings, frozenset(shown.values()), is_clean)


def _device(record: Any) -> dict[str, Any]:
    """One entry of deviceProperties; what the driver did not tell is left out.

    Source: libkineto/src/DeviceProperties.cpp.
    """
    numbers = {
        "totalGlobalMem": "memory_bytes", "computeMajor": "major", "maxThreadsPerBlock": "threads_per_block",
        "maxThreadsPerMultiprocessor": "threads_per_multiprocessor", "regsPerBlock": "registers_per_block",
        "warpSize": "warp_size", "sharedMemPerBlock": "shared_per_block", "numSms": "multiprocessors",
        "regsPerMultiprocessor": "registers_per_multiprocessor",
        "sharedMemPerBlockOptin": "shared_per_block_optin",
        "sharedMemPerMultiprocessor": "shared_per_multiprocessor",
    }  # fmt: skip
    known = {key: int(record[field]) for key, field in numbers.items() if record[field] > 0}
    name = bytes(record["name"]).decode("utf-8", "replace")
    # A minor version of 0 is a fact where the major one is known.
    minor = {"computeMinor": int(record["minor"])} if "computeMajor" in known else {}
    return {"id": int(record["device"]), **({"name": name} if name else {}), **known, **minor}


def recording_sidecar(
    written: WrittenTrace, kernels: Sequence[RecordedKernel], gaps: Sequence[Gap], *, created: str
) -> Sidecar:
    """The sidecar of a trace: one window, which is the whole run, without steps."""
    return Sidecar(
        trace=written.path.name,
        created=created,
        environment=Environment(
            python=platform.python_version(),
            platform=f"{platform.system()} {platform.machine()}".strip(),
            opscope=__version__,
            cuda_driver=version_text(written.recording.driver_version),
            gpu=tuple(
                GpuInfo(
                    name=bytes(device["name"]).decode("utf-8", "replace"),
                    compute_capability=f"{device['major']}.{device['minor']}",
                    sm_count=int(device["multiprocessors"]),
                    memory_bytes=int(device["memory_bytes"]),
                )
                for device in written.recording.of(ChunkKind.DEVICES)
            ),
        ),
        schedule=RecordedSchedule(wait=0, warmup=0, active=1, repeat=1, cycle=0),
        settings=RecordedSettings(False, False, False, False, activities=("cuda",), engine="cupti"),
        steps=0,
        partial=False,
        clean_window=written.is_clean,
        wall_time_ns_per_step=(),
        kernels=tuple(kernels),
        gaps=tuple(gaps),
    )
