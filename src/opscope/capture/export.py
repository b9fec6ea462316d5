"""Writing a trace so that its file is whole whenever it is there. Imports nothing of torch."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from opscope.errors import CaptureError

__all__ = ["export_trace"]

# Kineto ends a trace with the name of the file it wrote, within this many bytes of the end.
_TAIL_BYTES = 16_384
T = TypeVar("T")
_TRACE_NAME = re.compile(rb'"traceName": "(?:[^"\\]|\\.)*"')


def export_trace(save: Callable[[str], object], target: Path, read: Callable[[Path], T]) -> T:
    """Have `save` write a trace to a temporary file, check it, and move it to `target`.

    The trace's own `traceName` becomes the target's file name: Kineto writes the temporary path there.

    Args:
        save: Writes the uncompressed trace to the path it is given.
        target: Where the trace goes; compressed if it ends in `.gz`. An existing file is replaced.
        read: Is given the whole trace while it is uncompressed and still in the system's memory.

    Returns:
        What `read` returned.

    Raises:
        CaptureError: The trace cannot be written, or is not whole.
    """
    partial = target.with_name(f".{target.name.removesuffix('.gz')}.{os.getpid()}.partial.json")
    compressed = partial.with_name(f"{partial.name}.gz")
    try:
        save(str(partial))
        _finish(partial, target.name)
        result = read(partial)
        if target.name.endswith(".gz"):
            _compress(partial, compressed)
            compressed.replace(target)
        else:
            partial.replace(target)
    except OSError as error:
        raise CaptureError(
            f"the trace cannot be written ({error.strerror or error})", source=target
        ) from error
    finally:
        partial.unlink(missing_ok=True)
        compressed.unlink(missing_ok=True)
    return result


def _finish(file: Path, name: str) -> None:
    """Check that a trace ends as JSON does, and set its `traceName`.

    Kineto only logs what goes wrong while it writes (a full disk), so the end of the file is the proof.
    """
    with file.open("r+b") as trace:
        size = trace.seek(0, os.SEEK_END)
        tail_start = max(0, size - _TAIL_BYTES)
        trace.seek(tail_start)
        tail = trace.read()
        if not tail.rstrip().endswith(b"}"):
            raise CaptureError(
                "the profiler wrote an incomplete trace", source=name, hint="Is the disk full?"
            )
        found = list(_TRACE_NAME.finditer(tail))
        if not found:
            return
        start, end = found[-1].span()
        trace.seek(tail_start + start)
        trace.write(b'"traceName": ' + json.dumps(name).encode() + tail[end:])
        trace.truncate()


def _compress(source: Path, target: Path) -> None:
    with source.open("rb") as plain, gzip.open(target, "wb", compresslevel=6) as packed:
        shutil.copyfileobj(plain, packed)
