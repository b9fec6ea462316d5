"""A trace just written: checked, named, moved to its place, and the names in it.

The names are searched as text, for Kineto writes every event in one layout (libkineto/src/output_json.cpp):
an event's category is followed by its name. Blanks and line ends differ between releases, so they are looked
up first. About 2 ms per megabyte, in bounded memory. Imports nothing of torch.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from opscope.errors import CaptureError

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


_CHUNK_BYTES = 16 << 20
# A kernel's name may take 8 KB (Kineto demangles up to that), a path 4 KB.
_OVERLAP_BYTES = 1 << 16

# What stands between the parts of an event; within the first bytes of each chunk.
_LAYOUT = re.compile(rb'"cat"(\s*:\s*)"[^"]*"(\s*,\s*)"name"\s*:')
_LAYOUT_BYTES = 1 << 20
_KERNEL, _OPERATOR, _KERNEL_FILE = b"kernel", b"cpu_op", b"kernel_file"
_GRAPH = b"## Call CompiledFxGraph "
_GRAPH_END = " ##"
_BACKSLASH = ord("\\")


@dataclass(frozen=True)
class TraceNames:
    """Distinct names of one trace.

    Args:
        kernels: Kernels, as the trace writes them.
        operators: Operators and other ranges of category cpu_op.
        kernel_files: Generated source files that launches name.
        graph_keys: Cache keys of the compiled graphs that ran; `None` as text if caches were off.
    """

    kernels: frozenset[str] = frozenset()
    operators: frozenset[str] = frozenset()
    kernel_files: frozenset[str] = frozenset()
    graph_keys: frozenset[str] = frozenset()


def read_trace_names(path: Path) -> TraceNames:
    """The names in an uncompressed trace.

    Raises:
        OSError: It cannot be read.
    """
    found: dict[bytes, set[bytes]] = {key: set() for key in (_KERNEL, _OPERATOR, _KERNEL_FILE, _GRAPH)}
    layouts: set[tuple[bytes, ...]] = set()
    for chunk in _chunks(path):
        layouts.update(match.groups() for match in _LAYOUT.finditer(chunk, 0, _LAYOUT_BYTES))
        for colon, comma in layouts:
            for category in (_KERNEL, _OPERATOR):
                start = b'"cat"%s"%s"%s"name"%s"' % (colon, category, comma, colon)
                found[category] |= _values(chunk, start)
            found[_KERNEL_FILE] |= _values(chunk, b'"%s"%s"' % (_KERNEL_FILE, colon))
            found[_GRAPH] |= _values(chunk, b'"name"%s"%s' % (colon, _GRAPH))
    graphs = _decoded(found[_GRAPH])
    return TraceNames(
        _decoded(found[_KERNEL]),
        _decoded(found[_OPERATOR]),
        _decoded(found[_KERNEL_FILE]),
        frozenset(name.removesuffix(_GRAPH_END) for name in graphs),
    )


def _chunks(path: Path) -> Iterator[bytes]:
    """The file's bytes; each chunk begins with the end of the one before, so that no name is cut in both."""
    with path.open("rb") as file:
        tail = b""
        while block := file.read(_CHUNK_BYTES):
            chunk = tail + block
            yield chunk
            tail = chunk[-_OVERLAP_BYTES:]


def _values(chunk: bytes, key: bytes) -> set[bytes]:
    """The texts between occurrences of a key and the quotes that end them."""
    find, values = chunk.find, set()
    start = find(key)
    while start >= 0:
        start += len(key)
        end = find(b'"', start)
        while chunk[end - 1] == _BACKSLASH and _is_escaped(chunk, end):
            end = find(b'"', end + 1)
        if end < 0:
            break
        values.add(chunk[start:end])
        start = find(key, end)
    return values


def _is_escaped(chunk: bytes, index: int) -> bool:
    """Whether an odd number of backslashes stands before a character; False for the index -1."""
    before = index
    while before > 0 and chunk[before - 1] == _BACKSLASH:
        before -= 1
    return (index - before) % 2 == 1


def _decoded(values: set[bytes]) -> frozenset[str]:
    """JSON strings without their quotes, as text; what is none is left out."""
    names = set()
    for value in values:
        try:
            names.add(json.loads(b'"' + value + b'"'))
        except ValueError:
            continue
    return frozenset(names)
