"""The structured log of torch.compile: a small one in its layout, and a real one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from opscope.errors import InputError
from opscope.model.evidence import Grade
from opscope.model.generated_code import CompiledGraph, parse_graph, source_hash
from opscope.model.location import SourceLocation
from opscope.model.session import Session
from opscope.provenance.inductor import complete_sources, read_compile_log, source_locations
from opscope.testing import TraceBuilder

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
from opscope.model.generated_code import parse_tracking

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
@pytest.mark.exhaustive  # compiled anew: 19 s of processor time
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


INDUCTOR_CODE = {"inductor_output_code": {"filename": "/cache/x.py"}}
INDUCTOR_STACKS = {
    "artifact": {"name": "inductor_provenance_tracking_kernel_stack_traces", "encoding": "json"}
}
HIT = {"artifact": {"name": "fx_graph_cache_hit", "encoding": "json"}}


@pytest.fixture
def trace() -> Callable[..., TraceBuilder]:
    """A trace that launches kernels by their file, and replays others in a graph of a key."""

    def make(launched: dict[str, str], replayed: tuple[str, ...] = (), key: str = "fosf") -> TraceBuilder:
        built = TraceBuilder()
        for name, file in launched.items():
            arguments = {"kernel_backend": "triton", "kernel_file": file, "kernel_hash": Path(file).stem}
            built.operator(name, 10, 5, **arguments).launch(11).kernel(name, 20, 2)
        built.event("user_annotation", f"## Call CompiledFxGraph {key} ##", 40, 9, 1, {})
        built.launch(41, name="cudaGraphLaunch")
        for name in replayed:
            built.kernel(name, 50, 3)
        return built

    return make


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a generated file as inductor's cache has it."""

    def write(text: str, folder: str = "cache") -> Path:
        file = tmp_path / folder / f"{source_hash(text)}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        return file

    return write


def sources(session: Session) -> list[dict[str, Any]]:
    return session.records(
        "SELECT n.name, s.* EXCLUDE (name_id) FROM kernel_sources s JOIN kernel_names n USING (name_id)"
        " ORDER BY n.name, graph"
    )


def test_a_file_that_is_still_there_is_read(load, trace, written, kernel_text):
    file = written(kernel_text("triton_poi_k_0"))
    session = load(trace({"triton_poi_k_0": str(file), "triton_gone": "/none/cgone.py"}))
    assert complete_sources(session) == 1
    assert complete_sources(session) == 0
    (row,) = sources(session)
    assert (row["name"], row["evidence"], row["heuristic"], row["hash"]) == (
        "triton_poi_k_0", "launch", "pointwise", file.stem,
    )  # fmt: skip
    assert source_locations(session) == {
        "triton_poi_k_0": SourceLocation(str(file), Grade.EXACT, row["line"], row["end_line"], Grade.EXACT)
    }


def test_a_file_whose_text_is_another_is_left_aside(load, trace, written, kernel_text):
    file = written(kernel_text("k"))
    file.write_text(kernel_text("k", body="pass"))
    session = load(trace({"k": str(file)}))
    assert complete_sources(session) == 0
    assert source_locations(session) == {}


def test_copies_beside_the_trace_come_first(load, trace, written, kernel_text):
    copy = written(kernel_text("k"), "trace.kernels")
    session = load(trace({"k": f"/gone/{copy.name}"}))
    assert complete_sources(session) == 1
    assert sources(session)[0]["file"] == f"/gone/{copy.name}"


class TestLogs:
    @pytest.fixture
    def log(self, tmp_path: Path, log_text, graph_text, kernel_text, tracking) -> Path:
        """A log of two graphs that each define `k`."""
        records = []
        for number, body in enumerate(("pass", "return")):
            code = graph_text(f"{number}_forward", {"k": kernel_text("k", body=body)})
            records += [
                (INDUCTOR_CODE, code),
                (INDUCTOR_STACKS, tracking(k=number + 5)[0]),
                (HIT, f'{{"key": "key-{number}"}}'),
            ]
        (tmp_path / "trace.log").write_text(log_text(*records))
        return tmp_path / "trace.log"

    def test_a_replayed_kernel_is_that_of_the_graph_that_ran(self, load, trace, log):
        session = load(trace({}, ("k",), key="key-1"))
        assert complete_sources(session, log) == 1
        (row,) = sources(session)
        assert (row["evidence"], row["graph"]) == ("log", "1_forward")
        assert msgspec.json.decode(row["stacks"])[0][0]["line"] == 6
        assert source_locations(session)["k"].file == f"/cache/ab/{row['hash']}.py"

    def test_graphs_that_cannot_be_told_apart_yield_no_location(self, load, log):
        session = load(TraceBuilder().launch(1).kernel("k", 5, 1))
        assert complete_sources(session, log) == 2
        assert source_locations(session) == {}

    def test_what_is_recorded_stays_and_gains_stacks(self, load, trace, log, kernel_text, written):
        file = written(kernel_text("k", body="pass"))
        session = load(trace({"k": str(file)}, key="key-0"))
        complete_sources(session)
        (before,) = sources(session)
        assert complete_sources(session, log) == 1
        (after,) = sources(session)
        gained = {name for name, value in after.items() if value != before[name]}
        assert gained == {"graph", "graph_key", "stacks", "original_aten", "source_nodes"}

    def test_a_saved_session_is_completed_for_its_reader_alone(self, load, trace, log, tmp_path: Path):
        saved = load(trace({}, ("k",), key="key-0")).save(tmp_path / "s.opscope")
        with Session.open(saved) as session:
            assert complete_sources(session, log) == 1
            assert len(sources(session)) == 1
        with Session.open(saved) as session:
            assert sources(session) == []


def test_launches_outweigh_names_and_a_users_own_file_the_generated_one(load, trace):
    session = load(trace({}, ("k", "scale", "nowhere")))
    ids = dict(session.query("SELECT name, name_id FROM kernel_names"))
    launched = {"name_id": ids["k"], "kind": "inductor", "evidence": "launch", "file": "/a.py", "line": 3}
    rows = [
        launched,
        {**launched, "graph": "1_forward"},
        {"name_id": ids["k"], "kind": "inductor", "evidence": "process", "file": "/b.py"},
        {"name_id": ids["scale"], "kind": "inductor", "evidence": "process", "file": "/c.py", "line": 9,
         "user_file": "/home/me/kernels.py", "user_line": 12},
        {"name_id": ids["nowhere"], "kind": "inductor", "evidence": "process"},
    ]  # fmt: skip
    session.replace_rows("kernel_sources", rows)
    assert source_locations(session) == {
        "k": SourceLocation("/a.py", Grade.EXACT, 3, None, Grade.EXACT),
        "scale": SourceLocation("/home/me/kernels.py", Grade.EXACT, 12, None, Grade.EXACT),
    }


def test_real_traces_without_their_files_stay_as_they_are(load, shared):
    for name in ("bert_compile_bf16", "gpt2_compile_cudagraph_bf16"):
        session = load(shared / "traces" / "h200" / f"{name}.json.gz")
        assert complete_sources(session) == 0
        assert source_locations(session) == {}
