"""Many ranks: each is read in a process of its own, and the tables of all are put together here.

A process reads one file into tables of its own and answers with them as Parquet. Here ids are shifted by
what the files before it hold, in the order of the files, so that every row is as if one process had read all.
Processes come from an executor: of this machine, or of a Dask cluster.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from opscope._version import __version__
from opscope.errors import DependencyError, InputError
from opscope.ingest.source import TraceFile
from opscope.model.files import scratch_prefix
from opscope.model.schema import TABLES, Table
from opscope.model.session import Session
from opscope.model.sidecar import Sidecar

if TYPE_CHECKING:
    from opscope.ingest.graph_sources import CaptureTraces
    from opscope.ingest.nsys_words import Demangle

__all__ = ["MakeExecutor", "Noted", "Part", "dask_cluster", "local_processes", "read_part", "read_parts"]

MakeExecutor = Callable[[], Executor]
Noted = Callable[[str], object]

# Parts that are put together by one statement for each table.
_BATCH = 16
_TRIES = 3
_NAMES = "kernel_names"
# Not of one file: facts of the Session, and what is computed from all of it.
_LEFT_OUT = frozenset(("metadata",))


class Part(msgspec.Struct):
    """What one file holds.

    Attributes:
        tables: Parquet of each table that has rows.
        next_ids: The first id that is free, by table.
        names: Kernel names by id, with the kind of activity.
        sidecars: By trace id in this part.
        version: Of the opscope that read it.
    """

    tables: dict[str, bytes]
    next_ids: dict[str, int]
    names: list[tuple[str, str]]
    sidecars: dict[int, Sidecar]
    version: str = __version__


class _Shared(NamedTuple):
    """What a table's rows are numbered by: its column of ids."""

    table: str
    column: str


_IDENTITIES = {
    table.name: _Shared(table.name, table.columns[0].name)
    for table in TABLES
    if table.columns[0].doc.startswith("Identity")
}


def read_part(
    trace: TraceFile, demangle: Demangle | None = None, captures: CaptureTraces | None = None
) -> Part:
    """One file as tables of its own; what a process of an executor does.

    Raises:
        InputError: The file cannot be read.
    """
    from opscope.ingest.reader import read_file  # noqa: PLC0415 - which imports this module

    with Session(threads=1) as session, tempfile.TemporaryDirectory(prefix=scratch_prefix()) as folder:
        sidecars = read_file(session, trace, demangle, captures)
        tables = {}
        for table in TABLES:
            if table.name in _LEFT_OUT or not session.scalar(f"SELECT count(*) FROM {table.name}"):
                continue
            path = Path(folder) / f"{table.name}.parquet"
            session.connection.execute(f"COPY {table.name} TO '{path}' (FORMAT parquet, COMPRESSION lz4)")
            tables[table.name] = path.read_bytes()
        next_ids = {
            name: int(session.scalar(f"SELECT coalesce(max({column}) + 1, 0) FROM {table}"))
            for name, (table, column) in _IDENTITIES.items()
        }
        names = session.query(f"SELECT kind, name FROM {_NAMES} ORDER BY name_id")
        return Part(tables, next_ids, list(names), sidecars)


@contextmanager
def local_processes(workers: int) -> Iterator[MakeExecutor]:
    """Processes of this machine; a new set of them after one was killed. None outlives the block."""
    made: list[Executor] = []
    others = set(multiprocessing.active_children())
    with tempfile.TemporaryDirectory(prefix=scratch_prefix()) as folder:

        def make() -> Executor:
            made.append(
                ProcessPoolExecutor(
                    workers,
                    multiprocessing.get_context("spawn"),
                    initializer=_serve_parent,
                    initargs=(folder,),
                )
            )
            return made[-1]

        _start_resource_tracker()
        try:
            yield make
        except BaseException:
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
            raise
        finally:
            for one in made:
                one.shutdown(cancel_futures=True)


def _serve_parent(folder: str) -> None:
    """Leave to the process that started this one when it ends, and what it leaves behind."""
    tempfile.tempdir = folder
    for name in ("SIGINT", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _start_resource_tracker() -> None:
    """Python's own process beside them would not bear the end of a terminal, though it does Ctrl-C."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not hasattr(signal, "SIGHUP"):
        return
    from multiprocessing.resource_tracker import ensure_running  # noqa: PLC0415 - of POSIX alone

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        ensure_running()
    finally:
        signal.signal(signal.SIGHUP, before)


@contextmanager
def dask_cluster(address: str) -> Iterator[MakeExecutor]:
    """Workers of a Dask cluster, by the address of its scheduler. Lost ones are made up for by others.

    Raises:
        DependencyError: dask.distributed is not installed.
        InputError: No scheduler answers there.
    """
    try:
        import distributed  # noqa: PLC0415 - optional
    except ImportError as error:
        raise DependencyError(
            "dask.distributed is not installed", hint="pip install 'opscope[dask]'"
        ) from error
    try:
        connect: Any = distributed.Client
        client = connect(address, timeout="10s", set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError(
            f"no Dask scheduler answers ({error})", source=address, hint="Start one with: dask scheduler"
        ) from error
    try:
        yield lambda: client.get_executor(retries=_TRIES, pure=False)
    finally:
        client.close()


def read_parts(
    session: Session,
    traces: Sequence[TraceFile],
    make_executor: MakeExecutor,
    *,
    captures: CaptureTraces | None = None,
    demangle: Demangle | None = None,
    note: Noted = lambda text: None,
    on_done: Callable[[int], object] = lambda count: None,
) -> dict[int, Sidecar]:
    """Read files into the tables of an empty Session; sidecars by trace id.

    Args:
        session: The Session.
        traces: Its files, in order.
        make_executor: Gives an executor of processes; asked again when one broke.
        captures: As of `load`.
        demangle: As of `load`.
        note: Told what a worker could not do, which was done here instead.
        on_done: Told how many files are in the tables.

    Raises:
        InputError: A file cannot be read, or processes that read it were killed again and again.
    """
    sidecars: dict[int, Sidecar] = {}
    merger = _Merger(session)
    # Workers of an older release take no captures, and need none where none are given.
    options = (demangle, captures) if captures is not None and captures.files else (demangle,)
    batch: list[Part] = []
    for count, part in enumerate(_parts(traces, make_executor, options, note), 1):
        batch.append(part)
        if len(batch) == _BATCH or count == len(traces):
            sidecars |= merger.add(batch)
            batch = []
            on_done(count)
    return sidecars


def _parts(
    traces: Sequence[TraceFile],
    make_executor: MakeExecutor,
    options: tuple[Any, ...],
    note: Noted,
) -> Iterator[Part]:
    """The parts in the order of the files; few more than a batch are kept waiting for an earlier one."""
    executor = make_executor()
    running: dict[int, Future[Part]] = {}
    tries = [0] * len(traces)
    for place, trace in enumerate(traces):
        while True:
            for ahead in range(place, min(len(traces), place + 2 * _BATCH)):
                if ahead not in running:
                    running[ahead] = executor.submit(read_part, traces[ahead], *options)
            try:
                part = running.pop(place).result()
                break
            except BrokenExecutor as error:
                # One process was killed, and with it the others' answers are lost.
                tries[place] += 1
                if tries[place] == _TRIES:
                    raise InputError(
                        "processes that read it were killed", source=trace.name, hint="Use fewer --workers"
                    ) from error
                executor, running = make_executor(), {}
            except (ImportError, AttributeError) as error:
                note(f"a worker cannot read {trace.name} ({error}): it was read here")
                part = read_part(trace, *options)
                break
        if part.version != __version__:
            note(f"a worker has opscope {part.version}: {trace.name} was read here")
            part = read_part(trace, *options)
        yield part


class _Merger:
    """Puts parts into a Session, ids shifted by what is there."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._next = dict.fromkeys(_IDENTITIES, 0)
        self._names: dict[tuple[str, str], int] = {}

    def add(self, parts: Sequence[Part]) -> dict[int, Sidecar]:
        """Add the parts in their order; their sidecars by trace id in the Session."""
        sidecars: dict[int, Sidecar] = {}
        shifts: dict[str, list[int]] = {name: [] for name in _IDENTITIES}
        names: list[tuple[int, int, int]] = []
        new_names: list[tuple[int, str, str]] = []
        for number, part in enumerate(parts):
            sidecars |= {self._next["traces"] + one: sidecar for one, sidecar in part.sidecars.items()}
            for own_id, key in enumerate(part.names):
                if key not in self._names:
                    self._names[key] = len(self._names)
                    new_names.append((self._names[key], *key))
                names.append((number, own_id, self._names[key]))
            for name, shift in shifts.items():
                shift.append(self._next[name])
                self._next[name] += part.next_ids[name]
        connection = self._session.connection
        if new_names:
            ids, kinds, texts = zip(*new_names, strict=True)
            connection.execute(
                f"INSERT INTO {_NAMES} (name_id, kind, name) SELECT unnest(?), unnest(?), unnest(?)",
                [list(ids), list(kinds), list(texts)],
            )
        shift_columns = {name: np.array(shift, dtype=np.int64) for name, shift in shifts.items()}
        connection.register("part_shifts", {"part": np.arange(len(parts)), **shift_columns})
        of_part, own, shared = np.array(names or [(-1, -1, -1)], dtype=np.int64).T
        connection.register("part_names", {"part": of_part, "own": own, "shared": shared})
        with tempfile.TemporaryDirectory(dir=self._session.temporary_directory) as folder:
            for table in TABLES:
                if table.name != _NAMES:
                    self._insert(table, parts, Path(folder))
        connection.unregister("part_shifts")
        connection.unregister("part_names")
        return sidecars

    def _insert(self, table: Table, parts: Sequence[Part], folder: Path) -> None:
        paths = []
        for number, part in enumerate(parts):
            if table.name in part.tables:
                paths.append(folder / f"{table.name}.{number}.parquet")
                paths[-1].write_bytes(part.tables[table.name])
        if not paths:
            return
        columns, join = [], ""
        for column in table.columns:
            name = f'r."{column.name}"'
            target = (column.joins or f"{table.name}.{column.name}").split(".")
            identity = _IDENTITIES.get(target[0])
            if identity is None or identity.column != target[1]:
                columns.append(name)
            elif target[0] == _NAMES:
                join = "JOIN part_names n ON n.part = s.part AND n.own = r.name_id"
                columns.append("n.shared")
            else:
                columns.append(f"{name} + s.{target[0]}")
        files = ", ".join(f"'{path}'" for path in paths)
        self._session.connection.execute(
            f"INSERT INTO {table.name} SELECT {', '.join(columns)} "
            f"FROM read_parquet([{files}], filename = true) r "
            "JOIN part_shifts s ON s.part = "
            f"regexp_extract(r.filename, '(\\d+)\\.parquet$', 1)::BIGINT {join}"
        )
        for path in paths:
            path.unlink()
