"""Windows of one local file as files of their own, each a JSON array, for DuckDB to read side by side."""

from __future__ import annotations

import datetime
import os
from typing import Any

import fsspec

PROTOCOL = "opscopewindow"
# DuckDB asks for 32 MB at once. Short reads are its to repeat; a chunk of this size is allocated from memory
# used before, where a larger one is mapped, touched for the first time and unmapped: 20 % of all reading.
_READ_BYTES = 1 << 20
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


class _Window:
    """A read-only file: `[`, bytes `[start, end)` of a file, `]`."""

    def __init__(self, descriptor: int, start: int, end: int) -> None:
        self._descriptor = descriptor
        self._start = start
        self._length = end - start
        self._position = 0
        self.closed = False

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        base = (0, self._position, self._length + 2)[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        left = self._length + 2 - self._position
        size = left if size < 0 else min(size, left)
        if size <= 0:
            return b""
        if self._position == 0:
            self._position = 1
            return b"["
        inside = self._length + 1 - self._position
        if inside == 0:
            self._position += 1
            return b"]"
        chunk = os.pread(self._descriptor, min(size, inside, _READ_BYTES), self._start + self._position - 1)
        self._position += len(chunk)
        return chunk

    def close(self) -> None:
        self.closed = True


class WindowFileSystem(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """Serves windows of one local file as `opscopewindow://N` until it is closed.

    All read through one descriptor: DuckDB does not close the files of a statement that fails.
    """

    protocol = PROTOCOL
    cachable = False

    def __init__(self, path: str, windows: list[tuple[int, int]]) -> None:
        super().__init__()
        self._descriptor = os.open(path, os.O_RDONLY)
        self._windows = windows

    def close(self) -> None:
        """Read nothing more."""
        os.close(self._descriptor)

    @property
    def urls(self) -> list[str]:
        """Address of every window, in file order."""
        return [f"{PROTOCOL}://{index}" for index in range(len(self._windows))]

    def _window(self, path: str) -> tuple[int, int]:
        return self._windows[int(str(path).rsplit("/", 1)[-1])]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Size of a window with its brackets."""
        start, end = self._window(path)
        return {"name": path, "size": end - start + 2, "type": "file"}

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """The window itself."""
        return [self.info(path)] if detail else [path]

    def exists(self, path: str, **_: Any) -> bool:
        """Windows are only addressed by `urls`."""
        return True

    def glob(self, path: str, **_: Any) -> list[str]:
        """The window itself."""
        return [path]

    def created(self, path: str) -> datetime.datetime:
        """A constant: windows are never stale within a read."""
        return _EPOCH

    modified = created

    def _open(self, path: str, mode: str = "rb", **_: Any) -> _Window:
        start, end = self._window(path)
        return _Window(self._descriptor, start, end)
