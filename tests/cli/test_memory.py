"""`opscope analyze` of memory snapshots."""

import json
import pickle

MB = 1 << 20
CALL = {"filename": "/site-packages/torch/nn/modules/module.py", "line": 7, "name": "_call_impl"}
FORWARD = [
    {"filename": "/site-packages/torch/nn/modules/linear.py", "line": 134, "name": "forward"},
    CALL,
    {"filename": "/home/u/model.py", "line": 12, "name": "forward"},
    CALL,
]


def snapshot(path, **more):
    blocks = [
        {"size": 600 * MB, "address": 1, "state": "active_allocated", "frames": FORWARD},
        {"size": 400 * MB, "address": 2, "state": "inactive", "frames": []},
    ]
    segment = {"device": 0, "address": 1, "total_size": 1000 * MB, "blocks": blocks}
    events = [
        {"action": "segment_alloc", "addr": 1, "size": 1000 * MB, "time_us": 5},
        {"action": "alloc", "addr": 1, "size": 600 * MB, "time_us": 9, "frames": FORWARD},
        {"action": "oom", "size": 900 * MB, "device_free": 3 * MB, "frames": FORWARD},
    ]
    document = {"segments": [segment], "device_traces": [events], **more}
    path.write_bytes(pickle.dumps(document))
    return str(path)


def test_the_peak_is_told_with_who_holds_it(opscope, tmp_path):
    path, page = snapshot(tmp_path / "snapshot.pickle"), tmp_path / "page.html"
    opscope("analyze", path, "--output", page).fine(
        "629 MB of 1.05 GB reserved",
        "/home/u/model.py:12 forward",
        "model.py:12 > linear.py:134",
        "944 MB asked for, 629 MB in use, 419 MB reserved but unused, 3.15 MB free",
        "expandable_segments:True",
        "activation checkpointing",
    )
    assert "Device memory over time" in page.read_text(encoding="utf-8")
    (device,) = json.loads(opscope("analyze", path, "--json").fine().out)["devices"]
    assert (device["peak_bytes"], device["out_of_memory"][0]["asked_bytes"]) == (600 * MB, 900 * MB)


def test_a_broken_one_is_one_error_and_a_session_is_not_made_of_one(opscope, tmp_path):
    opscope("analyze", snapshot(tmp_path / "s.pickle", device_traces=5)).fails(
        "not a memory snapshot", lines=1
    )
    path = snapshot(tmp_path / "snapshot.pickle")
    opscope("sql", path, "SELECT 1").fails("a memory snapshot of PyTorch", "opscope analyze", lines=1)
