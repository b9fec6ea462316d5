"""Memory snapshots of PyTorch (`torch.cuda.memory._dump_snapshot`): who holds a device's memory at its peak.

A snapshot holds the allocator's blocks as they were when it was taken, and what was allocated and freed
before, as far back as its history reaches. So memory is followed back from the end, and from there on to the
peak. A snapshot is a pickle: only plain values are read from it, and anything else refuses the file.

Source: torch/cuda/memory.py, `_snapshot`; torch/csrc/cuda/memory_snapshot.cpp.
"""

from __future__ import annotations

import gzip
import pickle
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from opscope.errors import InputError
from opscope.model.origin import is_program_file
from opscope.model.queries import grouped

PICKLED = re.compile(rb"\x80[\2-\5]")
KEYS = (b"segments", b"device_traces")  # of a snapshot
_HEAD_BYTES = 1 << 16
_HINT = "Write one with torch.cuda.memory._dump_snapshot(FILE)"

# The stack on which memory was asked for; None where that was before the history begins.
_Frames = Sequence[Mapping[str, Any]] | None


class Holding(NamedTuple):
    """Memory of one kind that one line of the program asked for; None where no line of it is on the stack."""

    kind: str
    line: str | None
    # Where the forward methods of nn.Modules stood, the outermost first: a stack holds no instances
    forwards: tuple[str, ...]
    size_bytes: int
    blocks: int


class OutOfMemory(NamedTuple):
    asked_bytes: int
    free_bytes: int | None  # that the driver still had
    allocated_bytes: int
    reserved_bytes: int
    line: str | None


class DeviceMemory(msgspec.Struct, frozen=True):
    """Memory of one device over the time that a snapshot's history reaches back."""

    device: int
    has_history: bool  # without it the peak is what there was when the snapshot was taken
    peak_bytes: int
    reserved_bytes: int  # at the peak
    end_bytes: int  # when the snapshot was taken
    end_reserved_bytes: int
    largest_unused_bytes: int  # block, at the end: what fits without asking the driver
    rounding_bytes: int  # at the end, in blocks larger than what was asked for
    holdings: tuple[Holding, ...]  # at the peak, the largest first
    out_of_memory: tuple[OutOfMemory, ...]
    # Microseconds since the first event, allocated and reserved bytes, after each event that changed them
    curve: tuple[tuple[int, int, int], ...]


def is_memory_snapshot(path: Path) -> bool:
    """Whether a regular file begins as a snapshot does. A pipe is not opened: it can be read only once."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file, _unpacked(file) as stream:
            head = stream.read(_HEAD_BYTES)
    except (OSError, EOFError, zlib.error):
        return False
    return PICKLED.match(head) is not None and any(key in head for key in KEYS)


def _unpacked(file: BinaryIO) -> BinaryIO | gzip.GzipFile:
    is_packed = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    return gzip.GzipFile(fileobj=file) if is_packed else file


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which a memory snapshot does not hold")


def read_memory_snapshot(path: Path) -> list[DeviceMemory]:
    """The memory of each device that a snapshot knows anything of; an InputError if it is none."""
    try:
        with path.open("rb") as file, _unpacked(file) as stream:
            document = _PlainUnpickler(stream).load()
        devices = {int(one["device"]) for one in document["segments"]}
        devices |= {device for device, events in enumerate(document["device_traces"]) if events}
        found = [_device_memory(device, document) for device in sorted(devices)]
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror or error})", source=path) from error
    # Whatever a broken pickle, or one of something else, makes Python raise.
    except Exception as error:
        raise InputError(
            f"not a memory snapshot of PyTorch ({type(error).__name__}: {error})", source=path, hint=_HINT
        ) from error
    if not found:
        raise InputError("a memory snapshot without memory of a device", source=path, hint=_HINT)
    return found


class _State:
    """Blocks in use by address, and what the allocator has of the driver."""

    def __init__(self, blocks: dict[int, tuple[int, _Frames]], reserved_bytes: int) -> None:
        self.blocks, self.reserved_bytes = blocks, reserved_bytes
        self.allocated_bytes = sum(size for size, _ in blocks.values())

    def apply(self, event: Mapping[str, Any], *, is_back: bool = False) -> None:
        """What an event does to memory, or undo it. What is freed is in use until that is completed."""
        action = event["action"]
        if action == ("free_completed" if is_back else "alloc"):
            # Where it is freed is not where it was asked for.
            self.blocks[event["addr"]] = int(event["size"]), None if is_back else event.get("frames") or ()
            self.allocated_bytes += int(event["size"])
        elif action in ("alloc", "free_completed"):
            self.allocated_bytes -= self.blocks.pop(event["addr"], (0, ()))[0]
        elif action in _MORE or action in _LESS:
            self.reserved_bytes += int(event["size"]) * (1 if (action in _MORE) != is_back else -1)


_MORE, _LESS = ("segment_alloc", "segment_map"), ("segment_free", "segment_unmap")


def _device_memory(device: int, document: Mapping[str, Any]) -> DeviceMemory:
    segments = [one for one in document["segments"] if one["device"] == device]
    traces = document["device_traces"]
    events = traces[device] if device < len(traces) else []
    used = dict(_used(segments))
    # As in the history, what was asked for.
    asked_bytes = {at: one.get("requested_size", one["size"]) for at, one in used.items()}
    state = _State(
        {at: (asked_bytes[at], one.get("frames") or None) for at, one in used.items()},
        sum(int(one["total_size"]) for one in segments),
    )
    end_bytes, end_reserved_bytes = state.allocated_bytes, state.reserved_bytes
    for event in reversed(events):
        state.apply(event, is_back=True)
    before = _State(dict(state.blocks), state.reserved_bytes)
    peak, peak_at, failures = (state.allocated_bytes, state.reserved_bytes), 0, list[OutOfMemory]()
    curve = list[tuple[int, int, int]]()
    first_us = int(events[0].get("time_us", 0)) if events else 0
    for number, event in enumerate(events, 1):
        state.apply(event)
        now = state.allocated_bytes, state.reserved_bytes
        if not curve or curve[-1][1:] != now:
            curve.append((int(event.get("time_us", 0)) - first_us, *now))
        if now[0] > peak[0]:
            peak, peak_at = now, number
        if event["action"] == "oom":
            line, free = _line(event.get("frames") or ()), event.get("device_free")
            free_bytes = None if free is None else int(free)
            failures.append(OutOfMemory(int(event["size"]), free_bytes, *now, line))
    for event in events[:peak_at]:
        before.apply(event)
    sizes = grouped(
        ((_kind(frames), _line(frames), _forwards(frames)), size) for size, frames in before.blocks.values()
    )
    holdings = [Holding(*key, sum(mine), len(mine)) for key, mine in sizes.items()]
    rounding_bytes = sum(int(one["size"]) - int(asked_bytes[at]) for at, one in used.items())
    unused = [int(one["size"]) for each in segments for one in each["blocks"] if one["state"] == "inactive"]
    return DeviceMemory(
        device,
        bool(events),
        *peak,
        end_bytes,
        end_reserved_bytes,
        max(unused, default=0),
        rounding_bytes,
        tuple(sorted(holdings, key=lambda one: (-one.size_bytes, one.kind, one.line or "", one.forwards))),
        tuple(failures),
        tuple(curve),
    )


def _used(segments: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The blocks in use by address, which some releases do not give."""
    for segment in segments:
        address = int(segment["address"])
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                yield int(block.get("address", address)), block
            address += int(block["size"])


def _python(frames: _Frames) -> list[tuple[str, str, int]]:
    """File, function and line of each Python frame, the innermost first."""
    found = [
        (str(one.get("filename", "")), str(one.get("name", "")), one.get("line", 0)) for one in frames or ()
    ]
    return [one for one in found if one[0].endswith(".py") or one[0].startswith("<")]


def _line(frames: _Frames) -> str | None:
    return next(
        (f"{file}:{line} {name}" for file, name, line in _python(frames) if is_program_file(file)), None
    )


def _forwards(frames: _Frames) -> tuple[str, ...]:
    """What `Module._call_impl` called, but hooks."""
    outermost = _python(frames)[::-1]
    return tuple(
        f"{file}:{line}"
        for (caller, *_), (file, name, line) in pairwise(outermost)
        if name == "forward" and caller.endswith("/torch/nn/modules/module.py")
    )


def _kind(frames: _Frames) -> str:
    """What memory is for, by the stack on which it was asked for."""
    if frames is None:
        return "unknown"
    python = _python(frames)
    if any("/torch/optim/" in file for file, _, _ in python):
        return "optimizer"
    # The backward pass of a GPU runs on a thread without Python, and may have no stack at all.
    if not python or any(name == "backward" for _, name, _ in python):
        return "backward"
    if any(name in ("_apply", "__init__", "reset_parameters", "from_pretrained") for _, name, _ in python):
        return "model"
    return "forward" if any(name in ("forward", "_call_impl") for _, name, _ in python) else "other"
