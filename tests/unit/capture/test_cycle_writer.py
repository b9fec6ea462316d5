"""What a recording notes of its kernels: everything, or a gap, but never an error."""

import gc
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from opscope.capture import cycle as module
from opscope.capture.cycle import write_copies
from opscope.capture.process_sources import compiled_graphs, tracked_objects
from opscope.capture.recording import TraceNames
from opscope.model.origin import RecordedKernel, RecordedUnit
from opscope.provenance.generated_code import source_hash

GEMM = "void gemm<float>(float*)"


KEY = "fosf"


class CompiledFxGraph:
    def __init__(self, code, key=KEY, stacks=None, nodes=None):
        self.source_code = code
        self._fx_graph_cache_key = key
        self.inductor_provenance_stack_traces_str = stacks
        self.inductor_provenance_mapping_str = nodes


class JITFunction:
    def __init__(self, fn):
        self.fn = fn


@pytest.fixture(autouse=True)
def little_to_look_through(monkeypatch):
    """No operators, and of objects those of a test, not the million that pytest and torch have frozen."""
    monkeypatch.setattr(module, "collect_registrations", lambda names: ())
    monkeypatch.setattr("opscope.capture.process_sources.tracked_objects", gc.get_objects)


@pytest.fixture
def libraries(monkeypatch):
    """Modules of torch and Triton that hold these classes; everything else of theirs is absent."""
    for name, one in (("torch._inductor.output_code", CompiledFxGraph), ("triton.runtime.jit", JITFunction)):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**{one.__name__: one}))


def origins(names):
    known = {GEMM: RecordedKernel(GEMM, "libgemm.so", "ab12", (RecordedUnit("gemm.cu", "12345678"),))}
    return {name: known[name] for name in names if name in known}


def names(*kernels, files=(), keys=()):
    return TraceNames(frozenset(kernels), frozenset(), frozenset(files), frozenset(keys))


def collect(names, copies):
    gaps = []
    return SimpleNamespace(**module.collect(names, copies, gaps), gaps=tuple(gaps))


def test_a_part_that_fails_is_a_gap(tmp_path, monkeypatch):
    def fail(*args):
        raise OSError("no such library")

    for name in ("extension_sources", "live_objects", "collect_registrations", "recorded_origins"):
        monkeypatch.setattr(module, name, fail)
    found = collect(names(GEMM), tmp_path)
    assert found.kernels == (RecordedKernel(GEMM),)
    parts = ("Triton kernels", "kernel origins", "CUDA extensions", "registrations")
    assert [(gap.part, gap.reason) for gap in found.gaps] == [
        (one, "OSError: no such library") for one in parts
    ]


def test_an_interruption_is_no_gap(tmp_path, monkeypatch):
    def interrupted(names):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "recorded_origins", interrupted)
    with pytest.raises(KeyboardInterrupt):
        collect(names(GEMM), tmp_path)


@pytest.mark.usefixtures("libraries")
def test_generated_kernels_are_copied_and_joined_with_their_graph(
    tmp_path, graph_text, kernel_text, tracking, monkeypatch
):
    text = kernel_text("triton_poi_k_0")
    file = tmp_path / "cache" / f"{source_hash(text)}.py"
    file.parent.mkdir()
    file.write_text(text)
    graph = CompiledFxGraph(
        graph_text("0_forward", {"triton_poi_k_0": text}), KEY, *tracking(triton_poi_k_0=8)
    )
    copies = tmp_path / "t.kernels"
    asked = []
    monkeypatch.setattr(module, "recorded_origins", lambda names: asked.extend(names) or {})
    found = collect(names("triton_poi_k_0", GEMM, files=[str(file)], keys=[KEY]), copies)
    (source,) = found.kernel_sources
    assert asked == [GEMM]
    assert (source.evidence.value, source.file, source.graph, source.graph_key) == (
        "launch", str(file), "0_forward", KEY,
    )  # fmt: skip
    assert source.copy == f"t.kernels/{file.name}"
    assert (copies / file.name).read_text() == text
    assert text.split("\n")[source.line - 1].startswith("def triton_poi_k_0(")
    assert source.original_aten == ("aten::gelu", "prims::x")
    assert source.post_grad_nodes == ("mul", "erf")
    assert source.stacks[0][-1].code == "h = F.gelu(h)"
    del graph


@pytest.mark.usefixtures("libraries")
def test_copies_that_cannot_be_written_are_a_gap(tmp_path, graph_text, kernel_text):
    (tmp_path / "file").write_text("")
    graph = CompiledFxGraph(graph_text("0_inference", {"k": kernel_text("k")}))
    found = collect(names("k"), tmp_path / "file" / "t.kernels")
    assert [gap.part for gap in found.gaps] == ["copies of kernels"]
    assert found.kernel_sources[0].copy is None
    del graph


@pytest.mark.usefixtures("libraries")
def test_objects_of_other_releases_are_passed_over():
    one, two = CompiledFxGraph(None), CompiledFxGraph("print('no kernel')")
    three = CompiledFxGraph("async_compile.triton(")
    del three._fx_graph_cache_key
    assert [graph.key for graph in compiled_graphs((one, two, three))] == [None]


def test_objects_are_found_that_the_program_hides_from_the_collector():
    """Servers freeze what is there when they have started."""
    hidden = [GraphModule()]
    gc.freeze()
    try:
        assert hidden[0] not in gc.get_objects()
        assert any(one is hidden[0] for one in tracked_objects())
    finally:
        gc.unfreeze()
        gc.freeze()  # as `conftest` does


def test_copies_of_an_earlier_recording_are_removed_and_other_files_left(tmp_path):
    folder = tmp_path / "t.kernels"
    first, second = source_hash("1"), source_hash("2")
    write_copies(folder, {first: "1"})
    (folder / "notes.py").write_text("mine")
    assert write_copies(folder, {second: "2"}) == {second: f"t.kernels/{second}.py"}
    assert sorted(file.name for file in folder.iterdir()) == sorted([f"{second}.py", "notes.py"])
    (folder / "notes.py").unlink()
    assert write_copies(folder, {}) == {}
    assert not folder.exists()


class GraphModule:
    """A traced graph: nodes by name, each with the modules around it, outermost first."""

    def __init__(self, **modules_of):
        self.graph = SimpleNamespace(
            nodes=[SimpleNamespace(name=name, meta=self._meta(paths)) for name, paths in modules_of.items()]
        )

    @staticmethod
    def _meta(paths):
        stack = {str(at): (path, object) for at, path in enumerate(paths)}
        return {"nn_module_stack": stack} if stack else {}


LAYERS = {
    "h": ("L['self'].layers.0", "L['self'].layers.0.norm"),
    "h_1": ("L['self'].layers.1", "L['self'].layers.1.norm"),
    "used_k": ("L['self'].layers.1",),
}


def test_a_generated_kernel_has_the_modules_of_its_nodes(
    tmp_path, libraries, monkeypatch, graph_text, kernel_text
):
    """They are read from the graph that was compiled, as torch keeps it."""
    monkeypatch.setitem(sys.modules, "torch.fx.graph_module", SimpleNamespace(GraphModule=GraphModule))
    compiled = CompiledFxGraph(graph_text("0_inference", {"k": kernel_text("k")}))
    traced, other = GraphModule(**LAYERS), GraphModule(h=("L['self'].head",), unknown=())
    (source,) = collect(names("k", keys=(KEY,)), tmp_path / "t.kernels").kernel_sources
    assert source.evidence.value == "process"  # of a replay: its code is the graph's
    assert source_hash((tmp_path / source.copy).read_text()) == source.hash == source_hash(kernel_text("k"))
    assert source.source_nodes == ("h", "h_1", "used_k")
    assert source.modules == ("layers.0.norm", "layers.1.norm", "layers.1")
    del compiled, traced, other


ELSEWHERE = {"h": ("L['self'].head",)}


@pytest.mark.parametrize(
    "traced",
    [
        pytest.param([ELSEWHERE], id="another graph with a node of that name"),
        pytest.param([LAYERS, LAYERS | ELSEWHERE], id="two with all of them, which disagree"),
        pytest.param([dict.fromkeys(LAYERS, ())], id="traced from functions"),
        pytest.param([], id="none kept"),
    ],
)
def test_modules_that_are_not_certain_are_not_told(traced, graph_text, kernel_text):
    text = graph_text("0_inference", {"k": kernel_text("k")})
    kept = (object(), *(GraphModule(**one) for one in traced))
    (graph,) = compiled_graphs((CompiledFxGraph(text),), kept)
    assert graph.modules == {}


COMPILED_LAYERS = Path(__file__).with_name("compiled_layers.py.txt").read_text(encoding="utf-8")


@pytest.mark.torch
@pytest.mark.exhaustive  # compiled anew: 20 s of processor time
def test_torch_keeps_the_graph_that_it_compiled(tmp_path):
    pytest.importorskip("torch")
    if not any(map(shutil.which, ("g++", "clang++", "c++"))):
        pytest.skip("no C++ compiler")
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    run = subprocess.run(
        [sys.executable, "-c", COMPILED_LAYERS], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    known = {"layer_norm": "layers.0.norm", "linear_1": "layers.1.fc", "gelu_1": "layers.1"}
    assert str(known) in run.stdout.splitlines()
