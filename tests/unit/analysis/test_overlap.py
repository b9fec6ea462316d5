"""Communication beside computation, by rank."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import opscope
from opscope.analysis.communication import CommunicationOverlap, communication_overlap
from opscope.errors import InputError
from opscope.testing import TraceBuilder

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def trace(rank: int = 0, **properties: object) -> TraceBuilder:
    """A step that computes for 100 µs and communicates for 60, of which 20 beside it; and work before it."""
    built = TraceBuilder(distributedInfo={"rank": rank, "world_size": 2}, **properties)
    built.launch(0).kernel("early", 2, 30).step(1, 50, 400)
    built.operator("aten::mm", 60, 20).launch(65).kernel("gemm", 100, 100)
    built.operator("c10d::allreduce_", 90, 10).launch(95).kernel(NCCL, 180, 60, stream=9)
    built.launch(120).kernel("Memcpy DtoD (Device -> Device)", 300, 50, category="gpu_memcpy")
    return built


def test_what_steps_launched_counts(tmp_path: Path) -> None:
    path = trace().write(tmp_path / "trace.json")
    (found,) = communication_overlap([str(path)])
    assert found == CommunicationOverlap(str(path), 0, 0, 100_000, 60_000, 20_000)
    assert found.exposed_ns == 40_000
    assert found.overlapped_fraction == pytest.approx(1 / 3)


def test_without_steps_all_that_was_recorded_counts(tmp_path: Path) -> None:
    built = TraceBuilder().launch(0).kernel("gemm", 2, 30).launch(5).kernel(NCCL, 20, 20, stream=9)
    (found,) = communication_overlap([str(built.write(tmp_path / "trace.json"))])
    assert (found.rank, found.computation_ns, found.overlapped_ns) == (None, 30_000, 12_000)


def test_ranks_come_in_order_whatever_their_files_are_called(tmp_path: Path) -> None:
    trace(1).write(tmp_path / "a.json")
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(trace(0).text().encode()))
    assert [one.rank for one in opscope.overlap(tmp_path)] == [0, 1]


def test_a_trace_without_device_work_has_no_row(tmp_path: Path) -> None:
    assert opscope.overlap(TraceBuilder().operator("aten::mm", 0, 5).write(tmp_path / "t.json")) == ()


@pytest.mark.parametrize(
    "change",
    [
        lambda event: event.update(ts=event["ts"] + 1.7e15 + 0.123),
        lambda event: event.update(ts=str(event["ts"])),
        lambda event: event["args"].update(correlation=str(event["args"].get("correlation", 0))),
        lambda event: event.update(cat={"kernel": "Kernel", "cuda_runtime": "Runtime",
                                         "user_annotation": "Operator"}.get(event["cat"], event["cat"])),
    ],
)  # fmt: skip
def test_what_is_unusual_is_read_too(tmp_path: Path, change) -> None:
    built = trace()
    for event in built.events:
        if event.get("ph") == "X":
            change(event)
    path = built.write(tmp_path / "trace.json")
    (found,) = communication_overlap([str(path)])
    assert found.computation_ns == pytest.approx(100_000, abs=1000)
    assert found.overlapped_ns == pytest.approx(20_000, abs=1000)


def test_of_an_activity_whose_call_is_missing_the_operator_tells_the_step(tmp_path: Path) -> None:
    built = trace().operator("aten::mm", 200, 20, external_id=77)
    built.kernel("gemm", 400, 10, correlation=9_999, **{"External id": 77})
    path = built.write(tmp_path / "trace.json")
    assert [one.computation_ns for one in communication_overlap([str(path)])] == [110_000]


def test_a_file_that_is_cut_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    text = trace().text()
    path = tmp_path / "cut.json"
    path.write_text(text[: text.rindex('"Memcpy')], encoding="utf-8")
    (found,) = communication_overlap([str(path)])
    assert found.overlapped_ns == 20_000


@pytest.mark.parametrize("text", ["", "[]", "{}", "not json"])
def test_what_is_no_trace_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"trace\.json"):
        communication_overlap([str(path)])


def test_the_verb_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from opscope.cli.app import main

    path = trace().write(tmp_path / "trace.json")
    assert main(["analyze", str(path), "--overlap"]) == 0
    assert "33.3 % of communication runs beside computation" in capsys.readouterr().out
    assert main(["analyze", str(path), "--overlap", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["overlap"]
    assert (row["rank"], row["communication_ns"], row["exposed_ns"]) == (0, 60_000, 40_000)
