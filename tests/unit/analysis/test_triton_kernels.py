"""One row per kernel that Triton compiled; `triton_kernels.sql`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from opscope.model.queries import sql
from opscope.model.session import Session
from opscope.testing import TraceBuilder

Load = Callable[..., Session]


def rows(session: Session) -> dict[str, dict[str, Any]]:
    return {row.pop("name"): row for row in session.records(sql("opscope.analysis", "triton_kernels"))}


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
    assert name == "triton_poi_k_0"
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


def test_replays_are_found_by_their_recorded_source(load: Load) -> None:
    built = TraceBuilder().operator("replay", 0, 9).launch(1, name="cudaGraphLaunch")
    built.kernel("triton_red_x_1", 5, 2).kernel("gelu_tanh", 7, 1).kernel("nvjet", 9, 1)
    session = load(built)
    assert not rows(session)
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
    assert (red["configurations"], red["file"], red["line"], red["hash"]) == (None, "/c/cx.py", 18, "cx")
    assert found["gelu_tanh"]["line"] == 3
