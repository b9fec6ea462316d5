"""Tables as arrays: columns of one length, which are chosen, sorted and joined together."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from opscope.ingest.nesting import Int64
from opscope.model.session import Session

Table = TypeVar("Table", bound="Columns")
Arrays = dict[str, npt.NDArray[Any]]
Flags = npt.NDArray[np.bool_]
NONE = np.int64(-1)


class Columns(msgspec.Struct, frozen=True):
    """A table whose columns a subclass names; what is no array is of the table as a whole."""

    def __len__(self) -> int:
        return next(len(value) for value in self._values() if isinstance(value, np.ndarray))

    def _values(self) -> list[Any]:
        return [getattr(self, name) for name in self.__struct_fields__]

    def at(self: Table, chosen: Any) -> Table:
        """The rows at some positions, in a slice, or where it is true."""
        values = (one[chosen] if isinstance(one, np.ndarray) else one for one in self._values())
        return type(self)(*values)


def columns(session: Session, query: str, parameters: Any = None, *, order_by: str | None = None) -> Arrays:
    """What a query selects, as arrays, sorted by one of them if asked; none of them may hold NULL."""
    fetched = session.connection.execute(query, parameters or []).fetchnumpy()
    found = {name: np.asarray(values) for name, values in fetched.items()}
    del fetched
    if order_by is not None and np.any(found[order_by][1:] < found[order_by][:-1]):
        order = np.argsort(found[order_by], kind="stable")
        # One after the other, so that no more than one column is there twice.
        found = {name: found.pop(name)[order] for name in tuple(found)}
    return found


def distinct(values: Int64) -> Int64:
    values = np.sort(values)  # numpy's own unique hashes first, and takes ten times as long
    is_new = np.ones(len(values), dtype=bool)
    np.not_equal(values[1:], values[:-1], out=is_new[1:])
    return values[is_new]


def sum_by(index: Int64, amount: Int64, count: int) -> Int64:
    """Sum of the amounts of each index below `count`; what has index -1 is left out."""
    if np.any(index < 0):
        index, amount = index[index >= 0], amount[index >= 0]
    # Sums of integers below 2**53 are exact in the float64 that bincount adds in.
    sums: Int64 = np.bincount(index, weights=amount, minlength=count).astype(np.int64)
    return sums
