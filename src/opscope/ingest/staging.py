"""The text of an event array → one wide table of typed columns, in a database attached as `staging`.

DuckDB's JSON reader works through windows on all cores. Formats of different years differ only here, in
`arguments.py` and in `kineto.sql`; whatever was staged looks the same afterwards. A reader of another kind of
file fills the same columns itself, in `staging_area`.
"""

from __future__ import annotations

import json
import mmap
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import duckdb

from opscope.ingest import quality
from opscope.ingest.source import LARGEST_EXACT_DOUBLE_US, EventArray, split_windows
from opscope.model.queries import sql
from opscope.model.session import Session
from opscope.signals import raise_if_interrupted

CATEGORIES = (
    "cpu_op", "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "user_annotation",
    "gpu_user_annotation", "python_function", "cpu_instant_event", "cuda_sync", "overhead", "fwdbwd", "Trace",
)  # fmt: skip

ARGUMENTS: dict[str, str] = {
    "External id": "BIGINT", "correlation": "BIGINT", "name": "VARCHAR",
    "Sequence number": "BIGINT", "Fwd thread id": "BIGINT",
    "Input Dims": "JSON", "Input type": "JSON", "Input Strides": "JSON", "Concrete Inputs": "JSON",
    "Python id": "BIGINT", "Python parent id": "BIGINT", "Python module id": "BIGINT",
    "Call stack": "VARCHAR", "Module Hierarchy": "VARCHAR",
    "device": "INTEGER", "stream": "BIGINT", "context": "INTEGER", "grid": "VARCHAR", "block": "VARCHAR",
    "registers per thread": "INTEGER", "shared memory": "INTEGER", "blocks per SM": "DOUBLE",
    "warps per SM": "DOUBLE", "est. achieved occupancy %": "DOUBLE", "bytes": "BIGINT",
    "graph id": "BIGINT", "graph node id": "BIGINT", "kernel": "VARCHAR",
    "Collective name": "VARCHAR", "kernel_backend": "VARCHAR",
}  # fmt: skip

# Keys of few events, read a second time if there are any. (No DuckDB struct holds both `bytes` and `Bytes`.)
DETAILS: dict[str, str] = {
    "External id": "BIGINT", "correlation": "BIGINT", "Call stack": "VARCHAR", "Module Hierarchy": "VARCHAR",
    "device": "BIGINT", "stream": "BIGINT", "grid": "VARCHAR",
    "Collective name": "VARCHAR", "dtype": "VARCHAR", "In msg nelems": "BIGINT", "Out msg nelems": "BIGINT",
    "In split size": "VARCHAR", "Out split size": "VARCHAR", "Process Group Name": "VARCHAR",
    "Process Group Description": "VARCHAR", "Group size": "BIGINT", "Process Group Ranks": "VARCHAR",
    "Src Rank": "BIGINT", "Dst Rank": "BIGINT", "Seq": "BIGINT",
    "kernel_name": "VARCHAR", "kernel_backend": "VARCHAR", "kernel_file": "VARCHAR", "kernel_hash": "VARCHAR",
    "kernel_kwargs": "VARCHAR", "num_warps": "BIGINT", "num_stages": "BIGINT", "kernel_flop": "DOUBLE",
    "kernel_num_gb": "DOUBLE",
    "Addr": "UBIGINT", "Bytes": "BIGINT", "Device Type": "BIGINT", "Device Id": "BIGINT",
    "Total Allocated": "BIGINT", "Total Reserved": "BIGINT",
    "cuda_sync_kind": "VARCHAR", "wait_on_stream": "BIGINT", "wait_on_cuda_event_id": "BIGINT",
    "wait_on_cuda_event_record_corr_id": "BIGINT",
}  # fmt: skip

_READ = """read_json({urls}, format = 'array', records = true, maximum_object_size = {largest}, columns = {{
    ph: 'VARCHAR', cat: 'VARCHAR', name: 'VARCHAR', ts: '{time_type}', dur: '{duration_type}',
    pid: 'VARCHAR', tid: 'VARCHAR', id: 'VARCHAR', args: '{args_type}'}})"""


CATEGORY = """TRY_CAST(CASE WHEN cat = 'cpu_op' AND starts_with(name, 'ProfilerStep#') THEN 'user_annotation'
    ELSE cat END AS staging.kineto_category)"""
LEGACY_CATEGORY = """CASE cat
    WHEN 'Operator' THEN CASE WHEN name LIKE 'ProfilerStep#%' THEN 'user_annotation' ELSE 'cpu_op' END
    WHEN 'Kernel' THEN 'kernel' WHEN 'Memcpy' THEN 'gpu_memcpy' WHEN 'Memset' THEN 'gpu_memset'
    WHEN 'Runtime' THEN 'cuda_runtime' ELSE TRY_CAST(cat AS staging.kineto_category)
    END::staging.kineto_category"""


class Windows(NamedTuple):
    """Byte ranges of a file, in its order."""

    path: Path
    ranges: list[tuple[int, int]]


Reading = Callable[[dict[str, str], list[str], str, int], str]


def strict_events(keys: dict[str, str], urls: list[str], time_type: str, largest_event_bytes: int) -> str:
    """FROM clause that reads `args` by the declared types in one go; a value of another type is an error."""
    fields = ", ".join(f'"{key}" {kind}' for key, kind in keys.items())
    return _READ.format(
        urls=urls,
        largest=largest_event_bytes,
        time_type=time_type,
        duration_type="DOUBLE",
        args_type=f"STRUCT({fields})",
    )


def lenient_events(keys: dict[str, str], urls: list[str], time_type: str, largest_event_bytes: int) -> str:
    """The same, but a value of another type becomes NULL. Slower: `args` is parsed twice."""
    text = _READ.format(
        urls=urls, largest=largest_event_bytes, time_type="JSON", duration_type="JSON", args_type="JSON"
    )
    return (
        f"(SELECT * REPLACE (TRY_CAST(ts ->> '$' AS {time_type}) AS ts, "
        f"TRY_CAST(dur ->> '$' AS DOUBLE) AS dur, from_json(args, '{json.dumps(keys)}') AS args) FROM {text})"
    )


def no_events(keys: dict[str, str]) -> str:
    """FROM clause without rows: the columns of `strict_events` alone."""
    fields = ", ".join(f'"{key}" {kind}' for key, kind in keys.items())
    texts = ", ".join(f"NULL::VARCHAR AS {name}" for name in ("ph", "cat", "name", "pid", "tid", "id"))
    return (
        f"(SELECT {texts}, NULL::DOUBLE AS ts, NULL::DOUBLE AS dur, NULL::STRUCT({fields}) AS args LIMIT 0)"
    )


_SMALLEST_WINDOW_BYTES = 4 << 20
_LARGEST_EVENT_BYTES = 16 << 20
_LARGEST_COPY_BYTES = 32 << 20
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
        session.plan_for(events.end - events.start)
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
            with suppress(duckdb.ConnectionException):  # a signal came meanwhile, and it has been closed
                session.connection.execute("RESET disabled_optimizers")
                session.connection.execute("DETACH staging")


def create_tables(session: Session) -> None:
    """Make `staging.staged` and `staging.details` anew, without rows, with the columns that events get."""
    session.connection.execute(
        sql(__package__, "kineto:stage").format(
            events=no_events(ARGUMENTS), category=CATEGORY, cast="CAST", double_limit=LARGEST_EXACT_DOUBLE_US
        )
    )
    create_details(session)


def create_details(session: Session) -> None:
    """Make `staging.details` anew, without rows."""
    session.connection.execute(sql(__package__, "kineto:details").format(events=no_events(DETAILS)))


def _stage(
    session: Session, path: Path, text: mmap.mmap, events: EventArray, is_rewritten: bool
) -> quality.Census:
    count = max(1, (events.end - events.start) // _SMALLEST_WINDOW_BYTES)
    if count > 1:
        count = min(count, int(session.scalar("SELECT current_setting('threads')")))
    windows = Windows(path, split_windows(text, events.start, events.end, count))
    whole = Windows(path, [(events.start, events.end)])
    # A cut may have hit text that only looks like an event boundary, or a time be none (NaN): then in one
    # piece, with such times NULL. A value may be of another type than every known recorder writes: then
    # forgiving types. What fails even so is broken.
    census = (
        _try_read(session, windows, strict_events, "CAST", is_rewritten)
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
    session: Session, windows: Windows, read: Reading, cast: str, is_rewritten: bool
) -> quality.Census | None:
    """As `_read`; None if the text does not fit."""
    try:
        return _read(session, windows, read, cast, is_rewritten)
    except (duckdb.InvalidInputException, duckdb.ConversionException) as error:
        raise_if_interrupted(error)
        return None


def _read(session: Session, windows: Windows, read: Reading, cast: str, is_rewritten: bool) -> quality.Census:
    connection = session.connection
    time_type = "DECIMAL(22, 3)" if is_rewritten else "DOUBLE"
    with _readable(session, windows) as urls:
        connection.execute(
            sql(__package__, "kineto:stage").format(
                events=read(ARGUMENTS, urls, time_type, _LARGEST_EVENT_BYTES),
                category=LEGACY_CATEGORY if is_rewritten else CATEGORY,
                cast=cast,
                double_limit="NULL" if is_rewritten else LARGEST_EXACT_DOUBLE_US,
            )
        )
        census = quality.take_census(
            session.records(sql(__package__, "kineto:census")), is_lenient=read is lenient_events
        )
        if census.detailed_count:
            details = read(DETAILS, urls, time_type, _LARGEST_EVENT_BYTES)
            connection.execute(sql(__package__, "kineto:details").format(events=details))
    return census


@contextmanager
def _readable(session: Session, windows: Windows) -> Iterator[list[str]]:
    """Addresses at which the engine reads windows of a file, each as an array of its own.

    Small ones are copied: what serves them in place takes longer to import.
    """
    if windows.ranges[-1][1] - windows.ranges[0][0] > _LARGEST_COPY_BYTES:
        from opscope.ingest.windows import PROTOCOL, WindowFileSystem  # noqa: PLC0415 - imports fsspec

        files = WindowFileSystem(str(windows.path), windows.ranges)
        session.connection.register_filesystem(files)
        try:
            yield files.urls
        finally:
            files.close()
            with suppress(duckdb.ConnectionException):  # as above
                session.connection.unregister_filesystem(PROTOCOL)
        return
    with (
        tempfile.TemporaryDirectory(dir=session.temporary_directory) as folder,
        windows.path.open("rb") as file,
    ):
        copies = [Path(folder) / f"{index}.json" for index in range(len(windows.ranges))]
        for copy, (start, end) in zip(copies, windows.ranges, strict=True):
            file.seek(start)
            copy.write_bytes(b"[" + file.read(end - start) + b"]")
        yield [str(copy) for copy in copies]
