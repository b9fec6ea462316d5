from __future__ import annotations

from opscope.report.document import Align, Code, Column
from opscope.report.terminal import column_need, fit_widths, shorten_distinctly, shorten_middle

NUMBER = column_need(Column("Self time", Align.RIGHT), ["1.00 ms"])
NAME = column_need(Column("Kernel"), [Code("k" * 50)])
TEXT = column_need(Column("Meaning"), ["several short words"])


def test_all_columns_are_full_where_there_is_room() -> None:
    assert fit_widths([NUMBER, NAME, TEXT], 100) == [9, 50, 19]


def test_headings_wrap_and_texts_narrow_before_numbers() -> None:
    number, name, text = fit_widths([NUMBER, NAME, TEXT], 40)
    assert number == len("1.00 ms")
    assert number + name + text == 40


def test_names_shrink_below_their_least_before_texts_do() -> None:
    number, name, text = fit_widths([NUMBER, NAME, TEXT], 22)
    assert (number, text) == (7, len("Meaning"))
    assert name == 8


def test_where_nothing_fits_numbers_stay_whole() -> None:
    assert fit_widths([NUMBER, NAME], 5)[0] == 7


def test_shortening_keeps_both_ends() -> None:
    assert shorten_middle("abcdefghij", 5) == "ab…ij"
    assert shorten_middle("abc", 3) == "abc"
    assert shorten_middle("abc", 1) == "…"


def test_names_that_would_read_the_same_show_where_they_part() -> None:
    names = ["prefix" * 5 + part + "suffix" * 5 for part in ("_128x64_", "_64x64_")]
    first, second = shorten_distinctly(names, 30)
    assert first != second
    assert "128x64" in first
    assert max(len(first), len(second)) <= 30
    assert shorten_distinctly([names[0], names[0]], 30) == [shorten_middle(names[0], 30)] * 2
