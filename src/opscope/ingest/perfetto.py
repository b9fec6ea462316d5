"""A Perfetto trace of torch's own CUPTI recorder → the Kineto file that the recorder would have written.

The reverse of torch/profiler/_cuspy/trace.py (`_window_to_pftrace`) and torch/csrc/profiler/cuspy/
cuspy_pftrace.cpp (pytorch #187898, #191667, and #195881, which renamed the recorder from `cupti_monitor`).
The package `perfetto`, whose protobuf classes read it, is reached when such a file is. Perfetto traces of
other recorders are refused.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from opscope.errors import DependencyError, InputError
from opscope.ingest.scan import MEMBERS, ColumnKind

# Render stages (`_RENDER_STAGES`) and the categories of the recorder's own JSON.
_STAGES = {
    "Kernel": "kernel", "Memcpy": "gpu_memcpy", "Memset": "gpu_memset", "Annotation": "gpu_user_annotation",
    "EventRecord": "graph_event_node", "HostNode": "graph_host_node",
}  # fmt: skip
# Names that Perfetto's viewer would take for its own (`_RENDER_EXTRA`).
_RENAMED = {"device id": "device", "context id": "context", "stream id": "stream"}
# Names of planes in an XSpace (tensorflow/tsl, xplane.proto), which begins with the same byte.
_XLA, _HEAD_BYTES = re.compile(rb"/host:(?:metadata|CPU)|/device:[A-Z]+:\d"), 4096
_REGISTERS = 1  # iid of `registers_per_thread` (`_COMPUTE_ARGS`); of shared memory only a part is written
_NUMBERS = {ColumnKind.INTEGER: int, ColumnKind.INT32: int, ColumnKind.UNSIGNED: int, ColumnKind.REAL: float}
_TYPES = {one.key: _NUMBERS[one.kind] for one in MEMBERS if one.in_arguments and one.kind in _NUMBERS}


def write_kineto(path: Path, target: Path, name: str) -> Path:
    """Write the Kineto file; an InputError if the trace is cut off, or another recorder's."""
    try:
        from google.protobuf.message import DecodeError  # noqa: PLC0415 - optional
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace  # noqa: PLC0415
    except ImportError as error:
        raise DependencyError(
            "reading a Perfetto trace needs an extra",
            source=name,
            hint="Run: pip install 'opscope[perfetto]'; or let the profiler write .json",
        ) from error
    content = path.read_bytes()
    try:
        packets = Trace.FromString(content).packet
    except DecodeError as error:
        if _XLA.search(content[:_HEAD_BYTES]):
            hint = "opscope reads traces of torch.profiler"
            raise InputError("a profile of XLA (JAX, TensorFlow)", source=name, hint=hint) from error
        raise InputError("the Perfetto trace is cut off or damaged", source=name) from error
    encode = msgspec.json.Encoder(decimal_format="number").encode
    base_ns = next((one.timestamp for one in packets if one.HasField("clock_snapshot")), 0)
    is_of_torch = False
    with target.open("wb") as out:
        out.write(b'{"schemaVersion": 1, "baseTimeNanoseconds": %d, "traceEvents": [' % base_ns)
        for number, event in enumerate(_events(packets, base_ns, name)):
            is_of_torch |= event.get("cat") in ("kernel", "cpu_op", "cuda_runtime", "cuda_driver")
            out.write((b",\n" if number else b"\n") + encode(event))
        out.write(b"\n]}\n")
    if not is_of_torch:
        raise InputError(
            "a Perfetto trace, but not of torch's profiler",
            source=name,
            hint="opscope reads those that export_chrome_trace('NAME.pftrace') writes",
        )
    return target


def _events(packets: Any, base_ns: int, source: str) -> Iterator[dict[str, Any]]:
    names: dict[int, str] = {}
    categories: dict[int, str] = {}
    lanes: dict[int, str] = {}
    counters: dict[int, tuple[int, dict[int, str]]] = {}
    tracks: dict[int, dict[str, Any]] = {}
    for table in (one.interned_data for one in packets if one.HasField("interned_data")):
        names |= {one.iid: one.name for one in table.event_names}
        categories |= {one.iid: one.name for one in table.event_categories}
        lanes |= {one.iid: one.name for one in table.gpu_specifications}
        for one in table.gpu_counter_descriptors:
            specs = one.counter_descriptor.specs
            counters[one.iid] = one.gpu_id, {spec.counter_id: spec.name for spec in specs}
    for track in (one.track_descriptor for one in packets if one.HasField("track_descriptor")):
        kind = "process" if track.HasField("process") else "thread"
        of = getattr(track, kind)
        tracks[track.uuid] = {"pid": of.pid, **({} if kind == "process" else {"tid": of.tid})}
        label = getattr(of, f"{kind}_name")
        if label not in (str(of.pid), str(getattr(of, "tid", ""))):
            yield {"ph": "M", "name": f"{kind}_name", **tracks[track.uuid], "args": {"name": label}}
    at = partial(_us, base_ns)
    begun: deque[tuple[int, Any]] = deque()  # ends are written in the order of their begins
    for packet in packets:
        if packet.HasField("gpu_render_stage_event"):
            yield _of_device(packet.gpu_render_stage_event, names, lanes) | {"ts": at(packet.timestamp)}
        elif packet.HasField("gpu_counter_event"):
            device, of_device = counters.get(packet.gpu_counter_event.counter_descriptor_iid, (0, {}))
            for one in packet.gpu_counter_event.counters:
                value = one.double_value if one.HasField("double_value") else one.int_value
                yield {
                    "ph": "C", "name": of_device.get(one.counter_id), "pid": f"GPU {device} Counters",
                    "ts": at(packet.timestamp), "args": {"": value},
                }  # fmt: skip
        elif packet.track_event.type == packet.track_event.TYPE_SLICE_BEGIN:
            begun.append((packet.timestamp, packet.track_event))
        elif packet.track_event.type == packet.track_event.TYPE_SLICE_END:
            start_ns, slice_ = begun.popleft() if begun else (0, packet.track_event)
            if slice_.type != slice_.TYPE_SLICE_BEGIN or slice_.track_uuid != packet.track_event.track_uuid:
                raise InputError("a Perfetto trace, but not of torch's profiler", source=source)
            args = {one.name: _value(one) for one in slice_.debug_annotations}
            category = next((categories.get(one) for one in slice_.category_iids), None)
            yield {
                # Of the others, these alone have a kind (`cuda_sync`).
                "ph": "X", "cat": category or ("cuda_sync" if "cuda_sync_kind" in args else "overhead"),
                "name": names.get(slice_.name_iid), **tracks.get(slice_.track_uuid, {}),
                "ts": at(start_ns), "dur": _us(start_ns, packet.timestamp), "args": args,
            }  # fmt: skip


def _us(from_ns: int, time_ns: int) -> Decimal:
    return Decimal(time_ns - from_ns).scaleb(-3)


def _of_device(event: Any, names: dict[int, str], lanes: dict[int, str]) -> dict[str, Any]:
    stage = lanes.get(event.stage_iid, "")
    args: dict[str, Any] = {}
    for one in event.extra_data:
        key = _RENAMED.get(one.name, one.name)
        args[key] = _TYPES.get(key, str)(one.value)
    if event.HasField("launch"):
        for key, size in (("grid", event.launch.grid_size), ("block", event.launch.workgroup_size)):
            args[key] = [size.x, size.y, size.z]
        for argument in event.launch.args:
            if argument.name_iid == _REGISTERS:
                args["registers per thread"] = argument.uint_value
    return {
        "ph": "X", "cat": _STAGES.get(stage, stage), "name": names.get(event.name_iid) or stage,
        "pid": event.gpu_id, "tid": args.get("stream"), "dur": _us(0, event.duration), "args": args,
    }  # fmt: skip


def _value(annotation: Any) -> Any:
    """A value of JSON; an empty object and an empty list are written alike, as nothing."""
    if annotation.dict_entries:
        return {one.name: _value(one) for one in annotation.dict_entries}
    kind = annotation.WhichOneof("value")
    return [_value(one) for one in annotation.array_values] if kind is None else getattr(annotation, kind)
