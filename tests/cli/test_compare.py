from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from opscope.testing import TraceBuilder

from .conftest import saved


def steps(path: Path, duration: float, count: int = 8) -> Path:
    builder = TraceBuilder()
    for step in range(count):
        start = 10_000 * step
        builder.step(step, start, 5_000).operator("aten::mm", start, 50).launch(start + 5)
        builder.kernel("gemm", start + 100, duration + step / 1000)
    return builder.write(path)


def result(path: Path, median_ns: float, *, points: bool = False) -> Path:
    document: dict[str, Any] = {
        "schema_version": 1, "suite": "gelu", "shape": [8], "dtype": "float32", "device": "cpu",
        "reference": "torch", "clock": "wall", "cache_state": "uncontrolled", "options": {},
        "environment": {"python": "3.12", "platform": "Linux", "opscope": "0"}, "created": "",
        "rows": [
            {
                "name": "torch", "status": "ok",
                "samples_ns": [median_ns * (1 + 0.001 * (index % 5)) for index in range(30)],
            }
        ],
    }  # fmt: skip
    if points:
        document = {"schema_version": 1, "suite": "gelu", "parameters": {"n": [1]}, "points": [document]}
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(steps(tmp_path_factory.mktemp("slow") / "slow.json", 150))


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(steps(tmp_path_factory.mktemp("fast") / "fast.json", 100))


def test_two_traces(opscope, fast: Path, slow: Path) -> None:
    outcome = opscope("compare", *(one.with_suffix(".json") for one in (fast, slow)))
    assert (outcome.code, outcome.err) == (0, "")
    assert "100 µs → 150 µs (+50.0 µs, 1.50× slower" in outcome.out


@pytest.mark.parametrize(("fail_on", "code"), [("slower", 3), ("faster", 0), ("different", 3)])
def test_the_gate(opscope, fast: Path, slow: Path, fail_on: str, code: int) -> None:
    outcome = opscope("compare", fast, slow, "--fail-on", fail_on)
    assert outcome.code == code
    if code:
        assert outcome.err.startswith(f"fails --fail-on {fail_on}: the total is slower: 100 µs to 150 µs")


@pytest.mark.exhaustive(few=False)
def test_a_gate_without_an_interval_does_not_pass(opscope, fast: Path, tmp_path: Path) -> None:
    short = steps(tmp_path / "short.json", 200, count=3)
    outcome = opscope("compare", fast, short, "--fail-on", "slower")
    assert (outcome.code, outcome.err) == (4, "no verdict: 3 steps recorded, 6 needed (--active 6)\n")
    assert opscope("compare", fast, short).code == 0
    assert opscope("compare", short, short, "--fail-on", "slower").code == 0


def test_swapped_sides_turn_the_gate_around(opscope, fast: Path, slow: Path) -> None:
    assert opscope("compare", slow, fast, "--fail-on", "slower").code == 0
    assert opscope("compare", slow, fast, "--fail-on", "faster").code == 3


def test_a_trace_equals_itself(opscope, fast: Path) -> None:
    assert opscope("compare", fast, fast, "--fail-on", "different").code == 0


def test_a_wide_threshold_lets_it_pass(opscope, fast: Path, slow: Path) -> None:
    assert opscope("compare", fast, slow, "--fail-on", "slower", "--threshold", 0.6).code == 0


def test_json_is_the_only_thing_on_stdout(opscope, fast: Path, slow: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.md"
    outcome = opscope("compare", fast, slow, "--json", "--fail-on", "slower", "--output", report)
    assert outcome.code == 3
    assert outcome.json["kind"] == "session"
    assert outcome.json["verdict"] == "slower"
    assert len(outcome.json["gate"]["failures"]) == 2
    assert f"Wrote {report}" in outcome.err
    assert report.read_text("utf-8").startswith("# Comparison of two recordings")


@pytest.mark.exhaustive(few=False)
def test_a_saved_session_is_as_good_as_its_trace(opscope, fast: Path, slow: Path) -> None:
    trace = fast.with_suffix(".json")
    with_trace = opscope("compare", trace, slow, "--json").json
    with_session = opscope("compare", fast, slow, "--json").json
    assert with_session["operators"] == with_trace["operators"]
    assert opscope("compare", fast, trace, "--fail-on", "different").code == 0


@pytest.mark.parametrize("points", [False, True])
def test_two_results(opscope, tmp_path: Path, points: bool) -> None:
    files = [result(tmp_path / f"{ns}.json", ns, points=points) for ns in (1000, 1300)]
    outcome = opscope("compare", *files, "--fail-on", "slower")
    assert outcome.code == 3
    assert "1.30× slower" in outcome.out
    assert opscope("compare", *files, "--json").json["points"][0]["rows"][0]["verdict"] == "slower"
    assert opscope("compare", files[0], files[0], "--fail-on", "different").code == 0


def test_a_sweep_of_one_point_compares_with_a_single_result(opscope, tmp_path: Path) -> None:
    files = result(tmp_path / "a.json", 1000), result(tmp_path / "b.json", 1000, points=True)
    assert opscope("compare", *files, "--fail-on", "different").code == 0


def test_kinds_cannot_be_mixed(opscope, tmp_path: Path, fast: Path) -> None:
    outcome = opscope("compare", result(tmp_path / "r.json", 1000), fast)
    assert (outcome.code, outcome.out) == (1, "")
    assert "a benchmark cannot be compared with a recording" in outcome.err


@pytest.mark.parametrize("text", ["", "{}", "[1, 2]", '{"schema_version": 1}', "no JSON"])
def test_other_files_are_refused(opscope, tmp_path: Path, fast: Path, text: str) -> None:
    other = tmp_path / "other.json"
    other.write_text(text)
    outcome = opscope("compare", fast, other)
    assert (outcome.code, outcome.out) == (1, "")
    assert str(other) in outcome.err
    assert "internal error" not in outcome.err


def test_a_missing_file(opscope, tmp_path: Path, fast: Path) -> None:
    assert "no such file" in opscope("compare", fast, tmp_path / "none.json").err


@pytest.mark.parametrize("arguments", [("--threshold", "0"), ("--top", "0"), ("--fail-on", "worse")])
def test_usage_errors(opscope, fast: Path, arguments: tuple[str, ...]) -> None:
    assert opscope("compare", fast, fast, *arguments).code == 2
