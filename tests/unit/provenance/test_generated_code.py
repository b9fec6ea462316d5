"""What torch.compile generated: its kernels and graphs, and which source is matched to which kernel."""

import json
from pathlib import Path

import pytest

from case_tables import cases
from opscope.model.origin import SourceEvidence
from opscope.provenance.generated_code import (
    CompiledGraph,
    files_by_hash,
    generated_sources,
    parse_graph,
    parse_kernel,
    parse_stack,
    parse_tracking,
    read_generated,
    recorded_source,
    source_hash,
)

USER_KERNEL = Path(__file__).with_name("user_kernel.txt").read_text(encoding="utf-8")


def test_the_hash_is_inductors_own():
    # torch._inductor.codecache.code_hash("x = 1") of 2.13
    assert source_hash("\nx = 1\n") == "cr72dnxxriujikwm2dmnnocaaje5y3sx54kis4grygrldgbkojqt"


def test_a_generated_kernel_says_what_it_is(kernel_text):
    text = kernel_text("triton_poi_fused_gelu_0")
    kernel = parse_kernel(text)
    lines = text.split("\n")
    assert (kernel["kernel"], kernel["heuristic"]) == ("triton_poi_fused_gelu_0", "pointwise")
    assert lines[kernel["line"] - 1].startswith("def triton_poi_fused_gelu_0(")
    assert kernel["end_line"] == len(lines) - 1
    assert kernel["meta"] == {
        "kernel_name": "triton_poi_fused_gelu_0", "grid_type": "Grid1D", "num_load": 2, "num_reduction": 0,
        "kernel_num_gb": 0.5, "tiling_scores": {"x": -1}, "size_hints": {"x": 1024},
        "reduction_hint": "INNER",
    }  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "", "def f(: pass", "x = 1\0", "def plain(): pass", "(" * 5000,
        "@triton.jit\ndef a(): pass\n@triton.jit\ndef b(): pass\n",
    ],
)  # fmt: skip
def test_a_text_that_defines_no_kernel_or_several_yields_none(text):
    assert parse_kernel(text) is None


@cases("literal", "value")
def test_values_are_json_or_unknown(literal, value):
    text = f"@triton_heuristics.x(inductor_meta={{'num_load': {literal}}})\n@triton.jit\ndef k(): pass\n"
    assert parse_kernel(text)["meta"] == ({} if value is None else {"num_load": value})


def test_the_code_of_a_graph_names_its_kernels(graph_text, kernel_text):
    gelu, norm = kernel_text("triton_poi_gelu_0"), kernel_text("triton_per_norm_1", heuristic="reduction")
    graph = parse_graph(graph_text("0_forward", {"triton_poi_gelu_0": gelu, "triton_per_norm_1": norm}))
    assert graph.graph == "0_forward"
    first, second = graph.kernels
    assert (first.name, first.function, first.hash) == ("triton_poi_gelu_0",) * 2 + (source_hash(gelu),)
    assert first.file == f"/cache/ab/{source_hash(gelu)}.py"
    assert first.text.strip() == gelu.strip()
    assert first.original_aten == ("aten::gelu", "prims::x")
    assert first.source_nodes == ("h", "h_1", "used_triton_poi_gelu_0")
    assert second.hash == source_hash(norm)


def test_a_users_own_kernel_keeps_its_place():
    text = (
        "# Original path: /home/me/my kernels.py:12\n"
        f"scale_0 = async_compile.triton('scale', '''{USER_KERNEL}''', device_str='cuda')\n"
    )
    (kernel,) = parse_graph(text).kernels
    assert (kernel.user_file, kernel.user_line, kernel.file) == ("/home/me/my kernels.py", 12, None)
    assert kernel.hash == source_hash(USER_KERNEL)


def test_functions_that_a_kernel_calls_are_not_the_kernel():
    kernel = parse_kernel(USER_KERNEL)
    assert (kernel["kernel"], kernel["heuristic"]) == ("scale", "user_autotune")
    assert kernel["meta"]["configs"][1] == {"kwargs": {"BLOCK": 128}, "num_warps": 8}
    assert parse_kernel(USER_KERNEL, "helper")["line"] == 3


STACK = Path(__file__).with_name("stack.txt").read_text(encoding="utf-8")


def test_all_uses_of_a_kernel_count_and_each_line_once(graph_text, kernel_text):
    code = parse_graph(graph_text("0_backward", {"k": kernel_text("k"), "k_1": kernel_text("k_1")}))
    stacks, nodes = parse_tracking(
        json.dumps(
            {"k:2": [STACK, STACK], "k:5": [STACK], "k_1:3": ["other"], "extern_kernels.mm:1": [STACK]}
        ),
        json.dumps({"cppCodeToPost": {"k:2": ["mul"], "k:5": ["mul", "erf"]}, "version": 2.0}),
    )
    graph = CompiledGraph(code, "key", stacks, nodes)
    first, second = (recorded_source(graph, one, None, SourceEvidence.PROCESS) for one in code.kernels)
    assert first.stacks == (parse_stack(STACK),)
    assert first.post_grad_nodes == ("mul", "erf")
    assert second.stacks == ()
    assert len(stacks["extern_kernels.mm:1"]) == 1


@pytest.mark.parametrize("text", [None, "", "[]", "not JSON", '{"k": 1, "cppCodeToPost": 5}', "[" * 50_000])
def test_absent_or_other_tracking_is_empty(text):
    assert parse_tracking(text, text) == ({}, {})


def test_lines_are_those_of_the_file(graph_text, kernel_text):
    text = kernel_text("k")
    graph = CompiledGraph(parse_graph(graph_text("0_forward", {"k": text})), "key")
    (kernel,) = graph.code.kernels
    source = recorded_source(graph, kernel, text.lstrip(), SourceEvidence.PROCESS)
    assert recorded_source(graph, kernel, text, SourceEvidence.PROCESS).line == source.line + 1
    assert (source.graph, source.graph_key, source.heuristic) == ("0_forward", "key", "pointwise")
    assert recorded_source(graph, kernel, None, SourceEvidence.PROCESS).line is None


@pytest.fixture
def graphs(graph_text, kernel_text):
    """Two graphs that define a kernel `k` differently, and one with caches off that defines `other`."""
    one, two, other = kernel_text("k"), kernel_text("k", body="pass"), kernel_text("other")
    return (
        CompiledGraph(parse_graph(graph_text("0_forward", {"k": one})), "key-one"),
        CompiledGraph(parse_graph(graph_text("1_forward", {"k": two})), "key-two"),
        CompiledGraph(parse_graph(graph_text("2_inference", {"other": other})), None),
    )


def match(graphs, kernels={"k"}, launched=(), keys=()):  # noqa: B006
    files = files_by_hash(f"/cache/{hash_}.py" for hash_ in launched)
    found = generated_sources(kernels, files, set(keys), graphs, read=lambda file, hash_: None)
    return [(source.kernel, source.graph, source.evidence.value) for source, _ in found]


def read_or_none(file, hash_):
    return None if file is None else read_generated(file, hash_)


def hashes(graphs):
    return [graph.code.kernels[0].hash for graph in graphs]


def test_a_launch_names_its_source_beside_graphs_that_are_replayed(graphs):
    assert match(graphs, launched=hashes(graphs)[:1]) == [("k", "0_forward", "launch")]
    for launched, second in ((2, "launch"), (1, "process")):
        found = match(graphs, launched=hashes(graphs)[:launched], keys=["key-one", "key-two"])
        assert found == [("k", "0_forward", "launch"), ("k", "1_forward", second)]


def test_without_launches_the_graphs_that_ran_decide(graphs):
    assert match(graphs, keys=["key-two"]) == [("k", "1_forward", "process")]
    assert match(graphs, kernels={"k", "other"}, keys=["None"]) == [("other", "2_inference", "process")]
    assert match(graphs) == [("k", "0_forward", "process"), ("k", "1_forward", "process")]
    assert match(graphs, kernels={"nvjet"}) == []


def test_a_launched_file_counts_without_its_graph(tmp_path, kernel_text):
    text = kernel_text("k", heuristic="reduction")
    file = tmp_path / f"{source_hash(text)}.py"
    file.write_text(text)
    edited = tmp_path / f"{source_hash('other')}.py"
    edited.write_text(text)
    files = files_by_hash([str(file), str(edited), str(tmp_path / "gone.py")])
    ((source, found_text),) = generated_sources({"k"}, files, read=read_or_none)
    assert (source.file, source.heuristic, source.graph, found_text) == (str(file), "reduction", None, text)
