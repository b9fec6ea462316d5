"""Files for other viewers: flame graphs, and the trace with what was found."""

import gzip
import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import TraceBuilder
from opscope.analysis.program.stacks import StackProfile
from opscope.analysis.summary import Summary
from opscope.errors import InputError
from opscope.report.exports import collapsed_text, export_trace, speedscope_document


def profile(stacks, names, **fields):
    values = {"name": "trace.json", **fields}
    return StackProfile(names=names, stacks=tuple(stacks), weights=tuple(stacks.values()), **values)


def test_a_speedscope_file():
    names = ["unused", "train.py(3): step", "aten::mm", "gemm<a, b>", ""]
    one = profile({(1, 2, 3): 40, (1, 2, 4): 2}, names)
    document = speedscope_document([one], name="title")
    assert document["shared"]["frames"] == [
        {"name": "train.py(3): step", "file": "train.py", "line": 3},
        {"name": "aten::mm"},
        {"name": "gemm<a, b>"},
        {"name": "[unnamed]"},
    ]
    assert document["profiles"][0]["samples"] == [[0, 1, 2], [0, 1, 3]]
    assert document["profiles"][0]["weights"] == [40, 2]


def test_several_traces_share_their_frames():
    names = ["a", "b"]
    profiles = [profile({(0,): 1}, names, name="rank 0"), profile({(0, 1): 2}, names, name="rank 1")]
    document = speedscope_document(profiles, name="")
    assert [one["name"] for one in document["profiles"]] == ["rank 0", "rank 1"]
    assert collapsed_text(profiles) == "rank 0;a 1\nrank 1;a;b 2\n"


def test_collapsed_stacks_that_read_alike_are_added_up():
    names = ["train.py(3): step", "void f<a; b>(int)\n", " "]
    text = collapsed_text([profile({(0, 1): 40, (0, 2): 2, (0,): 7}, names)])
    assert text == (
        "train.py(3): step;void f<a: b>(int) 40\ntrain.py(3): step;[unnamed] 2\ntrain.py(3): step 7\n"
    )
    assert collapsed_text([profile({(0,): 1, (1,): 2}, ["a;b", "a:b"])]) == "a:b 3\n"


names = st.lists(st.text(max_size=8), min_size=1, max_size=5)


@given(st.data(), names)
def test_no_weight_is_lost(data, names):
    frames = st.lists(st.integers(0, len(names) - 1), min_size=1, max_size=4).map(tuple)
    one = profile(data.draw(st.dictionaries(frames, st.integers(1, 2**50))), names)
    lines = collapsed_text([one]).split("\n")
    assert lines.pop() == ""
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == one.total
    assert {line.rpartition(" ")[0].count(";") + 1 for line in lines} <= {len(stack) for stack in one.stacks}


@pytest.mark.parametrize("profiles", [[], [profile({}, [])]])
def test_nothing_is_an_empty_text(profiles):
    assert collapsed_text(profiles) == ""


def two_steps():
    trace = TraceBuilder().step(1, 0, 500).step(2, 500, 500)
    for start in (0, 500):
        trace.operator("aten::mm", start + 10, 30).launch(start + 20, 5).kernel("gemm", start + 40, 300)
        trace.launch(start + 60, 300, name="cudaDeviceSynchronize")
    return trace


def tracks(events):
    """Slices of ours, and all events that are not ours."""
    process = next(one["pid"] for one in events if one.get("args") == {"name": "opscope"})
    ours = [one for one in events if one["pid"] == process]
    return [one for one in ours if one["ph"] == "X"], [one for one in events if one["pid"] != process]


def test_the_recording_stays_and_the_path_is_a_track(load, tmp_path):
    recorded = two_steps().text()
    session = load(recorded)
    written = json.loads(export_trace(session, tmp_path / "marked.json").read_text())
    ours, rest = tracks(written["traceEvents"])
    slices = [one for one in ours if one["tid"] == 1]
    assert written | {"traceEvents": rest} == json.loads(recorded)
    # One after the other, without a hole, to the end of the last step.
    edges = [(one["ts"], one["ts"] + one["dur"]) for one in slices]
    assert all(end == pytest.approx(start, abs=1e-6) for (_, end), (start, _) in pairwise(edges))
    assert (edges[0][0], edges[-1][1]) == (0, 1000)
    assert {one["name"] for one in slices} >= {"gemm", "host: aten::mm", "launch latency", "wait"}
    again = load(str(tmp_path / "marked.json"))
    assert again.query("SELECT * FROM device_activities") == session.query("SELECT * FROM device_activities")
    assert all(check.holds for check in again.check())


def test_idle_causes_and_operators_are_tracks(load, tmp_path):
    session = load(two_steps())
    events = json.loads(export_trace(session, tmp_path / "marked.json").read_text())["traceEvents"]
    ours, rest = tracks(events)
    named = [one for one in events if one["name"] == "thread_name" and one not in rest]
    names = {one["tid"]: one["args"]["name"] for one in named}
    by_track = {name: [one for one in ours if names[one["tid"]] == name] for name in names.values()}
    operators = by_track["operator: device 0, stream 7"]
    assert [(one["name"], one["ts"], one["dur"]) for one in operators] == [
        ("aten::mm", 40, 300), ("aten::mm", 540, 300)
    ]  # fmt: skip
    assert operators[0]["args"]["kernel"] == "gemm"
    assert operators[0]["args"]["attribution"] == "correlation"
    idle = by_track["idle: device 0"]
    # All of a step in which the device does nothing.
    (partition,) = Summary(session).complete().timeline.partitions
    assert sum(one["dur"] for one in idle) * 1000 == sum(partition.idle_by_cause.values()) > 0
    assert all(one["args"]["why"] for one in idle)


def test_compressed_bare_and_cut_off_traces(load, tmp_path):
    recorded = json.loads(two_steps().text())
    export_trace(load(json.dumps(recorded["traceEvents"])), tmp_path / "bare.json.gz")
    events = json.loads(gzip.decompress((tmp_path / "bare.json.gz").read_bytes()))
    assert tracks(events)[1] == recorded["traceEvents"]
    export_trace(load(json.dumps(recorded)[:-25]), tmp_path / "cut.json")
    events = json.loads((tmp_path / "cut.json").read_text())["traceEvents"]
    assert tracks(events)[1] == recorded["traceEvents"][:-1]


def test_times_keep_their_nanoseconds(load, tmp_path):
    late = 4_388_993_824_190  # µs: a float of it has no digit left for nanoseconds
    trace = TraceBuilder().step(1, late, 500)
    trace.operator("aten::mm", late + 10, 30).launch(late + 20, 5).kernel("gemm", late + 40.001, 300.003)
    trace.launch(late + 60, 300, name="cudaDeviceSynchronize")
    text = export_trace(load(trace), tmp_path / "marked.json").read_text()
    assert f'"name":"gemm","ts":{late + 40}.001,"dur":300.003' in text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([two_steps(), two_steps()], "2 traces were read"),
        (TraceBuilder().operator("aten::mm", 0, 10), "nothing was launched"),
    ],
)
def test_what_cannot_be_exported(load, make_trace, tmp_path, content, words):
    if isinstance(content, list):
        content = [str(make_trace(one, name=f"rank{row}.json")) for row, one in enumerate(content)]
    with pytest.raises(InputError, match=words):
        export_trace(load(content), tmp_path / "marked.json")
    assert not (tmp_path / "marked.json").exists()


def test_a_trace_that_is_gone(load, make_trace, tmp_path):
    source = make_trace(two_steps())
    session = load(str(source))
    source.unlink()
    with pytest.raises(InputError, match=source.name):
        export_trace(session, tmp_path / "marked.json")
