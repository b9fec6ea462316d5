from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "generate_docs.py"


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_docs", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_page_is_up_to_date(script: ModuleType) -> None:
    assert script.main(["--check"]) == 0


def test_a_stale_page_fails_the_check_and_is_rewritten(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "reference" / "tables.md"
    monkeypatch.setattr(script, "TABLES_PAGE", page)
    assert script.main(["--check"]) == 1
    assert "is stale" in capsys.readouterr().err
    assert script.main([]) == 0
    assert script.main(["--check"]) == 0
    assert "## device_activities" in page.read_text("utf-8")
