"""Rows that the engine reads in place: nothing keeps them once they are hidden."""

import gc
import weakref

import numpy as np

from opscope.ingest import arrow
from opscope.ingest.arrow import ArrowRows, RowPart, Texts
from opscope.model.session import Session, registered


def rows():
    number = np.array([1, 2, 3]), np.array([0b111], dtype=np.uint8)
    return ArrowRows({"number": "l"}, lambda: [RowPart(3, {"number": number}, Texts([]))])


def test_they_go_when_they_are_no_longer_shown():
    gc.disable()
    try:
        with Session() as session:
            shown = rows()
            left = weakref.ref(shown)
            with registered(session, shown=shown):
                assert session.scalar("SELECT count(*) FROM shown") == 3
            del shown
            assert left() is None
            assert not arrow._open_streams and not arrow._open_batches
    finally:
        gc.enable()
