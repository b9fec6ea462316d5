"""Every law holds on a sound Session, and each notices when it is broken."""

import pytest

from case_tables import cases
from fakes import TraceBuilder
from opscope.api import load as load_source


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    built = TraceBuilder().operator("outer", 0, 100).operator("inner", 10, 50).operator("leaf", 20, 5)
    built.launch(21).kernel("a", 200, 10).launch(30).kernel("b", 205, 10).launch(80).kernel("c", 300, 1)
    built.operator("other", 5, 10, thread=2).launch(6, thread=2).kernel("d", 400, 2, device=1)
    built.launch(900).kernel("loose", 950, 3).kernel("early", 100, 4, correlation=3)
    with load_source(built.write(tmp_path_factory.mktemp("sound") / "trace.json"), threads=1) as session:
        yield session


@pytest.fixture
def session(sound):
    """A sound Session; what a test changes is undone."""
    sound.query("BEGIN")
    yield sound
    sound.query("ROLLBACK")


def broken(session):
    return {check.name for check in session.check() if not check.holds}


@cases("statement", "laws")
def test_each_notices(session, statement, laws):
    session.query(statement)
    assert broken(session) == set(laws)


def test_violations_are_the_offending_rows_at_most_ten(load):
    built = TraceBuilder()
    for index in range(30):
        built.operator("a", 10 * index, 5).launch(10 * index + 1).kernel("k", 10 * index + 2, 1)
    session = load(built)
    session.query(
        "UPDATE operators SET self_device_ns = 1000 + operator_id WHERE operator_id BETWEEN 3 AND 25"
    )
    (check,) = (one for one in session.check() if one.name == "self_time")
    assert not check.holds
    assert len(check.violations) == 10
    assert all(row["self_device_ns"] == 1_000 + row["operator_id"] for row in check.violations)
    assert check.law.endswith("name it")
