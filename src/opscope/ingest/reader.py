"""`load`: any source → one Session.

A trace either arrives wholly in the tables or not at all: the first error ends the load, with the file's name
and byte offset. Flaws that leave the rest usable become findings.
"""

from __future__ import annotations

import json
import mmap
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import msgspec

from opscope.errors import InputError
from opscope.ingest import quality, rewrite
from opscope.ingest.container import EventArray, error_offset, locate_events
from opscope.ingest.devices import write_devices
from opscope.ingest.kineto import NeedsRewritingError, ingest_events
from opscope.ingest.source import LocalText, TraceFile, find_traces, local_text
from opscope.model.session import Session

__all__ = ["load"]

# Above this much text a Session is kept in a temporary file, so that memory stays bounded.
_IN_MEMORY_BYTES = 400 << 20


def load(
    source: str | Sequence[str], *, memory_limit: str | None = None, threads: int | None = None
) -> Session:
    """A Session of one or several traces.

    Args:
        source: A file, a folder of rank files, an fsspec address, or several of them.
        memory_limit: DuckDB's memory limit, e.g. `"1GB"`; with one, the Session lives in a temporary file.
        threads: Worker threads; all cores if None.

    Raises:
        InputError: A source cannot be read; names the file and byte offset.
        DependencyError: An address needs a package that is not installed.
    """
    sources = [source] if isinstance(source, str) else list(source)
    traces = [trace for one in sources for trace in find_traces(one)]
    is_large = sum(_size(trace) for trace in traces) > _IN_MEMORY_BYTES
    session = Session(
        memory_limit=memory_limit, threads=threads, is_temporary_file=is_large or memory_limit is not None
    )
    try:
        for trace_id, trace in enumerate(traces):
            with local_text(trace, session.temporary_directory) as text:
                _load_trace(session, trace_id, trace, text)
    except BaseException:
        session.close()
        raise
    return session


def _size(trace: TraceFile) -> int:
    """Bytes of text to expect; compressed traces shrink about twentyfold."""
    if trace.path is None:
        return 0
    factor = 1 if trace.path.suffix == ".json" else 20
    return trace.path.stat().st_size * factor


def _load_trace(session: Session, trace_id: int, trace: TraceFile, local: LocalText) -> None:
    with _mapped(local.path, trace.name) as text:
        events = locate_events(text, trace.name)
        census, repairs = _ingest(session, trace_id, local.path, text, events, trace.name)
        _write_trace(session, trace_id, trace, len(text), events.properties, census)
        write_devices(session, trace_id, events.properties.get("deviceProperties"))
        session.add_findings(
            quality.read_findings(
                trace_id,
                census,
                size_bytes=len(text),
                lost_bytes=events.lost_bytes,
                damage=local.damage,
                repairs=repairs,
            )
        )
        session.add_findings(quality.trace_findings(session, trace_id))


@contextmanager
def _mapped(path: Path, name: str) -> Iterator[mmap.mmap]:
    with path.open("rb") as file:
        try:
            text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise InputError("the file is empty", source=name, byte_offset=0) from None
        try:
            yield text
        finally:
            text.close()


def _ingest(
    session: Session, trace_id: int, path: Path, text: mmap.mmap, events: EventArray, name: str
) -> tuple[quality.Census, dict[str, int]]:
    try:
        return ingest_events(session, trace_id, str(path), text, events), {}
    except NeedsRewritingError:
        with _scratch(session) as copy:
            normal = rewrite.normalize(text, events, copy)
            with _mapped(copy, name) as copied:
                return ingest_events(session, trace_id, str(copy), copied, normal, is_rewritten=True), {}
    except duckdb.InvalidInputException as error:
        return _ingest_mended(session, trace_id, text, events, name, error)


def _ingest_mended(
    session: Session, trace_id: int, text: mmap.mmap, events: EventArray, name: str, error: duckdb.Error
) -> tuple[quality.Census, dict[str, int]]:
    with _scratch(session) as copy:
        mended, flaws = rewrite.mend(text, events, copy)
        if not flaws:
            raise _malformed(text, events, name, error) from error
        with _mapped(copy, name) as copied:
            try:
                return ingest_events(session, trace_id, str(copy), copied, mended), flaws
            except duckdb.InvalidInputException as second:
                raise _malformed(text, events, name, second) from second


@contextmanager
def _scratch(session: Session) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=session.temporary_directory) as folder:
        yield Path(folder) / "events.json"


def _malformed(text: mmap.mmap, events: EventArray, name: str, error: duckdb.Error) -> InputError:
    """The error of a broken array, with the byte where it breaks."""
    body = b"[" + text[events.start : events.end] + b"]"
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
    except msgspec.DecodeError as decode_error:
        offset = events.start + error_offset(decode_error, len(body)) - 1
        return InputError("not valid JSON inside the traceEvents array", source=name, byte_offset=offset)
    return InputError(
        f"an event cannot be read ({str(error).splitlines()[0]})", source=name, byte_offset=events.start
    )


def _write_trace(
    session: Session,
    trace_id: int,
    trace: TraceFile,
    size_bytes: int,
    properties: dict[str, Any],
    census: quality.Census,
) -> None:
    distributed = properties.get("distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    window = session.query(
        "SELECT min(start_ns), max(start_ns + duration_ns) FROM operators WHERE trace_id = ?", [trace_id]
    )
    session.connection.execute(
        "INSERT INTO traces VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            trace_id,
            trace.name,
            "kineto_legacy" if census.is_legacy else "kineto",
            _integer(distributed.get("rank")),
            _integer(distributed.get("world_size")),
            distributed.get("backend"),
            _integer(properties.get("baseTimeNanoseconds")),
            *window[0],
            _integer(properties.get("cuda_runtime_version")),
            _integer(properties.get("cuda_driver_version")),
            _integer(properties.get("cupti_version")),
            size_bytes,
            census.event_count,
            json.dumps({key: value for key, value in properties.items() if key != "deviceProperties"}),
        ],
    )


def _integer(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return None
