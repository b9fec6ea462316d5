import gzip
import json
from pathlib import Path

import pytest

from fakes import TraceBuilder
from opscope.capture import recording as module
from opscope.capture.recording import TraceNames, export_trace, read_trace_names
from opscope.errors import CaptureError


def saver(text):
    return lambda path: Path(path).write_text(text.replace("PATH", path))


TRACE = Path(__file__).with_name("named_trace.json").read_text(encoding="utf-8")


def test_the_trace_is_named_after_its_file(tmp_path):
    target = tmp_path / "a trace.json"
    export_trace(saver(TRACE), target, Path.read_bytes)
    assert json.loads(target.read_text()) == {
        "traceEvents": [{"name": '"traceName": "no"'}],
        "traceName": "a trace.json",
        "displayTimeUnit": "ms",
    }
    assert list(tmp_path.iterdir()) == [target]


def test_a_gz_target_is_compressed_and_a_trace_without_a_name_stays(tmp_path):
    target = tmp_path / "t.json.gz"
    text = export_trace(saver(TRACE), target, Path.read_bytes)
    assert text == gzip.decompress(target.read_bytes())
    assert json.loads(gzip.decompress(target.read_bytes()))["traceName"] == "t.json.gz"
    assert list(tmp_path.iterdir()) == [target]
    export_trace(saver('{"traceEvents": []}'), tmp_path / "t.json", Path.read_bytes)
    assert (tmp_path / "t.json").read_text() == '{"traceEvents": []}'


@pytest.mark.parametrize("text", ["", '{"traceEvents": [{"na'])
def test_a_cut_trace_is_refused_and_an_older_file_kept(tmp_path, text):
    target = tmp_path / "t.json"
    target.write_text("old")
    with pytest.raises(CaptureError, match="incomplete"):
        export_trace(saver(text), target, Path.read_bytes)
    assert list(tmp_path.iterdir()) == [target]
    assert target.read_text() == "old"


def test_an_interruption_leaves_nothing(tmp_path):
    def interrupted(path):
        Path(path).write_text("{")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_trace(interrupted, tmp_path / "t.json", Path.read_bytes)
    assert list(tmp_path.iterdir()) == []


KEY = "fosfriiha5ggq7h4mbwmcdeapadugdzcmj6qe37u3dmfz3zdpbx4"


@pytest.fixture
def trace(tmp_path):
    builder = TraceBuilder().step(1, 0, 100)
    for _ in range(3):
        builder.operator("aten::mm", 1, 5).operator("triton_k", 6, 2, kernel_file="/cache/a b/ck.py")
        builder.launch(7).kernel("void gemm<float>(float*)", 20, 5).kernel('say "a\\"', 30, 1)
    builder.event("user_annotation", f"## Call CompiledFxGraph {KEY} ##", 0, 9, 1, {})
    builder.kernel("Memset (Device)", 40, 1, category="gpu_memset")
    return builder.write(tmp_path / "trace.json")


@pytest.mark.parametrize("chunk_bytes", [1 << 20, 1000, 100, 64])
def test_each_name_once_also_at_the_edge_of_a_chunk(trace, monkeypatch, chunk_bytes):
    monkeypatch.setattr(module, "_CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(module, "_OVERLAP_BYTES", 200)
    assert read_trace_names(trace) == TraceNames(
        kernels=frozenset({"void gemm<float>(float*)", 'say "a\\"'}),
        operators=frozenset({"aten::mm", "triton_k"}),
        kernel_files=frozenset({"/cache/a b/ck.py"}),
        graph_keys=frozenset({KEY}),
    )


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
