"""No case is lost: each table beside a test's module is that of one of its tests."""

import re
from pathlib import Path

import pytest

from case_tables import tables

TESTS = Path(__file__).parent.parent


@pytest.mark.parametrize("path", sorted(TESTS.rglob("test_*.toml")), ids=lambda path: path.stem)
def test_every_table_is_a_tests(path):
    module = path.with_suffix(".py").read_text(encoding="utf-8")
    tests = re.findall(r"@cases\([^)]*\)\n *(?:@.*\n *)*def test_(\w+)", module)
    tests += re.findall(r'tables\(.*\)\["(\w+)"\]', module)  # all cases in one test
    assert set(tables(path)) == set(tests)
    assert all(tables(path).values())
