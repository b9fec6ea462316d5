from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import saved
from .test_commands import steps


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(steps(150).write(tmp_path_factory.mktemp("slow") / "slow.json"))


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(steps(100).write(tmp_path_factory.mktemp("fast") / "fast.json"))


def test_json_is_the_only_thing_on_stdout(opscope, fast: Path, slow: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.md"
    asked = ("--json", "--fail-on", "slower", "--output", report)
    outcome = opscope("compare", fast.with_suffix(".json"), slow, *asked).fails(code=3, out=None)
    assert outcome.json["kind"] == "session"
    assert outcome.json["verdict"] == "slower"
    assert len(outcome.json["gate"]["failures"]) == 2
    assert f"Wrote {report}" in outcome.err
    assert report.read_text("utf-8").startswith("# Comparison of two recordings")


@pytest.mark.parametrize("text", ["", "{}", "[1, 2]", '{"schema_version": 1}', "no JSON"])
def test_other_files_are_refused(opscope, tmp_path: Path, fast: Path, text: str) -> None:
    other = tmp_path / "other.json"
    other.write_text(text)
    opscope("compare", fast, other).fails(str(other))
