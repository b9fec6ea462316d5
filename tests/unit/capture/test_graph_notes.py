"""Notes of captured CUDA graphs: around the program's capture, without harming it, whatever goes wrong."""

import gzip
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

from opscope.capture import graph_notes  # noqa: E402
from opscope.capture.graph_notes import GraphNotes, graph_nodes  # noqa: E402
from opscope.capture.profiler import Profiler  # noqa: E402
from opscope.model.sidecar import GraphNode, read_sidecar  # noqa: E402

pytestmark = pytest.mark.torch

NODES = (GraphNode("kernel", "_Z3addPf", 0, (1, 1, 1), (32, 1, 1)), GraphNode("memset", None, 1))


class FakeGraph:
    """A graph that captures nothing, in place of torch's, which needs a GPU."""

    failing = False

    def capture_begin(self, pool=None):
        if self.failing:
            raise RuntimeError("cannot capture")
        self.begun = True

    def capture_end(self):
        self.ended = True


@pytest.fixture
def graph_class(monkeypatch):
    monkeypatch.setattr("torch.cuda.graphs.CUDAGraph", FakeGraph)
    monkeypatch.setattr(graph_notes, "graph_nodes", lambda: NODES)
    monkeypatch.setattr(FakeGraph, "failing", False)
    return FakeGraph


@pytest.fixture
def notes(graph_class):
    notes = GraphNotes()
    notes.start()
    yield notes
    notes.discard()


def captured(graph_class):
    graph = graph_class()
    graph.capture_begin()
    torch.ones(4, 4) @ torch.ones(4, 4)
    graph.capture_end()
    return graph


def operators(path):
    with gzip.open(path, "rt") as file:
        return [one["name"] for one in json.load(file)["traceEvents"] if one.get("cat") == "cpu_op"]


def test_a_capture_is_recorded_and_kept_beside_the_trace(tmp_path, graph_class):
    begin = graph_class.capture_begin
    with Profiler(tmp_path, wait=1, warmup=0, active=1) as profiler:
        graph = captured(graph_class)
        assert graph.begun
        assert graph.ended
        profiler.step()
        torch.ones(2) + 1
        profiler.step()
    assert graph_class.capture_begin is begin
    (graph_file,) = read_sidecar(profiler.cycles[0].sidecar_path).graphs
    assert graph_file.nodes == NODES
    assert graph_file.file == "trace.graphs/graph_0.json.gz"
    assert "aten::mm" in operators(tmp_path / graph_file.file)
    assert not profiler.cycles[0].sidecar.gaps


def test_a_capture_while_the_profiler_warms_up_makes_it_step_aside(tmp_path, graph_class):
    with Profiler(tmp_path, warmup=1, active=1) as profiler:
        captured(graph_class)
        profiler.step()
        torch.ones(3) * 2
        profiler.step()
    (graph,) = profiler.cycles[0].sidecar.graphs
    assert "aten::mm" in operators(tmp_path / graph.file)
    names = [one["name"] for one in json.loads(profiler.cycles[0].trace_path.read_text())["traceEvents"]]
    assert "aten::mul" in names


@pytest.mark.usefixtures("notes")
def test_a_capture_that_fails_fails_as_it_does_without_notes(graph_class, monkeypatch):
    monkeypatch.setattr(FakeGraph, "failing", True)
    with pytest.raises(RuntimeError, match="cannot capture"):
        graph_class().capture_begin()
    assert not torch.autograd._profiler_enabled()


def test_what_goes_wrong_with_a_note_is_a_gap_and_not_the_programs(graph_class, notes, monkeypatch):
    def broken():
        raise OSError("no driver")

    monkeypatch.setattr(graph_notes, "graph_nodes", broken)
    assert captured(graph_class).ended
    assert [gap.reason for gap in notes.gaps] == ["OSError: no driver"]
    assert not torch.autograd._profiler_enabled()


def test_of_very_many_graphs_the_first_are_noted(graph_class, notes, monkeypatch, tmp_path):
    monkeypatch.setattr(graph_notes, "_MOST_GRAPHS", 1)
    captured(graph_class)
    captured(graph_class)
    assert len(notes.keep_beside(tmp_path / "trace.json")) == 1
    assert "more than 1 captures" in notes.gaps[0].reason


def test_captures_of_threads_side_by_side_are_kept_apart(graph_class, monkeypatch, tmp_path):
    """Inside a window each has its own nodes; recorded by a profiler of its own, the first has."""
    monkeypatch.setattr(
        graph_notes, "graph_nodes", lambda: (GraphNode("memset", threading.current_thread().name[0]),)
    )

    def side_by_side():
        with ThreadPoolExecutor(1, "a") as a, ThreadPoolExecutor(1, "b") as b:
            graphs = {a: graph_class(), b: graph_class()}
            for method in ("capture_begin", "capture_end"):
                for thread, graph in graphs.items():
                    thread.submit(getattr(graph, method)).result()

    with Profiler(tmp_path, warmup=0, active=1) as profiler:
        side_by_side()
        profiler.step()
    assert [graph.nodes[0].name for graph in profiler.cycles[0].sidecar.graphs] == ["a", "b"]
    notes = GraphNotes()
    notes.start()
    side_by_side()
    assert not torch.autograd._profiler_enabled()
    (graph,) = notes.keep_beside(tmp_path / "other.json")
    assert (graph.nodes[0].name, graph.file) == ("a", "other.graphs/graph_0.json.gz")
    assert "by several threads" in notes.gaps[0].reason
    notes.discard()


class FakeDriver:
    """The driver's functions that notes ask, over nodes given as (kind, name, grid)."""

    def __init__(self, nodes, *, tells_ids=True):
        self.nodes = nodes
        self.names = {}
        if tells_ids:
            self.cuGraphNodeGetToolsId = self.tools_id

    def cuStreamGetCaptureInfo_v2(self, stream, status, identity, graph, dependencies, count):  # noqa: PLR0917
        graph._obj.value = 4096
        return 0

    def cuGraphGetNodes(self, graph, nodes, count):
        if nodes is not None:
            for index in range(len(self.nodes)):
                nodes[index] = index + 1
        count._obj.value = len(self.nodes)
        return 0

    def cuGraphNodeGetType(self, node, kind):
        kind._obj.value = self.nodes[node.value - 1][0]
        return 0

    def cuGraphKernelNodeGetParams_v2(self, node, parameters):
        one = parameters._obj
        one.func = node.value
        one.grid_x, one.grid_y, one.grid_z = self.nodes[node.value - 1][2]
        one.block_x, one.block_y, one.block_z = 128, 1, 1
        return 0

    def cuFuncGetName(self, name, function):
        name._obj.value = self.nodes[function.value - 1][1].encode()
        return 0

    def tools_id(self, node, identity):
        identity._obj.value = (7 << 32) | (node.value + 10)
        return 0


def test_the_driver_tells_kernels_copies_and_sets_in_order(monkeypatch):
    stream = type("Stream", (), {"cuda_stream": 3})()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    nodes = [(0, "_Z1av", (2, 3, 1)), (5, "", ()), (1, "", ()), (2, "", ())]
    assert graph_nodes(FakeDriver(nodes)) == (
        GraphNode("kernel", "_Z1av", 11, (2, 3, 1), (128, 1, 1)),
        GraphNode("memcpy", None, 13),
        GraphNode("memset", None, 14),
    )
    assert graph_nodes(FakeDriver(nodes[:1], tells_ids=False))[0].number is None
