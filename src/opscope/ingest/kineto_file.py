"""A Kineto file → rows of one trace: where its events lie, what must be mended first, what it says of itself.

A trace either arrives wholly in the tables or not at all: the first error ends the load, with the file's name
and byte offset. Flaws that leave the rest usable become findings.
"""

from __future__ import annotations

import codecs
import json
import mmap
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import msgspec
from msgspec.structs import replace

from opscope.errors import InputError
from opscope.ingest import quality
from opscope.ingest.graph_sources import CaptureTraces, GraphSources, graph_findings
from opscope.ingest.kineto import fill_tables
from opscope.ingest.recorded import read_beside
from opscope.ingest.source import EventArray, LocalText, TraceFile, broken_events, error_offset, locate_events
from opscope.ingest.staging import NeedsRewritingError, staged_events
from opscope.ingest.trace_rows import integer, recorded_release, valid_text, write_devices, write_trace
from opscope.ingest.trust import distrust, end_steps
from opscope.model.environment import Environment
from opscope.model.finding import Finding, recorded_findings
from opscope.model.session import Session
from opscope.model.sidecar import Sidecar
from opscope.signals import raise_if_interrupted

if TYPE_CHECKING:
    from opscope.ingest.nsys_words import Demangle


_CHUNK_BYTES = 8 << 20
_TIME = re.compile(rb'("ts"\s*:\s*)(-?\d+(?:\.\d+)?)(?=\s*[,}\]])')
_NO_TIME = re.compile(rb'("ts"\s*:\s*)-?(?:nan|inf|infinity)(?=\s*[,}\]])', re.IGNORECASE)
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_FOREIGN = "opscope.foreign_bytes"
_CONTROL = re.compile(rb"[\x00-\x1f]")


def _question_marks(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "?" * (error.end - error.start), error.end


# Unlike "replace" it keeps every position, so that later errors name the byte of the original.
codecs.register_error(_FOREIGN, _question_marks)


def normalize(text: mmap.mmap, events: EventArray, target: Path) -> EventArray:
    """Write the array with quoted times, so that no digit is lost, and today's key names.

    Returns:
        Where the array lies in the copy.
    """
    with target.open("wb") as out:
        for chunk in _chunks(text, events.start, events.end):
            timed = _NO_TIME.sub(rb"\1null", _TIME.sub(rb'\1"\2"', chunk))
            out.write(timed.replace(b'"external id"', b'"External id"'))
        size = out.tell()
    return EventArray(0, size, events.properties, events.lost_bytes)


def mend(text: mmap.mmap, events: EventArray, target: Path) -> tuple[EventArray, dict[str, int], int]:
    """Write the array: spaces for what is no JSON, control characters and invalid UTF-8 replaced.

    Every byte keeps its place.

    Returns:
        Where the array lies in the copy, for each kind of flaw its first byte in the original, and how many
        events were left out. No flaws if there was nothing to mend.
    """
    broken = broken_events(text, events.start, events.end)
    flaws: dict[str, int] = {"broken_events": broken[0][0]} if broken else {}
    position = events.start
    with target.open("wb") as out:
        for gap_start, gap_end in (*broken, (events.end, events.end)):
            for chunk in _chunks(text, position, gap_start):
                mended = _mend_utf8(chunk, position, flaws)
                out.write(_STRING.sub(lambda match: _CONTROL.sub(b" ", match.group()), mended))
                _note_control_characters(chunk, position, flaws)
                position += len(chunk)
            out.write(b" " * (gap_end - gap_start))
            position = gap_end
        size = out.tell()
    return EventArray(0, size, events.properties, events.lost_bytes), flaws, len(broken)


def _mend_utf8(chunk: bytes, position: int, flaws: dict[str, int]) -> bytes:
    try:
        codecs.utf_8_decode(chunk, "strict", True)
    except UnicodeDecodeError as error:
        flaws.setdefault("invalid_utf8", position + error.start)
        return chunk.decode("utf-8", _FOREIGN).encode("utf-8")
    return chunk


def _note_control_characters(chunk: bytes, position: int, flaws: dict[str, int]) -> None:
    if "control_characters" in flaws:
        return
    for match in _STRING.finditer(chunk):
        inside = _CONTROL.search(match.group())
        if inside:
            flaws["control_characters"] = position + match.start() + inside.start()
            return


def _chunks(text: mmap.mmap, start: int, end: int):  # type: ignore[no-untyped-def]
    """Pieces that end between events, so that no string or number is cut."""
    position = start
    while position < end:
        stop = min(end, position + _CHUNK_BYTES)
        if stop < end:
            boundary = text.rfind(b"},", position, stop)
            stop = boundary + 2 if boundary > position else end
        yield text[position:stop]
        position = stop


class Text(msgspec.Struct, frozen=True):
    """The text of one trace: its name for people, a local file, the same mapped, and where its events lie.

    `shift` added to a position in a mended copy gives the one in the original.
    """

    name: str
    path: Path
    mapped: mmap.mmap
    events: EventArray
    damage: str | None = None
    shift: int = 0


def read_kineto(
    session: Session,
    trace_id: int,
    trace: TraceFile,
    local: LocalText,
    *,
    captures: CaptureTraces | None = None,
    demangle: Demangle | None = None,
) -> Sidecar | None:
    """Read a Kineto file into the tables, as one trace; its sidecar, if it has one.

    Args:
        session: Of the tables.
        trace_id: Of the trace.
        trace: The file.
        local: Its text on this machine.
        captures: Traces of captures of CUDA graphs that it may replay.
        demangle: As of `load`.

    Raises:
        InputError: The file cannot be read; names it and the byte offset.
    """
    sidecar, sidecar_findings = read_beside(trace_id, trace)
    graphs = GraphSources(trace, sidecar, captures or CaptureTraces(()), demangle)

    defects: list[Finding] = []

    def fill(census: quality.Census) -> quality.Census:
        census, ended = end_steps(session, trace_id, census)
        defects.extend((*ended, *distrust(session, trace_id, census)))
        return fill_tables(session, trace_id, graphs.open_in(session, trace_id, census))

    with mapped_text(local.path, trace.name) as mapped:
        events = locate_events(mapped, trace.name)
        text = Text(trace.name, local.path, mapped, events, local.damage)
        census, repairs = ingest_text(session, text, fill)
        _write_trace(session, trace_id, text, census, sidecar)
        described = (events.properties.get(key) for key in ("deviceProperties", "agents"))
        write_devices(session, trace_id, *described)
        size_bytes = len(mapped)
    session.add_findings(
        (
            *defects,
            *quality.read_findings(
                trace_id,
                census,
                size_bytes=size_bytes,
                lost_bytes=events.lost_bytes,
                damage=local.damage,
                repairs=repairs,
            ),
            *quality.trace_findings(session, trace_id, is_explained=bool(defects) or events.lost_bytes > 0),
            *recorded_findings(events.properties, trace_id),
            *sidecar_findings,
            *(graph_findings(session, trace_id, captures) if graphs.are_asked_for else ()),
        )
    )
    return sidecar


@contextmanager
def mapped_text(path: Path, name: str) -> Iterator[mmap.mmap]:
    """The text of a local file, mapped.

    Raises:
        InputError: It is empty.
    """
    with path.open("rb") as file:
        try:
            text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise InputError("the file is empty", source=name, byte_offset=0) from None
        with text:
            yield text


Fill = Callable[[quality.Census], quality.Census]


def ingest_text(session: Session, text: Text, fill: Fill) -> tuple[quality.Census, dict[str, int]]:
    """Use the staged events; the text is normalized first if it must be, and mended if it is broken.

    Returns:
        What the events are, and the flaws that were mended, each with its first byte.
    """
    try:
        return _ingest_sound(session, text, fill), {}
    except duckdb.InvalidInputException as error:
        raise_if_interrupted(error)
        with _scratch(session) as copy:
            mended, flaws, left_out = mend(text.mapped, text.events, copy)
            if not flaws:
                raise _malformed(text, error) from error
            with mapped_text(copy, text.name) as mapped:
                whole = Text(text.name, copy, mapped, mended, text.damage, shift=text.events.start)
                return replace(ingest_text(session, whole, fill)[0], broken_count=left_out), flaws


def _ingest_sound(session: Session, text: Text, fill: Fill) -> quality.Census:
    """Use the staged events of a text without flaws, rewritten first if it must be."""
    try:
        return _fill(session, text, fill)
    except NeedsRewritingError as needed:
        with _scratch(session) as copy:
            normal = normalize(text.mapped, text.events, copy)
            with mapped_text(copy, text.name) as mapped:
                rewritten = Text(text.name, copy, mapped, normal)
                census = _fill(session, rewritten, fill, is_rewritten=True)
                return replace(census, is_legacy=needed.is_legacy)


def _fill(session: Session, text: Text, fill: Fill, *, is_rewritten: bool = False) -> quality.Census:
    with staged_events(session, text.path, text.mapped, text.events, is_rewritten=is_rewritten) as census:
        return fill(census)


@contextmanager
def _scratch(session: Session) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=session.temporary_directory) as folder:
        yield Path(folder) / "events.json"


def _malformed(text: Text, error: duckdb.Error) -> InputError:
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
    except RecursionError:
        return InputError(
            "an event is nested too deeply", source=text.name, byte_offset=text.shift + start, hint=hint
        )
    reason = re.sub(r'^.*?error in file "[^"]*", in ', "", str(error).splitlines()[0])
    return InputError(
        f"an event cannot be read ({reason})", source=text.name, byte_offset=text.shift + start, hint=hint
    )


def _write_trace(
    session: Session, trace_id: int, text: Text, census: quality.Census, sidecar: Sidecar | None
) -> None:
    properties = text.events.properties
    distributed = properties.get("distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    backend = distributed.get("backend")
    rank, world_size = integer(distributed.get("rank")), integer(distributed.get("world_size"))
    if rank is None and sidecar is not None:
        # torch notes them only while the process group is there: a whole run is written when it is gone.
        rank, world_size = sidecar.rank, sidecar.world_size
    others = {key: value for key, value in properties.items() if key not in ("deviceProperties", "agents")}
    write_trace(
        session,
        trace_id=trace_id,
        source=valid_text(text.name),
        format="kineto_legacy" if census.is_legacy else "kineto",
        rank=rank,
        world_size=world_size,
        backend=valid_text(backend) if isinstance(backend, str) else None,
        base_time_ns=integer(properties.get("baseTimeNanoseconds"), bits=64),
        window_start_ns=census.window_start_ns,
        window_end_ns=census.window_end_ns,
        cuda_runtime_version=integer(properties.get("cuda_runtime_version")),
        cuda_driver_version=integer(properties.get("cuda_driver_version")),
        cupti_version=integer(properties.get("cupti_version")),
        size_bytes=len(text.mapped),
        event_count=census.event_count,
        properties=valid_text(json.dumps(others, ensure_ascii=False)),
        **(
            _versions(None if sidecar is None else sidecar.environment)
            or {"torch_version": recorded_release(properties)}
        ),
    )


def _versions(environment: Environment | None) -> dict[str, str | None]:
    if environment is None:
        return {}
    return {
        "torch_version": environment.torch,
        "torch_git_version": environment.torch_git_version,
        "cuda_version": environment.cuda_runtime,
        "driver_version": environment.cuda_driver,
    }
