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
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from opscope.errors import CaptureError

T = TypeVar("T")
# Kineto ends a trace with the name of the file it wrote, within this many bytes of the end.
_TAIL_BYTES = 16_384
_TRACE_NAME = re.compile(rb'"traceName": "(?:[^"\\]|\\.)*"')
_CHUNK_BYTES = 16 << 20
# A kernel's name may take 8 KB (Kineto demangles up to that), a path 4 KB.
_OVERLAP_BYTES = 1 << 16
# What stands between the parts of an event; within the first bytes of each chunk.
_LAYOUT = re.compile(rb'"cat"(\s*:\s*)"[^"]*"(\s*,\s*)"name"\s*:')
_LAYOUT_BYTES = 1 << 20
_GRAPH = b"## Call CompiledFxGraph "


def export_trace(save: Callable[[str], object], target: Path, read: Callable[[Path], T]) -> T:
    """Have `save` write an uncompressed trace to a temporary file, check it, and move it to `target`.

    The trace's own `traceName` becomes the target's file name: Kineto writes the temporary path there. A
    target that ends in `.gz` is compressed; an existing file is replaced. `read` is given the whole trace
    while it is uncompressed and still in the system's memory; what it returns is returned.
    """
    partial = target.with_name(f".{target.name.removesuffix('.gz')}.{os.getpid()}.partial.json")
    compressed = partial.with_name(f"{partial.name}.gz")
    try:
        save(str(partial))
        _finish(partial, target.name)
        result = read(partial)
        if target.name.endswith(".gz"):
            with partial.open("rb") as plain, gzip.open(compressed, "wb", compresslevel=6) as packed:
                shutil.copyfileobj(plain, packed)
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


class TraceNames(NamedTuple):
    kernels: frozenset[str] = frozenset()  # as the trace writes them
    operators: frozenset[str] = frozenset()  # and other ranges of category cpu_op
    kernel_files: frozenset[str] = frozenset()  # generated source files that launches name
    graph_keys: frozenset[str] = frozenset()  # of compiled graphs that ran; "None" if caches were off


def read_trace_names(path: Path) -> TraceNames:
    kernels: set[bytes] = set()
    operators: set[bytes] = set()
    files: set[bytes] = set()
    graphs: set[bytes] = set()
    layouts: set[tuple[bytes, ...]] = set()
    chunk = b""
    with path.open("rb") as file:
        while block := file.read(_CHUNK_BYTES):
            # Each chunk begins with the end of the one before, so that no name is cut in both.
            chunk = chunk[-_OVERLAP_BYTES:] + block
            layouts.update(match.groups() for match in _LAYOUT.finditer(chunk, 0, _LAYOUT_BYTES))
            for colon, comma in layouts:
                for category, found in ((b"kernel", kernels), (b"cpu_op", operators)):
                    start = b'"cat"%s"%s"%s"name"%s"' % (colon, category, comma, colon)
                    found.update(_values(chunk, start))
                files |= _values(chunk, b'"kernel_file"%s"' % colon)
                graphs |= _values(chunk, b'"name"%s"%s' % (colon, _GRAPH))
    keys = frozenset(name.removesuffix(" ##") for name in _decoded(graphs))
    return TraceNames(_decoded(kernels), _decoded(operators), _decoded(files), keys)


def _values(chunk: bytes, key: bytes) -> set[bytes]:
    """The texts between occurrences of a key and the quotes that end them."""
    find, values = chunk.find, set()
    start = find(key)
    while start >= 0:
        start += len(key)
        end = find(b'"', start)
        # An odd number of backslashes before a quote escapes it.
        while end >= 0 and (end - len(chunk[start:end].rstrip(b"\\")) - start) % 2:
            end = find(b'"', end + 1)
        if end < 0:
            break
        values.add(chunk[start:end])
        start = find(key, end)
    return values


def _decoded(values: set[bytes]) -> frozenset[str]:
    """JSON strings without their quotes, as text; what is none is left out."""
    names = set()
    for value in values:
        try:
            names.add(json.loads(b'"' + value + b'"'))
        except ValueError:
            continue
    return frozenset(names)
