"""Lines of source that the user has: from a checkout, or from the headers of an installation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from opscope.provenance.sources.permalinks import include_path, is_plain_path

__all__ = ["read_lines"]

_LARGEST_FILE_BYTES = 8 << 20
_MOST_LINES = 2000


def read_lines(file: str, line: int, end_line: int | None, roots: Sequence[Path]) -> list[str] | None:
    """Lines of a file, without line ends, from the first root that has it.

    Args:
        file: Path in the PyTorch repository.
        line: First line, from 1.
        end_line: Last line; None for one line. At most 2000 lines are read.
        roots: Checkouts and `torch/include` folders. Nothing outside them is read, whatever links they hold.

    Returns:
        None if no root has the file, or the file has no such line.
    """
    last = line if end_line is None else end_line
    if line < 1 or last < line or not is_plain_path(file):
        return None
    for path in _candidates(file, roots):
        text = _text(path)
        if text is not None:
            found = text.split("\n")[line - 1 : min(last, line + _MOST_LINES - 1)]
            return found or None
    return None


def _candidates(file: str, roots: Sequence[Path]) -> Iterable[Path]:
    """Real paths of the file within each root."""
    header = include_path(file)
    for root in roots:
        try:
            folder = Path(root).resolve(strict=True)
        except (OSError, RuntimeError):
            continue
        for relative in dict.fromkeys((file, header)):
            if relative is None:
                continue
            try:
                path = (folder / relative).resolve(strict=True)
            except (OSError, RuntimeError):
                continue
            if path.is_file() and path.is_relative_to(folder):
                yield path


def _text(path: Path) -> str | None:
    try:
        if path.stat().st_size > _LARGEST_FILE_BYTES:
            return None
        return path.read_text(encoding="utf-8", errors="replace").removesuffix("\n")
    except OSError:
        return None
