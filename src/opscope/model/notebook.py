"""How values are shown in a notebook: rows as tables of other libraries, results as their reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from opscope.errors import DependencyError

if TYPE_CHECKING:
    import duckdb


# Makes the report of a value; set by the layer that can, above the values.
render: Callable[[Any], str] | None = None


def notebook_html(value: Any) -> str | None:
    """A value's `_repr_html_`: what `opscope.print_report` prints of it."""
    return None if render is None else render(value)


class QueryRows(list[Any]):
    """The rows of a query; as a data frame or an Arrow table they are asked for once more."""

    def __init__(self, rows: Iterable[tuple[Any, ...]], ask: Callable[[], duckdb.DuckDBPyRelation]) -> None:
        super().__init__(rows)
        self._ask = ask

    def df(self) -> Any:
        """As a pandas DataFrame.

        Raises:
            DependencyError: pandas is not installed; so for `pl` and `arrow`.
        """
        return self._as("df", "pandas")

    def pl(self) -> Any:
        return self._as("pl", "polars", "pyarrow")

    def arrow(self) -> Any:
        return self._as("fetch_arrow_table", "pyarrow")

    def _as(self, method: str, *packages: str) -> Any:
        missing = [name for name in packages if find_spec(name) is None]
        if missing:
            wanted = " ".join(missing)
            raise DependencyError(f"this needs {' and '.join(missing)}", hint=f"Run: pip install {wanted}")
        return getattr(self._ask(), method)()
