"""`opscope analyze`: files, ranges, memory snapshots, a rank that is cut off."""

import gzip
import json
import pickle
import shutil

import pytest

from fakes import TraceBuilder


def test_files_are_written_and_named_last(opscope, trace, tmp_path):
    names = "out/analysis.json", "out/report.md", "page.html", "s.opscope", "marked.json", "stacks.json"
    files = [tmp_path / name for name in names]
    options = ("-o", "-o", "-o", "--save", "--export-trace", "--stacks")
    words = [word for pair in zip(options, files, strict=True) for word in pair]
    outcome = opscope("analyze", trace, *words).fine()
    assert outcome.out.splitlines()[-6:] == [f"Wrote {file}" for file in files]
    report = files[1].read_text("utf-8")
    assert "### 4.1 aten::addmm" in report
    assert "96×1×1 | 128×1×1 | 200 | 49,152 B | 12.0 %" in report
    assert "To repeat" in files[2].read_text("utf-8")
    first = opscope("analyze", trace, "--json").json
    assert json.loads(files[0].read_text("utf-8")) == first
    assert opscope("analyze", files[3], "--json").json == first
    (profile,) = json.loads(files[5].read_text("utf-8"))["profiles"]
    assert (profile["name"], profile["endValue"]) == ("trace.json", 452_125)
    # The trace with its critical path is the same recording.
    assert opscope("analyze", files[4], "--json").json["summary"] == first["summary"]


def test_as_many_ranges_are_shown_as_operators(opscope, tmp_path):
    builder = TraceBuilder()
    for number in range(12):
        at = 100 * number
        builder.event("user_annotation", f"layer {number:02}", at, 90, 1, {})
        builder.operator("aten::mm", at + 5, 20).launch(at + 10).kernel("gemm", at + 20, 40 - number)
    trace = builder.write(tmp_path / "trace.json")
    outcome = opscope("analyze", trace, "--by", "range:layer \\d+", "--top", "10")
    outcome.fine("layer 09", "2 more ranges take 59.0 µs")
    assert "layer 10" not in outcome.out.partition("By range")[2].partition("more ranges")[0]


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
    broken = snapshot(tmp_path / "s.pickle", device_traces=5)
    opscope("analyze", broken).fails("not a memory snapshot", lines=1)
    path = snapshot(tmp_path / "snapshot.pickle")
    opscope("sql", path, "SELECT 1").fails("a memory snapshot of PyTorch", "opscope analyze", lines=1)


@pytest.mark.exhaustive
def test_a_rank_that_is_cut_off_is_read_as_far_as_it_goes(opscope, tmp_path, shared):
    for one in (shared / "traces/h200/ddp_straggler_w4").glob("rank*.json.gz"):
        shutil.copy(one, tmp_path)
    file = tmp_path / "rank2.json.gz"
    text = gzip.decompress(file.read_bytes())
    file.write_bytes(gzip.compress(text[: len(text) * 6 // 10]))
    findings = opscope("analyze", tmp_path, "--json").fine().json["findings"]
    # What is lost was recorded: nobody is told to record it.
    codes = {one["code"] for one in findings}
    assert "trace.truncated" in codes and "trace.no_device_activity" not in codes
