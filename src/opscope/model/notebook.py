"""How values are shown in a notebook: rows as tables of other libraries, results as their reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from opscope.errors import DependencyError

if TYPE_CHECKING:
    import duckdb


# Make the page and the printed report of a value; set by the layer that can, above the values.
page: Callable[[Any], str] | None = None
text: Callable[[Any], str] | None = None


class Shown:
    """A value that notebooks show as its page, IPython in a terminal as its printed report."""

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # IPython prefers a class's own `__repr__` to what it inherits.
        cls._repr_pretty_ = Shown._repr_pretty_  # type: ignore[method-assign]

    def _repr_html_(self) -> str | None:
        return None if page is None else page(self)

    def _repr_pretty_(self, printer: Any, is_cycle: bool) -> None:
        printer.text(repr(self) if text is None or is_cycle else text(self))


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
