"""The structured log of torch.compile: a small one in its layout, and a real one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from opscope.errors import InputError
from opscope.model.compiled_graph import CompiledGraph
from opscope.model.generated_code import parse_graph
from opscope.provenance.compile_log import read_compile_log

STACKS = {"artifact": {"name": "inductor_provenance_tracking_kernel_stack_traces", "encoding": "json"}}
NODES = {"artifact": {"name": "inductor_provenance_tracking_node_mappings", "encoding": "json"}}
MISS = {"artifact": {"name": "fx_graph_cache_miss", "encoding": "json"}}
OTHER = {"artifact": {"name": "before_post_grad_graph", "encoding": "string"}}
CODE = {"inductor_output_code": {"filename": "/cache/x.py", "file_path": "/cache/x.py"}}


@pytest.fixture
def codes(graph_text, kernel_text):
    """Code of a forward and of a backward graph."""
    return (
        graph_text("0_forward", {"triton_poi_gelu_0": kernel_text("triton_poi_gelu_0")}),
        graph_text("0_backward", {"triton_poi_back_0": kernel_text("triton_poi_back_0")}),
    )


def test_graphs_are_put_together(tmp_path: Path, codes, tracking, log_text):
    forward, backward = codes
    records = [
        ({"dynamo_start": {"stack": []}}, None),
        (CODE, forward),
        (OTHER, 'V1121 ] {"artifact": 1}\n"key": "wrong"'),
        (NODES, tracking(triton_poi_gelu_0=7)[1]),
        (STACKS, tracking(triton_poi_gelu_0=7)[0]),
        (MISS, '{"cache_status_detailed": "full_miss", "key": "fosf", "components": ["long"]}'),
        (CODE, backward),
        (NODES, '{"version": 2.0}'),
        (STACKS, tracking(triton_poi_back_0=8)[0]),
    ]
    (tmp_path / "dedicated_log_torch_trace_x.log").write_text(log_text(*records))
    first, second = read_compile_log(tmp_path)
    assert (first.code, first.key) == (parse_graph(forward), "fosf")
    (kernel,) = first.code.kernels
    (stack,) = first.stacks_of(kernel)
    assert (stack[-1].file, stack[-1].line, stack[-1].code) == ("/home/me/model.py", 7, "h = F.gelu(h)")
    assert first.nodes_of(kernel) == ("mul", "erf")
    assert (second.code.graph, second.key, second.nodes) == ("0_backward", None, {})
    assert second.stacks_of(second.code.kernels[0])[0][-1].line == 8


def test_compilations_at_the_same_time_are_told_apart(tmp_path: Path, codes, tracking, log_text):
    one = log_text((CODE, codes[0]), compile_id=0) + log_text((CODE, codes[1]), compile_id=1)
    one += log_text((STACKS, tracking(triton_poi_gelu_0=7)[0]), compile_id=0)
    (tmp_path / "a.log").write_text(one)
    assert [len(graph.stacks) for graph in read_compile_log(tmp_path / "a.log")] == [1, 0]


def test_several_files_hold_each_graph_once(tmp_path: Path, codes, log_text):
    for rank in range(2):
        (tmp_path / f"rank{rank}.log").write_text(log_text((CODE, codes[0])))
    assert read_compile_log(tmp_path) == (CompiledGraph(parse_graph(codes[0])),)


@pytest.mark.parametrize("text", ["", "not a log\n\tV", "V1121 11:52:03.0 1 x.py:1] {broken\n\t{}\n"])
def test_other_files_are_refused(tmp_path: Path, text):
    (tmp_path / "a.log").write_text(text)
    with pytest.raises(InputError, match="TORCH_TRACE"):
        read_compile_log(tmp_path)


def test_missing_files_are_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"none\.log.*cannot be read"):
        read_compile_log(tmp_path / "none.log")
    with pytest.raises(InputError, match="no log"):
        read_compile_log(tmp_path)


PROGRAM = """
import torch, torch.nn.functional as F
from opscope.capture.process_sources import live_objects
from opscope.model.compiled_graph import parse_tracking

def forward(x, w):
    h = F.gelu(x @ w)
    return torch.softmax(h, -1)

w = torch.randn(8, 8, requires_grad=True)
torch.compile(forward)(torch.randn(4, 8), w).sum().backward()
for graph in live_objects().graphs:
    stacks, _ = parse_tracking(graph.inductor_provenance_stack_traces_str, None)
    frames = [frame for use in stacks.values() for stack in use for frame in stack]
    print(graph._fx_graph_cache_key, sorted({frame.line for frame in frames}))
"""


@pytest.mark.torch
def test_a_real_log_says_what_the_process_says(tmp_path: Path):
    pytest.importorskip("torch")
    if not any(map(shutil.which, ("g++", "clang++", "c++"))):
        pytest.skip("no C++ compiler")
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {
        **os.environ, "TORCH_TRACE": str(tmp_path / "log"), "INDUCTOR_PROVENANCE": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }  # fmt: skip
    run = subprocess.run(
        [sys.executable, tmp_path / "program.py"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    in_process = sorted(line for line in run.stdout.splitlines() if line)
    logged = read_compile_log(tmp_path / "log")
    assert sorted(graph.code.graph for graph in logged) == ["0_backward", "0_forward"]
    lines = {
        graph.key: sorted({f.line for use in graph.stacks.values() for stack in use for f in stack})
        for graph in logged
    }
    assert sorted(f"{key} {found}" for key, found in lines.items()) == in_process
    assert all({7, 8} >= set(found) and found for found in lines.values())
