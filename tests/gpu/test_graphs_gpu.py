"""CUDA graphs of a running program: what their replays are made of, by the notes of their capture."""

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from opscope.api import load  # noqa: E402
from opscope.capture.profiler import Profiler  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

REPLAYED = """SELECT n.name, o.name, a.attribution, a.duration_ns FROM device_activities a
JOIN runtime_calls r USING (runtime_call_id) JOIN kernel_names n USING (name_id)
LEFT JOIN operators o ON o.operator_id = a.operator_id
WHERE r.name LIKE '%GraphLaunch%' ORDER BY a.start_ns"""


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(512, 512), torch.nn.Linear(512, 512)

    def forward(self, x):
        return torch.softmax(self.second(torch.nn.functional.gelu(self.first(x))), dim=-1)


def graph_of(model, x):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side), torch.no_grad():
        model(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        result = model(x)
    return graph, result


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model().cuda(), torch.randn(64, 512, device="cuda")


@pytest.mark.parametrize(("wait", "warmup"), [(1, 0), (0, 1), (0, 0)])
def test_replays_have_the_operators_of_their_capture(tmp_path, model, wait, warmup):
    """Captured before the profiler is attached, while it warms up, and while it records."""
    with torch.no_grad():
        expected = model[0](model[1])
    with Profiler(tmp_path, wait=wait, warmup=warmup, active=2, with_modules=True) as profiler:
        graph, result = graph_of(*model)
        for _ in range(profiler.total_steps):
            graph.replay()
            profiler.step()
    torch.cuda.synchronize()
    torch.testing.assert_close(result, expected)
    cycle = profiler.cycles[0]
    assert not cycle.sidecar.gaps
    assert all(node.name for node in cycle.sidecar.graphs[0].nodes if node.kind == "kernel")
    session = load(cycle.trace_path)
    rows = session.query(REPLAYED)
    assert {attribution for *_, attribution, _ in rows} <= {"graph_node", "graph_sequence"}
    operators = {operator for _, operator, _, _ in rows}
    assert {"aten::addmm", "aten::gelu", "aten::_softmax"} <= operators


def test_two_graphs_replayed_in_turns(tmp_path, model):
    other = (torch.nn.LayerNorm(512).cuda(), model[1])
    with Profiler(tmp_path, wait=1, warmup=0, active=2) as profiler:
        graphs = [graph_of(*model)[0], graph_of(*other)[0]]
        for _ in range(profiler.total_steps):
            for graph in (*graphs, graphs[0]):
                graph.replay()
            profiler.step()
    rows = load(profiler.cycles[0].trace_path).query(REPLAYED)
    assert {"aten::native_layer_norm", "aten::addmm"} <= {operator for _, operator, _, _ in rows}


GIVEN_UP = Path(__file__).with_name("given_up.py.txt").read_text(encoding="utf-8")


def test_a_capture_that_the_program_gives_up_leaves_it_usable(tmp_path):
    """In a process of its own: torch stays on the stream of a capture that failed."""
    done = subprocess.run(
        [sys.executable, "-c", GIVEN_UP, tmp_path], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) > 0
