import json
from pathlib import Path

import pytest

from opscope.model.origin import SourceEvidence
from opscope.provenance.generated_code import (
    CompiledGraph,
    parse_graph,
    parse_stack,
    parse_tracking,
    recorded_source,
)

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
