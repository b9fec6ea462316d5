"""Rows that the engine reads in place: their values, and that nothing keeps them once they are hidden."""

import gc
import weakref

import numpy as np

from opscope.ingest import arrow
from opscope.ingest.arrow import ArrowRows, RowPart, Texts
from opscope.model.session import Session, registered


def rows():
    """Two parts with texts of their own; the second lacks a column."""
    here, nowhere = np.array([0b101], dtype=np.uint8), np.array([0b111], dtype=np.uint8)
    first = RowPart(
        3,
        {
            "number": (np.array([1, 2, 3]), nowhere),
            "text": (np.array([1, 0, 1], dtype=np.int32), here),
            "flag": (np.packbits([1, 0, 1], bitorder="little"), nowhere),
        },
        Texts(["a", "é"]),
    )
    second = RowPart(2, {"text": (np.array([0, 0], dtype=np.int32), nowhere)}, Texts(["b"]))
    return ArrowRows({"number": "l", "text": "u", "flag": "b"}, lambda: [first, second])


def test_values_of_all_parts():
    with Session() as session, registered(session, shown=rows()):
        assert sorted(session.query("FROM shown"), key=str) == [
            (1, "é", True), (2, None, False), (3, "é", True), (None, "b", None), (None, "b", None),
        ]  # fmt: skip


def test_they_go_when_they_are_no_longer_shown():
    gc.disable()
    try:
        with Session() as session:
            shown = rows()
            left = weakref.ref(shown)
            with registered(session, shown=shown):
                assert session.scalar("SELECT count(*) FROM shown") == 5
            del shown
            assert left() is None
            assert not arrow._open_streams and not arrow._open_batches
    finally:
        gc.enable()
