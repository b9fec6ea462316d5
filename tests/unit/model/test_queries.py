"""Rows by key: grouped and summed, in the order in which they come."""

from opscope.model.queries import grouped, summed


def test_rows_are_grouped_and_summed_by_key() -> None:
    found = grouped([("b", 1), ("a", 2), ("b", 0)])
    assert list(found.items()) == [("b", [1, 0]), ("a", [2])]
    assert found["c"] == []
    found = summed((key, len(key)) for key in ("b", "aa", "b"))
    assert list(found.items()) == [("b", 2), ("aa", 2)]
    assert found["c"] == 0
