"""Replays of CUDA graphs: matched with their captures and opened as if launched eagerly, else named."""

import pytest

import opscope
from fakes import TraceBuilder
from opscope.analysis.timeline.host import read_session
from opscope.analysis.timeline.measure import count_host_events
from opscope.ingest.replays import Capture, CapturedEvent, CapturedLaunch, Replay, match, with_nodes
from opscope.model.schema import ReplayEvidence, ReplaySource
from opscope.model.sidecar import GraphNode, RecordedGraph, sidecar_path, write_sidecar

from .test_recorded import sidecar

ROWS = """SELECT n.name, o.name, a.attribution FROM device_activities a JOIN kernel_names n USING (name_id)
LEFT JOIN operators o ON o.operator_id = a.operator_id ORDER BY a.start_ns"""
REPLAYS = "SELECT graph, activity_count, source, evidence, reason FROM graph_replays ORDER BY correlation_id"
OPERATORS = "SELECT name, input_shapes::VARCHAR FROM operators ORDER BY start_ns"
MODULES = "SELECT m.name FROM operators o LEFT JOIN modules m USING (module_id) ORDER BY o.start_ns"


def captured(trace, start=0.0, *, names=("gemm", "add"), rows=4, grid=7, module="Net_0"):
    """A model whose two operators are captured: AMD's recorder names the kernels of their launches."""
    trace.event("cuda_runtime", "hipStreamBeginCapture", start, 1, 1, {"correlation": 1})
    trace.frame(f"nn.Module: {module}", start + 1, 30, module=int(module.rpartition("_")[2]))
    shapes = {"Input Dims": [[rows, 8], [8, 2]], "Input type": ["float", "float"]}
    first = 500 + int(10 * start)
    for at, (operator, kernel) in enumerate(zip(("aten::mm", "aten::add"), names, strict=False)):
        trace.operator(operator, start + 2 + 10 * at, 8, external_id=first + at, **shapes)
        args = {"correlation": first + at, "External id": first + at, "kernel": kernel, "grid": [grid, 1, 1]}
        trace.event("cuda_runtime", "hipLaunchKernel", start + 4 + 10 * at, 2, 1, args)
    return trace.event("cuda_runtime", "hipStreamEndCapture", start + 40, 1, 1, {"correlation": 2})


def replayed(trace, start=100.0, *, names=("gemm", "add"), **args):
    trace.launch(start, 5, name="hipGraphLaunch")
    args = {"grid": [[7, 1, 1]] * len(names), **args}
    for at, name in enumerate(names):
        trace.kernel(name, start + 10 + 3 * at, 2, **{key: value[at] for key, value in args.items()})
    return trace


@pytest.fixture
def capture(make_trace):
    return make_trace(captured(TraceBuilder()), "capture.json")


@pytest.mark.parametrize("memory_limit", [None, "500MB"], ids=["memory", "disk"])
def test_a_replay_has_the_operators_modules_and_arguments_of_its_capture(load, capture, memory_limit):
    session = load(replayed(TraceBuilder()), captures=[capture], memory_limit=memory_limit)
    assert session.query(ROWS) == [
        ("gemm", "aten::mm", "graph_sequence"), ("add", "aten::add", "graph_sequence"),
    ]  # fmt: skip
    assert session.query(REPLAYS) == [(1, 2, "capture_trace", "kernel_sequence", None)]
    assert session.query("SELECT input_shapes::VARCHAR FROM operators WHERE name = 'aten::mm'") == [
        ("[[4,8],[8,2]]",)
    ]
    assert session.query("SELECT m.name FROM operators JOIN modules m USING (module_id)") == [("Net_0",)] * 2
    assert not [check for check in session.check() if check.violations]


def test_each_replay_finds_the_capture_of_its_batch_size_in_a_folder_beside_the_trace(make_trace, tmp_path):
    (tmp_path / "capture_traces").mkdir()
    for size in (4, 16):
        make_trace(captured(TraceBuilder(), rows=size, grid=size), f"capture_traces/bs_{size}_rank0.json")
    trace = TraceBuilder()
    for at, size in enumerate((16, 4, 16)):
        replayed(trace, 100.0 + 50 * at, grid=[[size, 1, 1]] * 2)
    with opscope.load(make_trace(trace)) as session:
        assert {one[2:] for one in session.query(REPLAYS)} == {("capture_trace", "kernel_sequence", None)}
        shapes = session.query(
            "SELECT input_shapes[0][0]::INT FROM operators WHERE name = 'aten::mm' ORDER BY start_ns"
        )
        assert shapes == [(16,), (4,), (16,)]


def test_what_is_repeated_lies_inside_the_launch_call_and_takes_no_time_of_it(load, capture):
    session = load(replayed(TraceBuilder()), captures=[capture])
    (call,) = session.query("SELECT start_ns, start_ns + duration_ns FROM runtime_calls")
    spans = session.query("SELECT start_ns, start_ns + duration_ns, self_cpu_ns FROM operators")
    assert all(call[0] < start <= end < call[1] for start, end, _ in spans)
    assert all(cpu_ns <= 2 for *_, cpu_ns in spans)


@pytest.mark.exhaustive(few=False)
def test_what_is_repeated_cost_the_recorder_nothing(load, capture):
    trace = replayed(TraceBuilder()).operator("aten::mm", 106, 2)
    for captures in ([capture], []):
        records = read_session(load(trace, captures=captures))
        counted = count_host_events(records.hosts[0], records.windows[0].host)
        assert {what: count for what, count in counted.items() if count} == {
            "operators": 1, "runtime calls": 1
        }  # fmt: skip


def test_the_capture_may_be_in_the_trace_itself(load):
    session = load(replayed(captured(TraceBuilder())))
    assert {attribution for *_, attribution in session.query(ROWS)} == {"graph_sequence"}
    assert session.query(REPLAYS) == [(1, 2, "capture_phase", "kernel_sequence", None)]


@pytest.mark.parametrize(
    ("names", "graph_names", "said"),
    [
        (("gemm", "mul"), ("gemm", "add"), "its launch 2 is add, in the capture mul"),
        (("gemm", "add"), ("gemm", "add", "add"), "the graph has 3 kernels, copies and sets, the capture"),
    ],
)
def test_a_capture_of_another_model_is_refused_and_said(load, make_trace, names, graph_names, said):
    capture = make_trace(captured(TraceBuilder(), names=names), "capture.json")
    session = load(replayed(TraceBuilder(), names=graph_names), captures=[capture])
    ((graph, _, source, evidence, reason),) = session.query(REPLAYS)
    assert (graph, source, evidence) == (1, None, None)
    assert said in reason
    (finding,) = [one for one in session.findings() if one.code == "graphs.capture_refused"]
    assert "could not be opened" in finding.message


def test_a_file_without_a_capture_is_named(load, make_trace):
    other = make_trace(TraceBuilder().launch(0).kernel("k", 5, 2), "other.json")
    session = load(replayed(TraceBuilder()), captures=[other])
    (finding,) = [one for one in session.findings() if one.code == "graphs.capture_refused"]
    assert f"{other} holds no capture of a CUDA graph" in finding.message


def test_a_replay_of_which_nothing_is_known_is_its_graph_and_not_unattributed(load):
    trace = replayed(replayed(replayed(TraceBuilder()), 200, names=("other",)), 300)
    session = load(trace)
    assert session.query(ROWS) == [
        ("gemm", "replay of graph 1", "graph"), ("add", "replay of graph 1", "graph"),
        ("other", "replay of graph 2", "graph"),
        ("gemm", "replay of graph 1", "graph"), ("add", "replay of graph 1", "graph"),
    ]  # fmt: skip
    messages = " ".join(f"{one.message} {one.suggestion}" for one in session.findings())
    assert "custom_op" not in messages
    assert "--capture CAPTURE" in messages


def test_a_closed_replay_inside_an_operator_stays_with_it(load):
    session = load(replayed(TraceBuilder().operator("Torch-Compiled Region", 90, 40)))
    assert {row[1:] for row in session.query(ROWS)} == {("Torch-Compiled Region", "graph")}


def test_replays_of_several_graphs_may_interleave(load, make_trace):
    first = make_trace(captured(TraceBuilder()), "first.json")
    second = make_trace(captured(TraceBuilder(), names=("gemm", "mul")), "second.json")
    trace = TraceBuilder()
    trace.launch(100, 5, name="cudaGraphLaunch", correlation=1)
    trace.launch(106, 5, name="cudaGraphLaunch", correlation=2)
    for at, (name, correlation) in enumerate((("gemm", 1), ("gemm", 2), ("mul", 2), ("add", 1))):
        trace.kernel(name, 120 + 3 * at, 2, correlation=correlation, stream=correlation, grid=[7, 1, 1])
    session = load(trace, captures=[first, second])
    assert [row[4] for row in session.query(REPLAYS)] == [None, None]
    assert {row[2] for row in session.query(ROWS)} == {"graph_sequence"}


@pytest.mark.parametrize(
    ("ids", "modules"),
    [
        ([{"graph id": (one, one)} for one in (21, 22, 21)], ["Net_0", "Net_1", "Net_0"]),
        ([{}, {}], ["Net_0", "Net_1"]),
    ],
    ids=["by their ids", "without ids in the order of capture"],
)
def test_graphs_of_equal_layers_are_told_apart(load, make_trace, ids, modules):
    """Also where one was replayed more often than another."""
    capture = make_trace(captured(captured(TraceBuilder()), 50, module="Net_1"), "capture.json")
    trace = TraceBuilder()
    for at, graph in enumerate(ids):
        replayed(trace, 100 * (at + 1), **graph)
    session = load(trace, captures=[capture])
    assert [name for (name,) in session.query(MODULES)] == [one for one in modules for _ in range(2)]


def test_where_nothing_tells_captures_of_several_batches_apart_no_argument_is_guessed(load, make_trace):
    capture = make_trace(captured(captured(TraceBuilder(), rows=64), 50), "capture.json")
    session = load(replayed(TraceBuilder()), captures=[capture])
    assert session.query(OPERATORS) == [("aten::mm", None), ("aten::add", None)]
    assert [name for (name,) in session.query(MODULES)] == ["Net_0"] * 2
    ((*_, evidence, reason),) = session.query(REPLAYS)
    assert evidence == "kernel_sequence"
    assert reason == "2 captures have its kernels: what differs between them is left out"


def test_a_graph_that_was_updated_after_its_capture_is_refused_and_said(load, capture):
    """cudaGraphExecUpdate gives the nodes of a graph other arguments, or other kernels."""
    session = load(replayed(TraceBuilder(), grid=([7, 1, 1], [9, 1, 1])), captures=[capture])
    ((*_, evidence, reason),) = session.query(REPLAYS)
    assert evidence is None
    assert reason == (
        f"its add runs 9×1×1 blocks, 7×1×1 in the capture in {capture}: "
        "the capture is of another batch, or the graph was updated after it"
    )
    assert {row[1] for row in session.query(ROWS)} == {"replay of graph 1"}
    assert [one.code for one in session.findings() if one.code.startswith("graphs.")] == [
        "graphs.capture_refused"
    ]


def test_replays_before_and_after_an_update_are_each_what_they_are(load, capture):
    ids = {"graph id": (5, 5), "graph node id": ((5 << 32) | 1, (5 << 32) | 2)}
    trace = replayed(replayed(TraceBuilder(), **ids), 200, names=("gemm", "mul"), **ids)
    session = load(trace, captures=[capture])
    assert [row[3] for row in session.query(REPLAYS)] == ["node_ids", None]
    assert [row[1] for row in session.query(ROWS)] == ["aten::mm", "aten::add"] + ["replay of graph 1"] * 2


@pytest.mark.parametrize("ids", [(0, 0), ((9 << 32) | 4, 0), ((9 << 32) | 4, (9 << 32) | 4)])
def test_node_ids_that_are_missing_or_repeated_leave_the_sequence(load, capture, ids):
    session = load(replayed(TraceBuilder(), **{"graph node id": ids}), captures=[capture])
    assert [row[3] for row in session.query(REPLAYS)] == ["kernel_sequence"]


def test_a_trace_without_replays_says_that_a_capture_was_of_no_use(load, capture):
    session = load(
        TraceBuilder().operator("aten::mm", 0, 5).launch(1).kernel("gemm", 7, 1), captures=[capture]
    )
    assert [one.code for one in session.findings() if one.code.startswith("graphs.")] == ["graphs.none"]


def test_node_ids_join_replays_with_what_the_recording_noted(load, tmp_path):
    """As opscope's own recordings do: NVIDIA's recorder names no kernel of a captured launch."""
    folder = tmp_path / "trace.graphs"
    folder.mkdir()
    noted = captured(TraceBuilder(), names=("", ""))
    for event in noted.events:
        event["name"] = event["name"].replace("hip", "cuda")
        for absent in ("kernel", "grid"):
            event["args"].pop(absent, None)
    noted.write(folder / "graph_0.json")
    nodes = (GraphNode("kernel", "gemm", 4), GraphNode("kernel", "add", 5))
    trace = replayed(
        TraceBuilder(), names=("add", "gemm"), **{"graph node id": ((9 << 32) | 5, (9 << 32) | 4)}
    )
    path = trace.write(tmp_path / "trace.json")
    write_sidecar(sidecar_path(path), sidecar(graphs=(RecordedGraph("trace.graphs/graph_0.json", nodes),)))
    session = load(path)
    assert session.query(ROWS) == [("add", "aten::add", "graph_node"), ("gemm", "aten::mm", "graph_node")]
    assert session.query(REPLAYS)[0][2:4] == ("noted_capture", "node_ids")


def test_a_noted_capture_that_is_gone_is_a_finding(load, tmp_path):
    path = replayed(TraceBuilder()).write(tmp_path / "trace.json")
    write_sidecar(sidecar_path(path), sidecar(graphs=(RecordedGraph("trace.graphs/graph_0.json", None),)))
    session = load(path)
    assert "graphs.note_unreadable" in [one.code for one in session.findings()]
    assert session.query(ROWS)[0][1] == "replay of graph 1"


# Matching by itself.


def capture_of(*names, places=()):
    launches = tuple(
        CapturedLaunch("kernel", name, event=at, place=places[at] if places else at)
        for at, name in enumerate(names)
    )
    events = tuple(CapturedEvent("cpu_op", at, at, {"name": f"op{at}"}) for at in range(len(names)))
    return Capture(ReplaySource.CAPTURE_TRACE, "capture.json", launches, events)


def replay_of(*names, numbers=None):
    count = len(names)
    return Replay(0, 0, 100, 1, tuple(range(count)), ("kernel",) * count, names, 10, None, numbers)


@pytest.mark.parametrize(
    ("capture", "replay", "evidence", "launches"),
    [
        (capture_of("a", "b"), replay_of("a", "b"), ReplayEvidence.KERNEL_SEQUENCE, (0, 1)),
        (capture_of("a", "b"), replay_of("b", "a", numbers=(2, 1)), ReplayEvidence.NODE_IDS, (1, 0)),
        # Ids of nodes that give other kernels than were captured say nothing.
        (capture_of("a", "b"), replay_of("a", "b", numbers=(2, 1)), ReplayEvidence.KERNEL_SEQUENCE, (0, 1)),
        (capture_of(None, "b"), replay_of("a", "b"), ReplayEvidence.LAUNCH_ORDER, (0, 1)),
        (capture_of(None, None, places=(0, 0)), replay_of("a", "a"), ReplayEvidence.LAUNCH_ORDER, (0, 1)),
        # The recording ends before the last of them is done.
        (capture_of(*"ab" * 10), replay_of(*"ab" * 9, "a"), ReplayEvidence.KERNEL_SEQUENCE, (*range(19),)),
    ],
)  # fmt: skip
def test_replays_match(capture, replay, evidence, launches):
    found = match(capture, replay)
    assert (found.evidence, found.launches) == (evidence, launches)


def test_equal_calls_run_equal_kernels_and_nodes_of_another_graph_tell_nothing():
    found = match(capture_of(None, None, places=(0, 0)), replay_of("a", "b"))
    assert found.evidence is None
    assert "equal calls" in found.reason
    capture = capture_of(None, None)
    assert with_nodes(capture, (GraphNode("kernel", "a"),), None) == capture
    assert with_nodes(capture, (GraphNode("kernel", "a"), GraphNode("memset")), None) == capture
