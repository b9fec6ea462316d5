"""`load`: any source → one Session.

A trace either arrives wholly in the tables or not at all: the first error ends the load, with the file's name
and byte offset. Flaws that leave the rest usable become findings.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import msgspec

from opscope.errors import InputError
from opscope.ingest import quality, rewrite
from opscope.ingest.container import EventArray, error_offset, locate_events
from opscope.ingest.devices import write_devices
from opscope.ingest.kineto import fill_tables
from opscope.ingest.recorded import keep_sidecars, read_beside
from opscope.ingest.source import TraceFile, find_traces, local_text
from opscope.ingest.staging import NeedsRewritingError, staged_events
from opscope.model.environment import Environment
from opscope.model.session import Session
from opscope.model.sidecar import Sidecar

__all__ = ["load"]

# Tables in memory take about twice the text's size. Above this share of the machine's memory they go to a
# file.
_MEMORY_PER_TEXT = 2
_MOST_OF_MEMORY = 0.25
# Traces shrink ten- to twentyfold; the size of compressed ones is known only when they are read.
_COMPRESSION = 20


def load(sources: Sequence[str], *, memory_limit: str | None = None, threads: int | None = None) -> Session:
    """A Session of one or several traces.

    Args:
        sources: Files, folders of rank files, fsspec addresses.
        memory_limit: What the process should stay under, e.g. `"1GB"`; the Session then lives in a temporary
            file.
        threads: Worker threads; all cores if None.

    Raises:
        InputError: A source cannot be read; names the file and byte offset.
        DependencyError: An address needs a package that is not installed.
    """
    traces = [trace for source in sources for trace in find_traces(source)]
    needed_bytes = _MEMORY_PER_TEXT * sum(map(_expected_bytes, traces))
    is_large = needed_bytes > _MOST_OF_MEMORY * _physical_memory_bytes()
    session = Session(
        memory_limit=memory_limit, threads=threads, is_temporary_file=is_large or memory_limit is not None
    )
    sidecars: dict[int, Sidecar] = {}
    try:
        for trace_id, trace in enumerate(traces):
            with _engine_errors(trace.name, memory_limit):
                sidecar = _load_trace(session, trace_id, trace)
            if sidecar is not None:
                sidecars[trace_id] = sidecar
        keep_sidecars(session, sidecars)
        session.add_findings(quality.rank_findings(session))
    except BaseException:
        session.close()
        raise
    return session


@contextmanager
def _engine_errors(name: str, memory_limit: str | None) -> Iterator[None]:
    """Turn what the database engine refuses into an error a user can act on."""
    try:
        yield
    except duckdb.Error as error:
        reason = str(error).strip().split("\n", maxsplit=1)[0]
        hint = None
        if "Out of Memory" in reason:  # The window reader wraps the exception's own class away.
            reason, hint = "out of memory", "Set a memory limit, so that the disk is used"
            if memory_limit is not None:
                reason = f"the memory limit of {memory_limit} is too low"
                hint = "Raise it: 400MB suffices for a trace of 180 MB, 1GB for one of 1 GB"
        raise InputError(f"cannot be loaded: {reason}", source=name, hint=hint) from error


def _physical_memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _expected_bytes(trace: TraceFile) -> int:
    if trace.path is None:
        return 0
    return trace.path.stat().st_size * (1 if trace.path.suffix == ".json" else _COMPRESSION)


@dataclass(frozen=True)
class _Text:
    """The text of one trace: its name for people, a local file, the same mapped, and where its events lie.

    `shift` added to a position in a mended copy gives the one in the original.
    """

    name: str
    path: Path
    mapped: mmap.mmap
    events: EventArray
    damage: str | None = None
    shift: int = 0


def _load_trace(session: Session, trace_id: int, trace: TraceFile) -> Sidecar | None:
    """Read one trace into the tables; its sidecar, if it has one."""
    sidecar, sidecar_findings = read_beside(trace_id, trace)
    with (
        local_text(trace, session.temporary_directory) as local,
        _mapped(local.path, trace.name) as mapped,
    ):
        events = locate_events(mapped, trace.name)
        text = _Text(trace.name, local.path, mapped, events, local.damage)
        census, repairs = _ingest(session, trace_id, text)
        _write_trace(session, trace_id, text, census, None if sidecar is None else sidecar.environment)
        write_devices(session, trace_id, events.properties.get("deviceProperties"))
        session.add_findings(
            quality.read_findings(
                trace_id,
                census,
                size_bytes=len(mapped),
                lost_bytes=events.lost_bytes,
                damage=local.damage,
                repairs=repairs,
            )
        )
    session.add_findings(quality.trace_findings(session, trace_id))
    session.add_findings(sidecar_findings)
    return sidecar


@contextmanager
def _mapped(path: Path, name: str) -> Iterator[mmap.mmap]:
    with path.open("rb") as file:
        try:
            text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise InputError("the file is empty", source=name, byte_offset=0) from None
        with text:
            yield text


def _ingest(session: Session, trace_id: int, text: _Text) -> tuple[quality.Census, dict[str, int]]:
    """Fill the tables; the text is normalized first if it must be, and mended if it is broken.

    Returns:
        What the events are, and the flaws that were mended, each with its first byte.
    """
    try:
        return _ingest_sound(session, trace_id, text), {}
    except duckdb.InvalidInputException as error:
        with _scratch(session) as copy:
            mended, flaws = rewrite.mend(text.mapped, text.events, copy)
            if not flaws:
                raise _malformed(text, error) from error
            with _mapped(copy, text.name) as mapped:
                whole = _Text(text.name, copy, mapped, mended, text.damage, shift=text.events.start)
                return _ingest(session, trace_id, whole)[0], flaws


def _ingest_sound(session: Session, trace_id: int, text: _Text) -> quality.Census:
    """Fill the tables from a text without flaws, rewritten first if it must be."""
    try:
        return _fill(session, trace_id, text)
    except NeedsRewritingError as needed:
        with _scratch(session) as copy:
            normal = rewrite.normalize(text.mapped, text.events, copy)
            with _mapped(copy, text.name) as mapped:
                rewritten = _Text(text.name, copy, mapped, normal)
                census = _fill(session, trace_id, rewritten, is_rewritten=True)
                return replace(census, is_legacy=needed.is_legacy)


def _fill(session: Session, trace_id: int, text: _Text, *, is_rewritten: bool = False) -> quality.Census:
    with staged_events(session, text.path, text.mapped, text.events, is_rewritten=is_rewritten) as census:
        return fill_tables(session, trace_id, census)


@contextmanager
def _scratch(session: Session) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=session.temporary_directory) as folder:
        yield Path(folder) / "events.json"


def _malformed(text: _Text, error: duckdb.Error) -> InputError:
    """The error of an array that cannot be read, with the byte where it breaks."""
    hint = f"Decompression failed before: {text.damage}. Copy the file again" if text.damage else None
    start, end = text.events.start, text.events.end
    body = b"[" + text.mapped[start:end] + b"]"
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
    except msgspec.DecodeError as decode_error:
        offset = text.shift + start + error_offset(decode_error, len(body)) - 1
        return InputError(
            "not valid JSON inside the traceEvents array", source=text.name, byte_offset=offset, hint=hint
        )
    reason = re.sub(r'^.*?error in file "[^"]*", in ', "", str(error).splitlines()[0])
    return InputError(
        f"an event cannot be read ({reason})", source=text.name, byte_offset=text.shift + start, hint=hint
    )


def _write_trace(
    session: Session, trace_id: int, text: _Text, census: quality.Census, environment: Environment | None
) -> None:
    properties = text.events.properties
    distributed = properties.get("distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    backend = distributed.get("backend")
    others = {key: value for key, value in properties.items() if key != "deviceProperties"}
    row = [
        trace_id,
        _valid_text(text.name),
        "kineto_legacy" if census.is_legacy else "kineto",
        _integer(distributed.get("rank")),
        _integer(distributed.get("world_size")),
        _valid_text(backend) if isinstance(backend, str) else None,
        _integer(properties.get("baseTimeNanoseconds"), bits=64),
        census.window_start_ns,
        census.window_end_ns,
        _integer(properties.get("cuda_runtime_version")),
        _integer(properties.get("cuda_driver_version")),
        _integer(properties.get("cupti_version")),
        len(text.mapped),
        census.event_count,
        _valid_text(json.dumps(others, ensure_ascii=False)),
        *_versions(environment),
    ]
    session.connection.execute(f"INSERT INTO traces VALUES ({', '.join('?' * len(row))})", row)


def _versions(environment: Environment | None) -> tuple[str | None, ...]:
    if environment is None:
        return (None,) * 4
    return (
        environment.torch,
        environment.torch_git_version,
        environment.cuda_runtime,
        environment.cuda_driver,
    )


def _integer(value: Any, *, bits: int = 32) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) < 1 << (bits - 1) else None


def _valid_text(text: str) -> str:
    """The text without lone surrogates: half characters of JSON escapes, foreign bytes of file names."""
    return text.encode("utf-8", "replace").decode("utf-8")
