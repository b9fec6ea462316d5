from __future__ import annotations

import json
from pathlib import Path

import pytest

from opscope.testing import TraceBuilder

from .conftest import saved


def test_json_is_the_only_thing_on_stdout(opscope, trace: Path) -> None:
    outcome = opscope("analyze", trace, "--json").fine()
    document = outcome.json
    assert document["trace"].endswith("trace.json")
    assert document["summary"]["device_time_ns"] == 452_125
    assert document["summary"]["attributed_ns"] == 450_125
    assert document["summary"]["kernel_launches"] == 3
    assert document["summary"]["operators"] == 3
    assert document["summary"]["steps"] == 1
    assert (
        document["unattributed"] == {"before_window": 2_000}
        or sum(document["unattributed"].values()) == 2_000
    )
    first = document["top_operators"][0]
    assert (first["name"], first["self_device_ns"], first["calls"]) == ("aten::addmm", 400_000, 1)
    device = document["summary"]["devices"][0]
    assert (device["span_ns"], device["busy_ns"], device["idle_ns"]) == (1_000_000, 452_125, 547_875)


def test_the_terminal_report(opscope, recording: Path) -> None:
    screen, everything = opscope("analyze", recording), opscope("analyze", recording, "--full")
    assert screen.code == everything.code == 0
    assert "aten::addmm" in screen.out
    assert "--section" in screen.out
    assert len(screen.out.splitlines()) <= 45
    assert "Unattributed time" not in screen.out
    assert "gemm|<float, 64>" in everything.out
    assert "Unattributed time" in everything.out


def test_files_are_written_and_named_last(opscope, trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    outcome = opscope(
        "analyze",
        trace,
        "-o",
        out / "analysis.json",
        "-o",
        out / "report.md",
        "--save",
        tmp_path / "s.opscope",
    ).fine()
    assert outcome.out.splitlines()[-3:] == [
        f"Wrote {out / 'analysis.json'}",
        f"Wrote {out / 'report.md'}",
        f"Wrote {tmp_path / 's.opscope'}",
    ]
    report = (out / "report.md").read_text("utf-8")
    assert "### 4.1 aten::addmm" in report
    assert "96×1×1 | 128×1×1 | 200 | 49,152 B | 12.0 %" in report
    assert json.loads((out / "analysis.json").read_text("utf-8"))["summary"]["device_time_ns"] == 452_125


def test_a_saved_session_gives_the_same_report(opscope, trace: Path, tmp_path: Path) -> None:
    session = tmp_path / "s.opscope"
    first = opscope("analyze", trace, "--json", "--save", session)
    assert first.err.splitlines()[-1] == f"Wrote {session}"
    assert opscope("analyze", session, "--json").json == first.json


def test_several_traces_are_one_session(opscope, trace: Path, tmp_path: Path) -> None:
    second = tmp_path / "second.json"
    second.write_bytes(trace.read_bytes())
    document = opscope("analyze", trace, second, "--json").json
    assert len(document["traces"]) == 2
    assert document["summary"]["device_time_ns"] == 2 * 452_125


def test_top_cuts_the_list(opscope, recording: Path) -> None:
    assert len(opscope("analyze", recording, "--json", "--top", 1).json["top_operators"]) == 1


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = TraceBuilder()
    for index in range(25):
        built.operator(f"aten::op{index}", 100 * index, 50).launch(100 * index + 1)
        built.kernel(f"kernel_{index}", 5_000 + 10 * index, 5)
    built.operator("aten::view", 4_000, 5)
    return saved(built.write(tmp_path_factory.mktemp("wide") / "wide.json"))


class TestAll:
    """`--top all`: every operator and kernel, also those without device time, in every form."""

    def test_in_json(self, opscope, wide: Path) -> None:
        assert len(opscope("analyze", wide, "--json").json["top_operators"]) == 10
        document = opscope("analyze", wide, "--json", "--top", "all").json
        names = [operator["name"] for operator in document["top_operators"]]
        assert sorted(names) == sorted([*(f"aten::op{index}" for index in range(25)), "aten::view"])
        assert len(document["kernels"]) == 25

    def test_in_text(self, opscope, wide: Path) -> None:
        ten, everything = (
            opscope("analyze", wide, "--section", "top", "kernels", "--top", top).out for top in ("10", "all")
        )
        assert "15 more names take 75.0 µs." in ten
        assert "more names" not in everything
        for name in (*(f"aten::op{index}" for index in range(25)), "aten::view", "kernel_24"):
            assert f"{name} " in everything
        assert "aten::view" not in ten

    def test_in_the_report(self, opscope, wide: Path, tmp_path: Path) -> None:
        assert opscope("analyze", wide, "--top", "all", "-o", tmp_path / "report.md").code == 0
        report = (tmp_path / "report.md").read_text("utf-8")
        assert "## 4. Top operators" in report
        assert "### 4.25 " in report
        assert "| `aten::view` |" in report


def test_a_memory_limit_is_passed_on(opscope, trace: Path) -> None:
    assert opscope("analyze", trace, "--json", "--memory-limit", "500MB").code == 0


def test_the_trace_with_its_critical_path(opscope, trace: Path, tmp_path: Path) -> None:
    marked = tmp_path / "marked.json"
    done = opscope("analyze", trace, "--export-trace", marked).fine()
    assert done.out.splitlines()[-1].endswith("marked.json")
    totals = [opscope("analyze", one, "--json").json["summary"] for one in (trace, marked)]
    assert totals[0] == totals[1]


def test_a_page_with_pictures(opscope, recording: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert opscope("analyze", recording, "--output", page).out.splitlines()[-1] == f"Wrote {page}"
    assert "To repeat" in page.read_text("utf-8")


def test_as_many_ranges_are_shown_as_operators(opscope, tmp_path: Path) -> None:
    builder = TraceBuilder()
    for number in range(12):
        at = 100 * number
        builder.event("user_annotation", f"layer {number:02}", at, 90, 1, {})
        builder.operator("aten::mm", at + 5, 20).launch(at + 10).kernel("gemm", at + 20, 40 - number)
    outcome = opscope(
        "analyze", builder.write(tmp_path / "trace.json"), "--by", "range:layer \\d+", "--top", "10"
    )
    assert "layer 09" in outcome.out
    assert "layer 10" not in outcome.out.partition("By range")[2].partition("more ranges")[0]
    assert "2 more ranges take 59.0 µs" in outcome.out


@pytest.mark.parametrize("workers", ["0", "2"])
def test_workers_are_a_number_or_an_address(opscope, trace: Path, workers: str) -> None:
    assert opscope("analyze", trace, "--json", "--workers", workers).code == 0
