from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from opscope.capture import trace_file as module
from opscope.capture.trace_file import TraceNames, read_trace_names
from opscope.testing import TraceBuilder

KEY = "fosfriiha5ggq7h4mbwmcdeapadugdzcmj6qe37u3dmfz3zdpbx4"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    builder = TraceBuilder().step(1, 0, 100)
    for _ in range(3):
        builder.operator("aten::mm", 1, 5).operator("triton_k", 6, 2, kernel_file="/cache/a b/ck.py")
        builder.launch(7).kernel("void gemm<float>(float*)", 20, 5).kernel('say "a\\"', 30, 1)
    builder.event("user_annotation", f"## Call CompiledFxGraph {KEY} ##", 0, 9, 1, {})
    builder.kernel("Memset (Device)", 40, 1, category="gpu_memset")
    return builder.write(tmp_path / "trace.json")


def test_each_name_once(trace):
    assert read_trace_names(trace) == TraceNames(
        kernels=frozenset({"void gemm<float>(float*)", 'say "a\\"'}),
        operators=frozenset({"aten::mm", "triton_k"}),
        kernel_files=frozenset({"/cache/a b/ck.py"}),
        graph_keys=frozenset({KEY}),
    )


@pytest.mark.parametrize("chunk_bytes", [64, 100, 1000])
def test_names_at_the_edge_of_a_chunk_are_found(trace, monkeypatch, chunk_bytes):
    whole = read_trace_names(trace)
    monkeypatch.setattr(module, "_CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(module, "_OVERLAP_BYTES", 200)
    assert read_trace_names(trace) == whole


@pytest.mark.parametrize(
    "text", ["", "{}", '{"traceEvents": [{"cat": "kernel", "name": "cut', '"cat": "kernel", "name": "\\x"']
)
def test_other_texts_have_no_names(tmp_path, text):
    (tmp_path / "t.json").write_text(text)
    assert read_trace_names(tmp_path / "t.json") == TraceNames()


@pytest.mark.parametrize("name", ["bert_compile_bf16", "gpt2_compile_cudagraph_bf16", "own_kernels"])
def test_real_traces_agree_with_their_events(shared, tmp_path, name):
    text = gzip.decompress((shared / "traces" / "h200" / f"{name}.json.gz").read_bytes())
    (tmp_path / "t.json").write_bytes(text)
    names = read_trace_names(tmp_path / "t.json")
    events = json.loads(text)["traceEvents"]
    assert names.kernels == {event["name"] for event in events if event.get("cat") == "kernel"}
    assert names.operators == {event["name"] for event in events if event.get("cat") == "cpu_op"}
    files = {event.get("args", {}).get("kernel_file") for event in events} - {None}
    assert names.kernel_files == files
