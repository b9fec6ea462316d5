"""One row per kernel that Triton compiled; `triton_kernels.sql`."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import resources
from typing import Any

import pytest

from opscope.model.session import Session
from opscope.testing import TraceBuilder

Load = Callable[..., Session]

QUERY = resources.files("opscope.analysis").joinpath("triton_kernels.sql").read_text(encoding="utf-8")


def rows(session: Session) -> dict[str, dict[str, Any]]:
    return {row.pop("name"): row for row in session.records(QUERY)}


def launch(built: TraceBuilder, name: str, start: float, duration: float, **arguments: Any) -> TraceBuilder:
    arguments = {"kernel_backend": "triton", "kernel_file": "/c/ca.py", "kernel_hash": "ca", **arguments}
    return built.operator(name, start, 5, **arguments).launch(start + 1).kernel(name, start + 2, duration)


def test_launches_agree_or_are_counted_apart(load: Load) -> None:
    built = TraceBuilder()
    for start, warps in ((0, 4), (10, 4), (20, 8)):
        facts = {"num_stages": 1, "kernel_kwargs": "XBLOCK=64", "kernel_num_gb": 0.5}
        launch(built, "triton_poi_k_0", start, start + 1, num_warps=warps, kernel_flop=1e9 * warps, **facts)
    (name, row), *others = rows(load(built)).items()
    assert not others
    assert (name, row["calls"], row["total_ns"], row["recorded_launches"]) == ("triton_poi_k_0", 3, 33_000, 3)
    assert (row["file"], row["hash"], row["kernel_num_gb"], row["kernel_flop"]) == (
        "/c/ca.py",
        "ca",
        0.5,
        None,
    )
    assert [
        (entry["num_warps"], entry["calls"], entry["total_ns"]) for entry in json.loads(row["configurations"])
    ] == [(8, 1, 21_000), (4, 2, 12_000)]


def test_two_sources_of_one_name_are_no_source(load: Load) -> None:
    built = launch(launch(TraceBuilder(), "k", 0, 1), "k", 10, 1, kernel_file="/c/cb.py", kernel_hash="cb")
    assert (rows(load(built))["k"]["file"], rows(load(built))["k"]["hash"]) == (None, None)


def test_older_recorders_name_the_operator_after_the_kernel(load: Load) -> None:
    built = launch(TraceBuilder(), "triton_poi_k_0", 0, 1, grid="grid(100,)", stream=0)
    launch(built, "triton kernel", 10, 1)
    session = load(built)
    assert session.query("SELECT kernel_name, grid, stream FROM triton_launches ORDER BY operator_id") == [
        ("triton_poi_k_0", "grid(100,)", 0),
        (None, None, None),
    ]
    found = rows(session)
    assert found.keys() == {"triton_poi_k_0"}
    assert json.loads(found["triton_poi_k_0"]["configurations"])[0]["grid"] == "grid(100,)"


def test_replays_are_found_by_name_and_by_their_recorded_source(load: Load) -> None:
    built = TraceBuilder().operator("replay", 0, 9).launch(1, name="cudaGraphLaunch")
    built.kernel("triton_red_x_1", 5, 2).kernel("gelu_tanh", 7, 1).kernel("nvjet", 9, 1)
    session = load(built)
    assert rows(session).keys() == {"triton_red_x_1"}
    ids = dict(session.query("SELECT name, name_id FROM kernel_names"))
    inductor = {
        "name_id": ids["triton_red_x_1"], "kind": "inductor", "evidence": "process", "file": "/c/cx.py",
        "line": 18, "hash": "cx", "heuristic": "reduction", "meta": {"num_load": 2},
    }  # fmt: skip
    session.replace_rows("kernel_sources", [
        {**inductor, "graph": "0_forward", "original_aten": ["aten::sum"], "source_nodes": ["b", "a"]},
        {**inductor, "graph": "1_forward", "original_aten": ["aten::sum"], "source_nodes": ["c"]},
        {"name_id": ids["gelu_tanh"], "kind": "triton", "evidence": "process", "file": "/me/k.py", "line": 3},
        {"name_id": ids["nvjet"], "kind": "cuda", "evidence": "process", "file": "/me/k.cu", "line": 3},
    ])  # fmt: skip
    found = rows(session)
    assert found.keys() == {"triton_red_x_1", "gelu_tanh"}
    red = found["triton_red_x_1"]
    assert (red["calls"], red["graph_replays"], red["recorded_launches"], red["configurations"]) == (
        1,
        1,
        0,
        None,
    )
    assert (red["file"], red["line"], red["hash"], red["heuristic"]) == ("/c/cx.py", 18, "cx", "reduction")
    assert (red["original_aten"], red["source_nodes"]) == (["aten::sum"], ["a", "b", "c"])
    assert json.loads(red["meta"]) == {"num_load": 2}
    assert (found["gelu_tanh"]["kind"], found["gelu_tanh"]["line"]) == ("triton", 3)


@pytest.mark.parametrize(
    ("trace", "launches", "replays"), [("bert_compile_bf16", 294, 0), ("gpt2_compile_cudagraph_bf16", 0, 84)]
)
def test_real_traces(load: Load, shared, trace: str, launches: int, replays: int) -> None:
    session = load(shared / "traces" / "h200" / f"{trace}.json.gz")
    found = rows(session)
    assert sum(row["recorded_launches"] for row in found.values()) == launches
    assert sum(row["graph_replays"] for row in found.values()) == replays
    assert sum(row["calls"] for row in found.values()) == launches + replays
    assert all((row["hash"] is None) == (launches == 0) for row in found.values())
    total = """SELECT sum(duration_ns) FROM device_activities
        JOIN kernel_names USING (name_id) WHERE name LIKE 'triton%'"""
    assert sum(row["total_ns"] for row in found.values()) == session.scalar(total)
