"""The text of an event array → one wide table of typed columns, in a database attached as `staging`.

DuckDB's JSON reader works through windows on all cores. Formats of different years differ only here, in
`arguments.py` and in `kineto.sql`; whatever was staged looks the same afterwards. A reader of another kind of
file fills the same columns itself, in `staging_area`.
"""

from __future__ import annotations

import mmap
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from opscope.ingest import quality
from opscope.ingest.arguments import (
    ARGUMENTS,
    CATEGORIES,
    CATEGORY,
    DETAILS,
    LEGACY_CATEGORY,
    Reading,
    lenient_events,
    no_events,
    strict_events,
)
from opscope.ingest.container import EventArray
from opscope.ingest.statements import statements
from opscope.ingest.windows import PROTOCOL, WindowFileSystem, split_windows
from opscope.model.session import Session

__all__ = ["NeedsRewritingError", "create_tables", "staged_events", "staging_area"]

_SMALLEST_WINDOW_BYTES = 4 << 20
_LARGEST_EVENT_BYTES = 16 << 20
# Up to here a double of microseconds has room for three decimals (decision 0002).
_LARGEST_EXACT_DOUBLE_US = 1 << 43
# A time with a fraction that is not zero, or beyond 2**53 = 9007199254740992.
_WIDE_TIME = re.compile(rb'"ts"\s*:\s*"?-?(?:\d+\.0*[1-9]|9[1-9]\d{14}|90[1-9]\d{13}|900[7-9]\d{12}|\d{17})')


class NeedsRewritingError(Exception):
    """Times that a double cannot hold, or names of 2021: `rewrite.normalize` the text, then stage it.

    Args:
        is_legacy: Whether the names are those of 2021.
    """

    def __init__(self, *, is_legacy: bool) -> None:
        super().__init__()
        self.is_legacy = is_legacy


@contextmanager
def staged_events(
    session: Session, path: Path, text: mmap.mmap, events: EventArray, *, is_rewritten: bool = False
) -> Iterator[quality.Census]:
    """Tables `staging.staged` (and `staging.details`, if an event has any) for the duration of the block.

    Args:
        session: Whose database does the work.
        path: Local file with the text.
        text: The same file, mapped.
        events: Where the array lies.
        is_rewritten: The text went through `rewrite.normalize`.

    Yields:
        What the events are, counted.

    Raises:
        NeedsRewritingError: The text must be normalized first.
        duckdb.Error: The text is not valid JSON.
    """
    with staging_area(session):
        yield _stage(session, path, text, events, is_rewritten)


@contextmanager
def staging_area(session: Session) -> Iterator[None]:
    """The database `staging` with the type of categories, for the duration of the block."""
    with tempfile.TemporaryDirectory(dir=session.temporary_directory) as folder:
        # Not TEMP tables: those belong to one connection, and two of them fill the tables side by side.
        place = str(Path(folder) / "staging.duckdb") if session.is_file_backed else ":memory:"
        session.connection.execute("ATTACH '{}' AS staging".format(place.replace("'", "''")))
        try:
            # Joins run as written, the larger side first: the engine does not know the sizes of arrays.
            session.connection.execute("SET disabled_optimizers = 'join_order,build_side_probe_side'")
            session.connection.execute(f"CREATE TYPE staging.kineto_category AS ENUM {CATEGORIES}")
            yield
        finally:
            session.connection.execute("RESET disabled_optimizers")
            session.connection.execute("DETACH staging")


def create_tables(session: Session) -> None:
    """Make `staging.staged` and `staging.details` anew, without rows, with the columns that events get."""
    sql = statements("opscope.ingest", "kineto.sql")
    session.connection.execute(
        sql["stage"].format(
            events=no_events(ARGUMENTS), category=CATEGORY, cast="CAST", double_limit=_LARGEST_EXACT_DOUBLE_US
        )
    )
    session.connection.execute(sql["details"].format(events=no_events(DETAILS)))


def _stage(
    session: Session, path: Path, text: mmap.mmap, events: EventArray, is_rewritten: bool
) -> quality.Census:
    threads = int(session.scalar("SELECT current_setting('threads')"))
    count = max(1, min(threads, (events.end - events.start) // _SMALLEST_WINDOW_BYTES))
    windows = split_windows(text, events.start, events.end, count)
    whole = WindowFileSystem(str(path), [(events.start, events.end)])
    # A cut may have hit text that only looks like an event boundary, or a time be none (NaN): then in one
    # piece, with such times NULL. A value may be of another type than every known recorder writes: then
    # forgiving types. What fails even so is broken.
    census = (
        _try_read(session, WindowFileSystem(str(path), windows), strict_events, "CAST", is_rewritten)
        or _try_read(session, whole, strict_events, "TRY_CAST", is_rewritten)
        or _read(session, whole, lenient_events, "TRY_CAST", is_rewritten)
    )
    if not is_rewritten and (census.is_legacy or (census.wide_count and _has_wide_fraction(text, events))):
        raise NeedsRewritingError(is_legacy=census.is_legacy)
    return census


def _has_wide_fraction(text: mmap.mmap, events: EventArray) -> bool:
    """Whether some `ts` has more digits than a double keeps: a fraction, or beyond 2**53.

    Old recorders write whole microseconds since the epoch, which a double holds.
    """
    return _WIDE_TIME.search(text, events.start, events.end) is not None


def _try_read(
    session: Session, files: WindowFileSystem, read: Reading, cast: str, is_rewritten: bool
) -> quality.Census | None:
    """As `_read`; None if the text does not fit."""
    try:
        return _read(session, files, read, cast, is_rewritten)
    except (duckdb.InvalidInputException, duckdb.ConversionException):
        return None


def _read(
    session: Session, files: WindowFileSystem, read: Reading, cast: str, is_rewritten: bool
) -> quality.Census:
    connection, sql = session.connection, statements("opscope.ingest", "kineto.sql")
    time_type = "DECIMAL(22, 3)" if is_rewritten else "DOUBLE"
    connection.register_filesystem(files)
    try:
        connection.execute(
            sql["stage"].format(
                events=read(ARGUMENTS, files.urls, time_type, _LARGEST_EVENT_BYTES),
                category=LEGACY_CATEGORY if is_rewritten else CATEGORY,
                cast=cast,
                double_limit="NULL" if is_rewritten else _LARGEST_EXACT_DOUBLE_US,
            )
        )
        census = quality.take_census(session.records(sql["census"]), is_lenient=read is lenient_events)
        if census.detailed_count:
            details = read(DETAILS, files.urls, time_type, _LARGEST_EVENT_BYTES)
            connection.execute(sql["details"].format(events=details))
    finally:
        connection.unregister_filesystem(PROTOCOL)
    return census
