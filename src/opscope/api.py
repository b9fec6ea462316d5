"""The public functions: each wires the layers below into one step a user thinks of."""

from __future__ import annotations

from collections.abc import Sequence

from opscope.model.session import Session, is_session_file

__all__ = ["load"]


def load(
    source: str | Sequence[str], *, memory_limit: str | None = None, threads: int | None = None
) -> Session:
    """A Session of a saved `.opscope` file, or of one or several traces.

    Args:
        source: A trace, a folder of rank files, an fsspec address (`s3://`, `gs://`, `https://`, `memory://`), a
            saved Session, or several traces that belong together.
        memory_limit: DuckDB's memory limit, e.g. `"1GB"`; with one, the tables live in a temporary file.
        threads: Worker threads; all cores if None.

    Raises:
        InputError: The source cannot be read; the message names the file and byte offset.
        DependencyError: The address needs a package that is not installed; the message has the install line.
    """
    if isinstance(source, str) and is_session_file(source):
        return Session.open(source)
    from opscope.ingest.reader import load as load_traces  # noqa: PLC0415 - sessions open without numpy

    return load_traces(source, memory_limit=memory_limit, threads=threads)
