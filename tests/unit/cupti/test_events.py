"""Records become events: exact times, Kineto's words, nothing counted twice."""

import json
from decimal import Decimal

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from case_tables import cases
from opscope.cupti.recording import ABSENT, RECORDS, ChunkKind, TextTable
from opscope.cupti.trace_file import _rows, call_name, first_moment_ns, process_events

SHOWN = ("gpu_memcpy", "gpu_memset", "overhead")
BASE_NS = 1_790_857_026_000_000_000


def at(start, end, **fields):
    return {"start_ns": BASE_NS + start, "end_ns": BASE_NS + end, **fields}


KERNEL = {
    "name": 3, "correlation": 8, "context": 1, "stream": 7, "grid": (264, 1, 1), "block": (256, 1, 1),
    "static_shared_bytes": 128, "dynamic_shared_bytes": 1024, "registers": 32,
}  # fmt: skip
CALL = {"thread": 4712, "function": 211, "correlation": 8}
DEVICE = {"device": 0, "multiprocessors": 132}
NAMES = {
    TextTable.RUNTIME_FUNCTION: {211: "cudaLaunchKernel_v7000"},
    TextTable.DRIVER_FUNCTION: {307: "cuLaunchKernel"},
}


def events_of(recording, category=None):
    lines = process_events(recording, {3: "add(int, float*)"}, BASE_NS).lines
    return [one for one in map(json.loads, lines) if category in (None, one.get("cat"))]


def test_a_kernel(make_recording):
    recording = make_recording(
        {ChunkKind.KERNELS: [at(1_234_567, 1_235_568, **KERNEL)], ChunkKind.DEVICES: [DEVICE]}
    )
    (event,) = events_of(recording, "kernel")
    assert event == {
        "ph": "X", "cat": "kernel", "name": "add(int, float*)", "pid": 0, "tid": 7, "ts": 1234.567,
        "dur": 1.001,
        "args": {
            "correlation": 8, "device": 0, "context": 1, "stream": 7, "registers per thread": 32,
            "shared memory": 1152, "blocks per SM": 2.0, "warps per SM": 16.0, "grid": [264, 1, 1],
            "block": [256, 1, 1],
        },
    }  # fmt: skip


def test_kernels_without_a_name_of_a_graph_alike_and_different(make_recording):
    row = at(1, 2, **KERNEL, device=1, graph=5, graph_node=1 << 40)
    (event,) = events_of(make_recording({ChunkKind.KERNELS: [row]}), "kernel")
    assert "blocks per SM" not in event["args"]
    assert (event["args"]["graph id"], event["args"]["graph node id"]) == (5, 1 << 40)
    recording = make_recording({ChunkKind.KERNELS: [at(1, 2, **{**KERNEL, "name": ABSENT})]})
    assert events_of(recording, "kernel")[0]["name"] == "<unknown kernel>"
    rows = [
        at(1000 * index, 1000 * index + 500, **KERNEL | {"correlation": index, "registers": 32 + index % 2})
        for index in range(1, 5)
    ]
    events = events_of(make_recording({ChunkKind.KERNELS: rows}), "kernel")
    assert [event["args"]["correlation"] for event in events] == [1, 2, 3, 4]
    assert [event["args"]["registers per thread"] for event in events] == [33, 32, 33, 32]


def test_copies_and_sets(make_recording):
    place = {"context": 1, "stream": 7, "source_device": ABSENT, "target_device": ABSENT}
    recording = make_recording(
        {
            ChunkKind.COPIES: [
                at(0, 1000, size_bytes=4096, kind=1, source=1, target=3, correlation=9, **place),
                at(5, 5, size_bytes=16, kind=10, source=3, target=3, **{**place, "target_device": 1}),
            ],
            ChunkKind.SETS: [at(10, 20, size_bytes=64, memory_kind=3, stream=7)],
        }
    )
    first, second = events_of(recording, "gpu_memcpy")
    assert first["name"] == "Memcpy HtoD (Pageable -> Device)"
    assert first["args"] == {
        "device": 0, "context": 1, "stream": 7, "correlation": 9, "bytes": 4096,
        "memory bandwidth (GB/s)": 4.096,
    }  # fmt: skip
    assert second["name"] == "Memcpy PtoP (Device -> Device)"
    assert second["args"]["toDevice"] == 1
    assert "fromDevice" not in second["args"]
    assert "memory bandwidth (GB/s)" not in second["args"]
    (event,) = events_of(recording, "gpu_memset")
    assert (event["name"], event["args"]["bytes"]) == ("Memset (Device)", 64)


def test_copies_of_unified_memory_have_a_device_and_no_stream(make_recording):
    recording = make_recording(
        {
            ChunkKind.MIGRATIONS: [
                at(0, 1500, size_bytes=2 << 20, kind=1, source=ABSENT, target=1),
                at(10, 20, size_bytes=65536, kind=2, source=1, target=ABSENT),
            ]
        }
    )
    events = events_of(recording, "gpu_memcpy")
    assert [event["name"] for event in events] == ["Memcpy Unified HtoD", "Memcpy Unified DtoH"]
    assert {(event["pid"], event["tid"], event["args"]["device"]) for event in events} == {
        (1, "unified memory", 1)
    }
    assert all("stream" not in event["args"] and "correlation" not in event["args"] for event in events)
    labels = [one for one in events_of(recording) if one["ph"] == "M" and one["pid"] == 1]
    assert [one["args"] for one in labels if one["name"] == "thread_name"] == [{"name": "unified memory"}]


def test_calls_and_arrows(make_recording):
    recording = make_recording(
        {
            ChunkKind.KERNELS: [at(100, 200, **KERNEL), at(300, 400, **{**KERNEL, "correlation": 99})],
            ChunkKind.RUNTIME_CALLS: [at(10, 20, **CALL), at(30, 40, **{**CALL, "correlation": 9})],
            ChunkKind.DRIVER_CALLS: [at(50, 60, thread=4712, function=307, correlation=10)],
        },
        {**NAMES, TextTable.THREAD: {4712: "worker"}},
    )
    (first, second) = events_of(recording, "cuda_runtime")
    assert first == {
        "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 4711, "tid": 4712, "ts": 0.010,
        "dur": 0.010, "args": {"cbid": 211, "correlation": 8},
    }  # fmt: skip
    assert second["args"]["correlation"] == 9
    assert [one["name"] for one in events_of(recording, "cuda_driver")] == ["cuLaunchKernel"]
    arrows = events_of(recording, "ac2g")
    assert [(one["ph"], one["id"], one["pid"], one["tid"], one["ts"]) for one in arrows] == [
        ("s", 8, 4711, 4712, 0.010), ("f", 8, 0, 7, 0.100),
    ]  # fmt: skip
    labels = {
        (one["name"], one["pid"], one["tid"]): one["args"] for one in events_of(recording) if one["ph"] == "M"
    }
    assert labels["process_name", 4711, 0] == {"name": "add"}
    assert labels["thread_name", 4711, 4712] == {"name": "thread 4712 (worker)"}
    assert labels["thread_name", 0, 7] == {"name": "stream 7"}
    assert labels["process_labels", 0, 0] == {"labels": "GPU 0"}


def test_the_runtimes_own_calls_of_the_driver_are_left_out(make_recording):
    driver = {"function": 307}
    recording = make_recording(
        {
            ChunkKind.RUNTIME_CALLS: [at(100, 200, **CALL), at(300, 400, **CALL)],
            ChunkKind.DRIVER_CALLS: [
                at(110, 120, thread=4712, correlation=1, **driver),  # inside
                at(100, 200, thread=4712, correlation=2, **driver),  # inside, to the nanosecond
                at(110, 120, thread=4713, correlation=3, **driver),  # on another thread
                at(190, 210, thread=4712, correlation=4, **driver),  # begins in one and ends after it
                at(50, 60, thread=4712, correlation=5, **driver),  # before all
                at(210, 220, thread=4712, correlation=6, **driver),  # between
            ],
        },
        NAMES,
    )
    events = events_of(recording, "cuda_driver")
    assert sorted(one["args"]["correlation"] for one in events) == [3, 4, 5, 6]
    assert process_events(recording, {}, BASE_NS).counts["calls"] == 6


def test_what_has_not_ended_is_counted_and_left_out(make_recording):
    rows = [
        at(100, 200, **KERNEL),
        {**at(300, 0, **KERNEL), "end_ns": 0},
        {**KERNEL, "start_ns": 0, "end_ns": 0},
    ]
    found = process_events(make_recording({ChunkKind.KERNELS: rows}), {}, BASE_NS)
    assert (found.counts["kernels"], found.unfinished_count) == (1, 2)


def test_overheads_and_the_window_also_of_a_process_that_was_killed(make_recording):
    recording = make_recording({ChunkKind.OVERHEADS: [at(5, 10, kind=1 << 16)]})
    (event,) = events_of(recording, "overhead")
    assert (event["name"], event["pid"], event["ts"]) == ("Buffer Flush", -1, 0.005)
    (window,) = events_of(recording, "Trace")
    assert (window["ts"], window["dur"]) == (0.0, 1000.0)
    recording = make_recording({ChunkKind.KERNELS: [at(100, 2000, **KERNEL)]}, end_ns=None)
    (window,) = events_of(recording, "Trace")
    assert window["dur"] == 2.0


def test_time_begins_with_the_first_event(make_recording):
    recording = make_recording({ChunkKind.RUNTIME_CALLS: [at(-500, 20, **CALL), {**CALL, "start_ns": 0}]})
    assert first_moment_ns(recording) == BASE_NS - 500
    assert first_moment_ns(make_recording({})) == BASE_NS


@given(st.integers(0, 10**15 - 1), st.integers(0, 10**15 - 1))
def test_times_keep_every_nanosecond_for_eleven_days(start, duration):
    records = np.zeros(1, RECORDS[ChunkKind.OVERHEADS])
    records["start_ns"], records["end_ns"] = BASE_NS + start, BASE_NS + start + duration
    (row,) = _rows(records, BASE_NS)
    for found, wanted in ((row["ts"], start), (row["dur"], duration)):
        assert Decimal(msgspec.json.encode(found).decode()) * 1000 == wanted


@cases("name", "is_driver", "shown")
def test_names_of_calls(name, is_driver, shown):
    assert call_name(name, 307, is_driver=is_driver) == shown


def test_names_of_what_is_unknown(make_recording):
    recording = make_recording(
        {
            ChunkKind.COPIES: [at(0, 1, kind=77, source=1, target=88)],
            ChunkKind.SETS: [at(0, 1, memory_kind=99)],
            ChunkKind.MIGRATIONS: [at(0, 1, kind=8), at(1, 2, kind=9)],
            ChunkKind.OVERHEADS: [at(0, 1, kind=99)],
        }
    )
    named = {one["name"] for one in events_of(recording) if one.get("cat") in SHOWN}
    assert named == {
        "Memcpy <unknown> (Pageable -> <unknown>)", "Memset (<unknown>)", "Memcpy Unified DtoD",
        "Memcpy Unified <unknown>", "Unknown",
    }  # fmt: skip
