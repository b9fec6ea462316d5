"""Which source is matched to which kernel, from what a trace names."""

import pytest

from opscope.provenance.generated_code import (
    CompiledGraph,
    files_by_hash,
    generated_sources,
    parse_graph,
    read_generated,
    source_hash,
)


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
    assert match(graphs, launched=hashes(graphs)[:2], keys=["key-one", "key-two"]) == [
        ("k", "0_forward", "launch"),
        ("k", "1_forward", "launch"),
    ]
    assert match(graphs, launched=hashes(graphs)[:1], keys=["key-one", "key-two"]) == [
        ("k", "0_forward", "launch"),
        ("k", "1_forward", "process"),
    ]


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
