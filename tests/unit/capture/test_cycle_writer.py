"""What a recording notes of its kernels: everything, or a gap, but never an error."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from opscope.capture import cycle_writer as module
from opscope.capture.cycle_writer import collect, write_copies
from opscope.capture.process_sources import compiled_graphs, live_objects
from opscope.capture.trace_file import TraceNames
from opscope.model.generated_code import source_hash
from opscope.model.origin import RecordedKernel, RecordedUnit

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


class GluonJITFunction(JITFunction):
    pass


@pytest.fixture(autouse=True)
def no_registrations(monkeypatch):
    monkeypatch.setattr(module, "collect_registrations", lambda names: ())


@pytest.fixture
def libraries(monkeypatch):
    """Modules of torch and Triton that hold these classes; everything else of theirs is absent."""
    for name, one in (
        ("torch._inductor.output_code", CompiledFxGraph),
        ("triton.runtime.jit", JITFunction),
    ):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**{one.__name__: one}))


def origins(names):
    known = {GEMM: RecordedKernel(GEMM, "libgemm.so", "ab12", (RecordedUnit("gemm.cu", "12345678"),))}
    return {name: known[name] for name in names if name in known}


def names(*kernels, files=(), keys=()):
    return TraceNames(frozenset(kernels), frozenset(), frozenset(files), frozenset(keys))


def test_kernels_are_given_to_their_libraries(tmp_path):
    found = collect(names(GEMM, "unknown"), tmp_path / "t.kernels", origins)
    assert found.kernels == (RecordedKernel("unknown"), origins([GEMM])[GEMM])
    assert (found.kernel_sources, found.gaps) == ((), ())
    assert not (tmp_path / "t.kernels").exists()


def test_nothing_is_asked_for_a_trace_without_kernels(tmp_path):
    def never(names):
        raise AssertionError

    found = collect(names(), tmp_path, never)
    assert (found.kernels, found.kernel_sources, found.registrations, found.gaps) == ((), (), (), ())


def test_a_part_that_fails_is_a_gap(tmp_path, monkeypatch):
    def fail(*args):
        raise OSError("no such library")

    monkeypatch.setattr(module, "extension_sources", fail)
    monkeypatch.setattr(module, "live_objects", fail)
    monkeypatch.setattr(module, "collect_registrations", fail)
    found = collect(names(GEMM), tmp_path, fail)
    assert found.kernels == (RecordedKernel(GEMM),)
    assert [(gap.part, gap.reason) for gap in found.gaps] == [
        ("Triton kernels", "OSError: no such library"),
        ("kernel origins", "OSError: no such library"),
        ("CUDA extensions", "OSError: no such library"),
        ("registrations", "OSError: no such library"),
    ]


def test_an_interruption_is_no_gap(tmp_path):
    def interrupted(names):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect(names(GEMM), tmp_path, interrupted)


@pytest.mark.usefixtures("libraries")
def test_generated_kernels_are_copied_and_joined_with_their_graph(
    tmp_path: Path, graph_text, kernel_text, tracking
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
    found = collect(
        names("triton_poi_k_0", GEMM, files=[str(file)], keys=[KEY]),
        copies,
        lambda names: asked.extend(names) or {},
    )
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
def test_a_replayed_kernel_is_copied_from_the_graphs_code(tmp_path, graph_text, kernel_text):
    text = kernel_text("k")
    graph = CompiledFxGraph(graph_text("0_inference", {"k": text}))
    found = collect(names("k", keys=[KEY]), tmp_path / "t.kernels")
    (source,) = found.kernel_sources
    assert source.evidence.value == "process"
    assert source_hash((tmp_path / source.copy).read_text()) == source.hash == source_hash(text)
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
def test_hand_written_triton_kernels_are_found(tmp_path):
    function = GluonJITFunction(test_a_part_that_fails_is_a_gap)
    (source,) = collect(names("test_a_part_that_fails_is_a_gap"), tmp_path).kernel_sources
    assert (source.kind.value, source.file) == ("triton", __file__)
    del function


@pytest.mark.usefixtures("libraries")
def test_objects_of_other_releases_are_passed_over():
    one, two = CompiledFxGraph(None), CompiledFxGraph("print('no kernel')")
    three = CompiledFxGraph("async_compile.triton(")
    del three._fx_graph_cache_key
    assert [graph.key for graph in compiled_graphs((one, two, three))] == [None]


def test_libraries_that_are_not_loaded_hold_nothing(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch._inductor.output_code", ModuleType("empty"))
    monkeypatch.delitem(sys.modules, "triton.runtime.jit", raising=False)
    found = live_objects()
    assert (found.graphs, found.functions) == ((), ())


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
