"""Tables of cases: each is in the TOML file beside its test's module, by the test's name without `test_`.

A row is an array of the arguments in order, a table of them by name, or the only argument. What it lacks is
None; its `id`, if it has one, names it.
"""

import inspect
from functools import cache
from pathlib import Path

import pytest
import tomli


@cache
def tables(path):
    return tomli.loads(path.read_text(encoding="utf-8"))


def cases(*arguments):
    """Runs a test once for each row of its table."""

    def of(test):
        path = Path(inspect.getfile(test)).with_suffix(".toml")
        rows = [_row(row, arguments) for row in tables(path)[test.__name__.removeprefix("test_")]]
        return pytest.mark.parametrize(arguments, rows)(test)

    return of


def _row(row, arguments):
    if not isinstance(row, dict):
        values = row if isinstance(row, list) else [row]
        assert len(values) <= len(arguments), row
        row = dict(zip(arguments, values, strict=False))
    assert row.keys() <= {*arguments, "id"}, row
    return pytest.param(*map(row.get, arguments), id=row.get("id"))
