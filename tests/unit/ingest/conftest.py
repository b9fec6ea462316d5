"""Small exports as Sessions."""

import pytest


@pytest.fixture
def load_export(tmp_path, load):
    """Writes an export and loads it; `without` leaves tables or columns out."""

    def load_one(builder, *, without=()):
        path = tmp_path / "report.sqlite"
        path.unlink(missing_ok=True)
        session = load(builder.write(path, without=without))
        broken = [check for check in session.check() if not check.holds]
        assert not broken, broken
        return session

    return load_one
