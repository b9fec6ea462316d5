"""A `.pftrace` of torch's own recorder becomes the rows that its `.json` becomes.

The files are written by Perfetto's protobuf classes as cuspy_pftrace.cpp writes them; a real one was not at
hand.
"""

import gzip
import re
import sys

import pytest

from fakes import TraceBuilder
from opscope.errors import DependencyError, InputError
from opscope.results import load

pb = pytest.importorskip(
    "perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="perfetto is not installed"
)

BASE_NS = 1_785_000_000_000_000_000
STAGES = ("Kernel", "Memcpy", "Memset", "Annotation")
CATEGORIES = ("cpu_op", "cuda_runtime", "user_annotation")
BY_CATEGORY = {"kernel": 1, "gpu_memcpy": 2, "gpu_memset": 3, "gpu_user_annotation": 4}
AS_EXTRA = {"device": "device id", "context": "context id", "stream": "stream id"}
_ROWS = {
    "operators": "name, start_ns, duration_ns, input_shapes, input_types, self_device_ns, step",
    "runtime_calls": "name, start_ns, duration_ns, correlation_id, step",
    "device_activities": "kind, device, stream, start_ns, duration_ns, grid_x, block_y, size_bytes, "
    "registers_per_thread, graph_id, attribution, operator_id, step",
    "kernel_names": "kind, name",
    "collectives": "side, name, data_type, in_element_count, group_name",
    "counters": "name, device, time_ns, value",
    "syncs": "kind, device, stream, start_ns, wait_on_stream",
    "overheads": "name, start_ns, duration_ns",
    "steps": "step, start_ns, duration_ns, device_ns, kernel_count",
    "threads": "process, native_thread, process_name, name",
}


def recorded():
    """What the recorder's JSON would hold."""
    trace = TraceBuilder(baseTimeNanoseconds=BASE_NS).step(7, 0, 100)
    trace.operator(
        "aten::mm",
        1,
        20.5,
        **{"Input Dims": [[8, 16], []], "Input type": ["float", ""], "Sequence number": 3},
    )
    trace.launch(2).kernel("void gemm<float>(int)", 30, 10.25, grid=[4, 1, 1], block=[128, 2, 1])
    trace.operator("aten::copy_", 22, 5)
    trace.launch(23, name="cudaMemcpyAsync").kernel("Memcpy", 45, 2, category="gpu_memcpy", bytes=4096)
    trace.operator("c10d::allreduce_", 50, 9).launch(52)
    described = {
        "Collective name": "allreduce",
        "dtype": "Float",
        "In msg nelems": 12,
        "Process Group Name": "0",
    }
    trace.kernel("ncclDevKernel", 60, 5, stream=20, **described)
    sync = {"cuda_sync_kind": "Stream Sync", "stream": 7, "device": 0, "context": 1, "correlation": 9}
    trace.event("cuda_sync", "Stream Sync", 70, 3, 7, sync, process=0)
    trace.event("overhead", "Activity Buffer Request", 80, 1, 0, {}, process=2147483647)
    for name, time, value in (("SM Active (%)", 31, 87.5), ("Cycles (Current Kernel)", 30, 12_345)):
        place = {"pid": "GPU 0 Counters", "ts": time, "args": {"": value}}
        trace.events.append({"ph": "C", "name": name, **place})
    for event in trace.events:  # as the recorder's kernels have them
        if event.get("cat") in BY_CATEGORY:
            event["args"] |= {"device": event["pid"], "context": 1}
            if event["cat"] == "kernel":
                event["args"]["registers per thread"] = 32
    return trace


def in_perfetto(events):
    """The same in packets: slices begin group by group, then end in the same order."""
    spans = [one for one in events if one["ph"] == "X"]
    host = [one for one in spans if one["cat"] not in BY_CATEGORY]
    device = [one for one in spans if one["cat"] in BY_CATEGORY]
    samples = [one for one in events if one["ph"] == "C"]
    names = sorted({one["name"] for one in spans})
    counters = sorted({one["name"] for one in samples})
    trace = pb.Trace()
    snapshot = trace.packet.add(timestamp=BASE_NS)
    snapshot.clock_snapshot.clocks.add(clock_id=6, timestamp=BASE_NS)
    tracks = add_tracks(trace, host, [one for one in events if one["ph"] == "M"])
    table = trace.packet.add(trusted_packet_sequence_id=1, sequence_flags=1).interned_data
    for entries, texts in (
        (table.event_names, names), (table.event_categories, CATEGORIES), (table.gpu_specifications, STAGES),
    ):  # fmt: skip
        for iid, text in enumerate(texts, 1):
            entries.add(iid=iid, name=text)
    descriptor = table.gpu_counter_descriptors.add(iid=1, gpu_id=0).counter_descriptor
    for number, text in enumerate(counters):
        descriptor.specs.add(counter_id=number, name=text)

    def packet(us):
        return trace.packet.add(timestamp=BASE_NS + round(us * 1000), trusted_packet_sequence_id=1)

    for one in host:
        begin(packet(one["ts"]).track_event, one, tracks, names)
    for one in host:
        end = packet(one["ts"] + one["dur"]).track_event
        end.type, end.track_uuid = 2, tracks[one["pid"], one["tid"]]
    for number, one in enumerate(device, 1):
        stage(packet(one["ts"]).gpu_render_stage_event, one, number, names)
    for one in samples:
        event = packet(one["ts"]).gpu_counter_event
        event.counter_descriptor_iid, value = 1, one["args"][""]
        key = "int_value" if isinstance(value, int) else "double_value"
        event.counters.add(counter_id=counters.index(one["name"]), **{key: value})
    return trace


def add_tracks(trace, host, labels):
    """A track for each process and each of its threads; their uuids."""
    label = {(one["name"], one["pid"], one.get("tid")): one["args"].get("name") for one in labels}
    tracks = {}
    for pid, tid in dict.fromkeys((one["pid"], one["tid"]) for one in host):
        if pid not in tracks:
            tracks[pid] = len(tracks) + 1
            process = trace.packet.add().track_descriptor
            process.uuid, process.process.pid = tracks[pid], pid
            process.process.process_name = label.get(("process_name", pid, None)) or str(pid)
        tracks[pid, tid] = len(tracks) + 1
        thread = trace.packet.add().track_descriptor
        thread.uuid, thread.parent_uuid = tracks[pid, tid], tracks[pid]
        thread.thread.pid, thread.thread.tid = pid, tid
        thread.thread.thread_name = label.get(("thread_name", pid, tid)) or str(tid)
    return tracks


def begin(event, one, tracks, names):
    event.type, event.track_uuid = 1, tracks[one["pid"], one["tid"]]
    event.name_iid = names.index(one["name"]) + 1
    if one["cat"] in CATEGORIES:
        event.category_iids.append(CATEGORIES.index(one["cat"]) + 1)
    for key, value in one["args"].items():
        annotate(event.debug_annotations.add(name=key), value)


def stage(event, one, number, names):
    event.event_id, event.duration = number, round(one["dur"] * 1000)
    event.gpu_id, event.stage_iid = one["pid"], BY_CATEGORY[one["cat"]]
    args = dict(one["args"])
    if one["cat"] == "kernel":
        event.name_iid = names.index(one["name"]) + 1
        for size, key in ((event.launch.grid_size, "grid"), (event.launch.workgroup_size, "block")):
            size.x, size.y, size.z = args.pop(key, (1, 1, 1))
        event.launch.args.add(name_iid=1, uint_value=args.pop("registers per thread"))
    for key, value in args.items():
        event.extra_data.add(name=AS_EXTRA.get(key, key), value=str(value))


def annotate(annotation, value):
    if isinstance(value, list):
        for one in value:
            annotate(annotation.array_values.add(), one)
    elif isinstance(value, str):
        annotation.string_value = value
    else:
        annotation.int_value = value


def test_a_perfetto_trace_becomes_the_rows_of_the_json(make_trace, tmp_path):
    trace = recorded()
    written = in_perfetto(trace.events)
    path = tmp_path / "trace.pftrace"
    path.write_bytes(gzip.compress(written.SerializeToString()))
    with load(make_trace(trace)) as json, load(path) as perfetto:
        for table, columns in _ROWS.items():
            rows = json.query(f"SELECT {columns} FROM {table} ORDER BY ALL")
            assert perfetto.query(f"SELECT {columns} FROM {table} ORDER BY ALL") == rows
            assert rows, table
        assert all(check.holds for check in perfetto.check())
        assert perfetto.scalar("SELECT base_time_ns FROM traces") == BASE_NS


def test_a_cut_file_and_a_perfetto_trace_of_something_else_are_refused(tmp_path):
    path = tmp_path / "trace.pftrace"
    path.write_bytes(in_perfetto(recorded().events).SerializeToString()[:-3])
    with pytest.raises(InputError, match="cut off or damaged"):
        load(path)
    path.write_bytes(b"\x0a\xa1\xf0\x08\x12\x0e/host:metadata")
    with pytest.raises(InputError, match="a profile of XLA"):
        load(path)
    path.write_bytes(pb.Trace(packet=[pb.TracePacket(timestamp=1)] * 9).SerializeToString())
    with pytest.raises(InputError, match="not of torch's profiler"):
        load(path)
    trace = in_perfetto(recorded().events)
    first = next(one for one in trace.packet if one.track_event.type == 2)
    first.track_event.track_uuid = 99
    path.write_bytes(trace.SerializeToString())
    with pytest.raises(InputError, match=re.escape("not of torch's profiler")):
        load(path)


def test_without_the_package_the_error_says_what_to_install(tmp_path, monkeypatch):
    path = tmp_path / "trace.pftrace"
    path.write_bytes(in_perfetto(recorded().events).SerializeToString())
    monkeypatch.setitem(sys.modules, "perfetto.protos.perfetto.trace.perfetto_trace_pb2", None)
    with pytest.raises(DependencyError) as caught:
        load(path)
    assert "opscope[perfetto]" in str(caught.value.hint)
