"""Memory snapshots: the peak, who holds it, and files that are none."""

import gzip
import pickle

import pytest

from opscope.errors import InputError
from opscope.ingest.memory_snapshot import (
    DeviceMemory,
    Holding,
    OutOfMemory,
    is_memory_snapshot,
    read_memory_snapshot,
)

MB = 1 << 20
TORCH = "/usr/lib/python3/site-packages/torch"
OF_TRAIN = {"filename": "/home/u/train.py", "line": 40, "name": "main"}
CPP = {"filename": "??", "line": 0, "name": "at::native::empty"}
FORWARD = [
    CPP,
    {"filename": f"{TORCH}/nn/functional.py", "line": 9, "name": "linear"},
    {"filename": f"{TORCH}/nn/modules/linear.py", "line": 134, "name": "forward"},
    {"filename": f"{TORCH}/nn/modules/module.py", "line": 1779, "name": "inner"},
    {"filename": f"{TORCH}/nn/modules/module.py", "line": 1882, "name": "_call_impl"},
    {"filename": f"{TORCH}/nn/modules/module.py", "line": 1776, "name": "_wrapped_call_impl"},
    CPP,
    {"filename": "/home/u/model.py", "line": 12, "name": "forward"},
    {"filename": f"{TORCH}/nn/modules/module.py", "line": 7, "name": "_call_impl"},
    {"filename": "/home/u/engine.py", "line": 70, "name": "forward"},  # no module's
    OF_TRAIN,
]
OPTIMIZER = [CPP, {"filename": f"{TORCH}/optim/adam.py", "line": 3, "name": "_init_group"}, OF_TRAIN]
MODEL = [CPP, {"filename": f"{TORCH}/nn/modules/module.py", "line": 5, "name": "_apply"}, OF_TRAIN]
MODULES = ("/home/u/model.py:12", f"{TORCH}/nn/modules/linear.py:134")
LINE_OF_FORWARD, LINE_OF_TRAIN = "/home/u/model.py:12 forward", "/home/u/train.py:40 main"


def event(action, addr, size_mb, frames=[], **more):  # noqa: B006
    return {"action": action, "addr": addr, "size": size_mb * MB, "stream": 0, "frames": frames, **more}


# Weights of 3 MB, rounded up to 4, and 2 MB more were there before; 10 + 20 MB of the forward pass come, then
# 8 of the backward pass. The forward's 20 go first; 6 of the optimizer stay.
EVENTS = [
    event("segment_alloc", 0, 40),
    event("alloc", 100, 10, FORWARD, time_us=1000),
    event("segment_alloc", 1, 20),
    event("alloc", 200, 20, FORWARD, time_us=2000),
    event("alloc", 300, 8, [CPP], time_us=3000),
    {"action": "oom", "size": 99 * MB, "device_free": 7 * MB, "stream": 0, "frames": FORWARD},
    event("free_requested", 200, 20),
    event("free_completed", 200, 20, time_us=4000),
    event("alloc", 400, 6, OPTIMIZER, time_us=5000),
    event("free_completed", 100, 10, OPTIMIZER),
    event("free_completed", 500, 2, OPTIMIZER),
    event("free_completed", 300, 8, time_us=6000),
]
SEGMENTS = [
    {
        "device": 0, "address": 10, "total_size": 40 * MB, "stream": 0, "segment_type": "large",
        "blocks": [
            {"size": 4 * MB, "requested_size": 3 * MB, "address": 50, "state": "active_allocated",
             "frames": MODEL},
            {"size": 36 * MB, "requested_size": 0, "address": 54, "state": "inactive", "frames": []},
        ],
    },
    {
        "device": 0, "address": 400, "total_size": 20 * MB, "stream": 0, "segment_type": "large",
        "blocks": [
            {"size": 6 * MB, "requested_size": 6 * MB, "address": 400, "state": "active_awaiting_free",
             "frames": OPTIMIZER},
            {"size": 14 * MB, "requested_size": 0, "address": 406, "state": "inactive", "frames": []},
        ],
    },
]  # fmt: skip


def written(path, *, events=EVENTS, pack=open):
    with pack(path, "wb") as file:
        pickle.dump({"segments": SEGMENTS, "device_traces": [events], "allocator_settings": {}}, file)
    return path


def test_the_peak_is_found_by_going_back_from_the_end(tmp_path):
    (found,) = read_memory_snapshot(written(tmp_path / "snapshot.pickle"))
    assert found == DeviceMemory(
        device=0,
        has_history=True,
        peak_bytes=43 * MB,
        reserved_bytes=60 * MB,
        end_bytes=9 * MB,
        end_reserved_bytes=60 * MB,
        largest_unused_bytes=36 * MB,
        rounding_bytes=MB,
        holdings=(
            Holding("forward", LINE_OF_FORWARD, MODULES, 30 * MB, 2),
            Holding("backward", None, (), 8 * MB, 1),
            Holding("model", LINE_OF_TRAIN, (), 3 * MB, 1),
            Holding("unknown", None, (), 2 * MB, 1),
        ),
        out_of_memory=(OutOfMemory(99 * MB, 7 * MB, 43 * MB, 60 * MB, LINE_OF_FORWARD),),
        curve=found.curve,
    )
    assert [used // MB for _, used, _ in found.curve] == [5, 15, 15, 35, 43, 23, 29, 19, 17, 9]
    assert [held // MB for *_, held in found.curve] == [40, 40, 60, 60, 60, 60, 60, 60, 60, 60]


def test_without_history_what_is_there_is_told(tmp_path):
    (found,) = read_memory_snapshot(written(tmp_path / "s.pickle.gz", events=[], pack=gzip.open))
    assert (found.has_history, found.peak_bytes, found.curve) == (False, 9 * MB, ())
    assert [one.kind for one in found.holdings] == ["optimizer", "model"]


class Harmful:
    def __reduce__(self):
        return print, ("run",)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (pickle.dumps({"segments": [], "device_traces": [Harmful()]}), "asks for builtins.print"),
        (pickle.dumps({"segments": []}), "KeyError"),
        (pickle.dumps({"segments": [], "device_traces": []}), "without memory of a device"),
        (pickle.dumps({"segments": SEGMENTS, "device_traces": [[{}]]}), "KeyError"),
        (pickle.dumps({"segments": SEGMENTS})[:60], "not a memory snapshot"),
        (
            pickle.dumps({"segments": [], "device_traces": [[{**EVENTS[5], "device_free": "x"}]]}),
            "ValueError",
        ),
    ],
    ids=["code", "keys", "empty", "event", "cut", "text"],
)
def test_what_is_no_snapshot_is_refused(tmp_path, capsys, content, reason):
    path = tmp_path / "s.pickle"
    path.write_bytes(content)
    with pytest.raises(InputError, match=reason):
        read_memory_snapshot(path)
    assert "run" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "is_one"),
    [
        (pickle.dumps({"segments": []}), True),
        (gzip.compress(pickle.dumps({"device_traces": []})), True),
        (pickle.dumps({"weights": []}), False),
        (b'{"traceEvents": "segments"}', False),
        (b"\x1f\x8bsegments", False),
    ],
    ids=["plain", "packed", "weights", "trace", "broken"],
)
def test_snapshots_are_known_by_how_they_begin(tmp_path, content, *, is_one):
    path = tmp_path / "file"
    path.write_bytes(content)
    assert is_memory_snapshot(path) is is_one
    assert not is_memory_snapshot(tmp_path / "missing")
