"""Small exports as Sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from fakes import ExportBuilder, Load
from opscope.model.session import Session

LoadExport = Callable[..., Session]


@pytest.fixture
def load_export(tmp_path: Path, load: Load) -> LoadExport:
    """Writes an export and loads it; `without` leaves tables or columns out."""

    def load_one(builder: ExportBuilder, *, without: Iterable[str] = ()) -> Session:
        path = tmp_path / "report.sqlite"
        path.unlink(missing_ok=True)
        session = load(builder.write(path, without=without))
        broken = [check for check in session.check() if not check.holds]
        assert not broken, broken
        return session

    return load_one
