"""The recorded trace with tracks of ours, for viewers of traces such as Perfetto: the critical path.

The recording is copied byte for byte; our events come first in its array, in a process named `opscope`.
"""

from __future__ import annotations

import gzip
import mmap
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from opscope.analysis.step_model import PathPiece
from opscope.analysis.summary import Summary
from opscope.errors import InputError
from opscope.ingest.source import find_traces, is_export, local_text, locate_events
from opscope.model.files import replacing
from opscope.model.session import Session

__all__ = ["export_trace"]

_CATEGORY = "opscope"
# Of processes: recorders use those of the operating system, devices and, for their own tracks, words.
_PROCESS = 1 << 30
_COPIED_BYTES = 8 << 20


def export_trace(session: Session, path: str | os.PathLike[str]) -> Path:
    """Write the trace of a Session with its critical path; returns the file. A name in `.gz` is compressed.

    Raises:
        InputError: Several traces, one that PyTorch's profiler did not write or that is gone, no steps to
            follow, or the file cannot be written.
    """
    summary = Summary(session)
    if len(summary.traces) != 1:
        raise InputError(
            f"{len(summary.traces)} traces were read, and one is exported at a time",
            hint="Name one of the files",
        )
    (source,) = summary.traces
    if not summary.step_models:
        raise InputError("nothing was launched in it, so it has no critical path", source=source)
    (model,) = summary.step_models
    (trace,) = find_traces(source)
    with local_text(trace, session.temporary_directory) as local:
        if is_export(trace, local):
            raise InputError(
                "an export of Nsight Systems has no events to add tracks to", source=source, hint="Nsight"
                " Systems shows it; traces of torch.profiler can be exported",
            )  # fmt: skip
        with (
            local.path.open("rb") as text,
            mmap.mmap(text.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            replacing(path) as partial,
            _opened(partial, is_packed=Path(path).suffix == ".gz") as out,
        ):
            array = locate_events(mapped, source)
            out.write(mapped[: array.start])
            out.write(b",\n".join(_track(1, "critical path", model.recorded_path)))
            if array.end > array.start:
                out.write(b",")
            end = array.end if array.lost_bytes else len(mapped)
            for position in range(array.start, end, _COPIED_BYTES):
                out.write(mapped[position : min(end, position + _COPIED_BYTES)])
            if array.lost_bytes:
                out.write(b"]" if mapped[: array.start].strip() == b"[" else b"]}")
    return Path(path)


def _opened(path: Path, *, is_packed: bool) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "wb", compresslevel=5)) if is_packed else path.open("wb")


def _track(thread: int, name: str, pieces: Iterable[PathPiece]) -> Iterator[bytes]:
    """Events of one track: its names, then a slice for each piece that takes time."""
    place = {"pid": _PROCESS, "tid": thread}
    for what, value in (("process_name", _CATEGORY), ("thread_name", name)):
        yield _event(ph="M", name=what, args={"name": value}, **place)
    yield _event(ph="M", name="process_sort_index", args={"sort_index": -1}, **place)
    for piece in pieces:
        if piece.ns:
            shown = piece.name if piece.kind in ("kernel", "communication", "copy") else None
            yield _event(
                ph="X",
                cat=_CATEGORY,
                name=shown or (f"{piece.kind}: {piece.name}" if piece.name else piece.kind),
                ts=_microseconds(piece.start_ns),
                dur=_microseconds(piece.ns),
                args={"kind": piece.kind},
                **place,
            )


def _event(**fields: Any) -> bytes:
    return msgspec.json.encode(fields)


def _microseconds(ns: int) -> msgspec.Raw:
    """Exact to the nanosecond, which a float of that many microseconds is not."""
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return msgspec.Raw(f"{sign}{ns // 1000}.{ns % 1000:03d}".encode())
