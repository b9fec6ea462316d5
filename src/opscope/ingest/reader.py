"""`load`: any source → one Session.

What a file is, its first bytes say: a database is an export of Nsight Systems, everything else a Kineto
trace. Either arrives wholly in the tables or not at all; the first error ends the load.

Many ranks are read in processes of their own. Each reads a file, or some small ones, into tables of its own
and answers with them as Parquet: files in a folder that it shares with this one, or their bytes from another
machine. Here ids are shifted by what the files before them hold, in the order of the files, so that every row
is as if one process had read all. What an analysis wants to know of a rank alone, the process that read it
works out too. What a worker cannot do is done here.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from opscope._version import __version__
from opscope.errors import DependencyError, InputError
from opscope.ingest import quality
from opscope.ingest.kineto_file import CaptureTraces, keep_sidecars, read_kineto
from opscope.ingest.replays import Demangle
from opscope.ingest.source import TraceFile, find_traces, is_export, local_text
from opscope.model.files import scratch_prefix
from opscope.model.schema import TABLES, Table
from opscope.model.session import Session, duckdb, first_line, registered
from opscope.model.sidecar import Sidecar
from opscope.signals import raise_if_interrupted

Noted = Callable[[str], object]


# What is worked out of each trace of a Session where it is read, by trace id. Its `moved(ids)` is the same in
# the Session of all, where ids are larger by this, by table.
Examine = Callable[[Session], Mapping[int, Any]]

# Parquet that is put together by one statement for each table: one that adds few rows takes as long as one
# that adds ten times as many.
_BATCH_BYTES = 32 << 20
# Parts that are read ahead of the one that is next, beside two for each worker.
_AHEAD = 16
# Small files are read together, as long as each worker has several turns.
_MOST_TOGETHER, _MOST_BYTES_TOGETHER, _TURNS = 8, 4 << 20, 4
_TRIES = 3
_NAMES = "kernel_names"


class ReadOptions(NamedTuple):
    demangle: Demangle | None = None  # As of `load`
    examine: Examine | None = None  # Worked out of each file where it is read
    # Traces in which CUDA graphs were captured that these may replay
    captures: CaptureTraces = CaptureTraces(())
    folder: str | None = None  # Where to leave Parquet; None to answer with it


class Part(msgspec.Struct):
    """What one file holds, or some that were read together."""

    files: int  # How many
    tables: dict[str, bytes | Path]  # Parquet of each table that has rows, or the file that it is in
    size_bytes: int  # Of all that Parquet
    next_ids: dict[str, int]  # The first id that is free, by table
    sidecars: dict[int, Sidecar]  # By trace id in this part
    examined: Mapping[int, Any] = {}  # What was worked out, by trace id in this part
    version: str = __version__  # Of the opscope that read it


class Workers(NamedTuple):
    make: Callable[[], Executor]  # Gives an executor of them; asked again when one broke
    number: int = 1  # How many there are
    # A folder that they share with this process; None where they may be on other machines
    folder: str | None = None


_ALONE = ReadOptions()
# The column of ids of each table that has one.
_IDENTITIES = {
    table.name: table.columns[0].name for table in TABLES if table.columns[0].doc.startswith("Identity")
}


def read_file(session: Session, trace: TraceFile, how: ReadOptions) -> dict[int, Sidecar]:
    """Read one file, which holds one trace or several; sidecars by trace id."""
    trace_id = int(session.scalar("SELECT count(*) FROM traces")) if session.has_rows else 0
    with local_text(trace, session.temporary_directory) as local:
        if is_export(trace, local):
            from opscope.ingest.nsys_reading import read_export  # noqa: PLC0415 - needed only for exports

            read_export(session, trace_id, trace, local, how.demangle)
            return {}
        sidecar = read_kineto(session, trace_id, trace, local, captures=how.captures, demangle=how.demangle)
    return {} if sidecar is None else {trace_id: sidecar}


@contextmanager
def engine_errors(name: str, memory_limit: str | None) -> Iterator[None]:
    """Turn what the database engine refuses into an error a user can act on."""
    try:
        yield
    except duckdb.Error as error:
        raise_if_interrupted(error)
        reason, hint = first_line(error), None
        if "Out of Memory" in reason:  # The window reader wraps the exception's own class away.
            reason, hint = "out of memory", "Set a memory limit, so that the disk is used"
            if memory_limit is not None:
                reason = f"the memory limit of {memory_limit} is too low"
                hint = "Raise it: 400MB suffices for a trace of 180 MB, 1GB for one of 1 GB"
        raise InputError(f"cannot be loaded: {reason}", source=name, hint=hint) from error


def read_part(traces: Sequence[TraceFile], how: ReadOptions = _ALONE) -> Part:
    """Some files as tables of their own; what a process of an executor does."""
    sidecars: dict[int, Sidecar] = {}
    with Session(threads=1) as session, tempfile.TemporaryDirectory(prefix=scratch_prefix()) as scratch:
        for trace in traces:
            with engine_errors(trace.name, None):
                sidecars |= read_file(session, trace, how)
        folder = scratch if how.folder is None else tempfile.mkdtemp(dir=how.folder)
        tables: dict[str, bytes | Path] = {}
        size_bytes = 0
        for table in TABLES:
            if table.name == "metadata" or not session.scalar(f"SELECT count(*) FROM {table.name}"):
                continue
            path = Path(folder) / f"{table.name}.parquet"
            session.execute(f"COPY {table.name} TO '{path}' (FORMAT parquet, COMPRESSION lz4)")
            tables[table.name] = path.read_bytes() if how.folder is None else path
            size_bytes += path.stat().st_size
        next_ids = {
            name: int(session.scalar(f"SELECT coalesce(max({column}) + 1, 0) FROM {name}"))
            for name, column in _IDENTITIES.items()
        }
        keep_sidecars(session, sidecars)
        examined = {} if how.examine is None else how.examine(session)
        return Part(len(traces), tables, size_bytes, next_ids, sidecars, examined)


@contextmanager
def local_processes(workers: int, folder: Path | None = None) -> Iterator[Workers]:
    """Processes of this machine; a new set of them after one was killed. None outlives the block.

    They may leave files in a folder; in the one for temporary ones if None.
    """
    from concurrent.futures import ProcessPoolExecutor  # noqa: PLC0415 - most traces are read in one process

    made: list[Executor] = []
    others = set(multiprocessing.active_children())
    with tempfile.TemporaryDirectory(prefix=scratch_prefix(), dir=folder) as shared:

        def make() -> Executor:
            spawn = multiprocessing.get_context("spawn")
            made.append(ProcessPoolExecutor(workers, spawn, _serve_parent, (shared,)))
            return made[-1]

        _start_resource_tracker()
        try:
            yield Workers(make, workers, shared)
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
def dask_cluster(address: str, note: Noted = lambda text: None) -> Iterator[Workers]:
    """Workers of a Dask cluster, by the address of its scheduler. Lost ones are made up for by others.

    Those without opscope, or with another version, are told, and get nothing to do while others are there.
    """
    try:
        import distributed  # noqa: PLC0415 - optional
    except ImportError as error:
        raise DependencyError(
            "dask.distributed is not installed", hint="pip install 'opscope[dask]'"
        ) from error
    try:
        connect: Any = distributed.Client
        with warnings.catch_warnings():
            # Of packages that a worker may lack; what counts of its versions is told below.
            warnings.simplefilter("ignore", distributed.versions.VersionMismatchWarning)
            client = connect(address, timeout="10s", set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError(
            f"no Dask scheduler answers ({error})", source=address, hint="Start one with: dask scheduler"
        ) from error
    try:
        fit, unfit = _fit_workers(client)
        for reason, names in unfit.items():
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            noun = "workers" if len(names) > 1 else "worker"
            note(f"no files are read by {noun} {', '.join(names[:_NAMED])}{more}: {reason}")
        if unfit and not fit:
            note("the cluster has no worker that can read: files are read here")
        elif not fit:
            note("the cluster has no workers yet: files wait for them (dask worker ADDRESS)")
        chosen = {"workers": fit, "allow_other_workers": True} if unfit and fit else {}
        yield Workers(lambda: _ByValue(client.get_executor(retries=_TRIES, pure=False, **chosen)), len(fit))
    finally:
        client.close()


class _ByValue(Executor):
    """Packs calls, so that only the worker that runs one must have what it names: schedulers unpack them."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        # A lambda is sent as its code, a function as its name.
        return self._executor.submit(
            lambda packed: __import__("pickle").loads(packed)(), pickle.dumps(partial(fn, *args, **kwargs))
        )


_NAMED = 4


def _fit_workers(client: Any) -> tuple[list[str], dict[str, list[str]]]:
    """Addresses of the workers with this opscope; of the others, by what is wrong."""
    # Sent by value: a worker without opscope could not look it up by its name.
    found = client.run(
        lambda: __import__("importlib").import_module("opscope._version").__version__, on_error="return"
    )
    unfit: dict[str, list[str]] = {}
    for address, version in found.items():
        if version != __version__:
            other = f"opscope {version} is there, {__version__} here"
            unfit.setdefault(other if isinstance(version, str) else str(version), []).append(address)
    return [address for address, version in found.items() if version == __version__], unfit


def read_parts(
    session: Session,
    traces: Sequence[TraceFile],
    workers: Workers,
    how: ReadOptions = _ALONE,
    *,
    note: Noted = lambda text: None,
    on_done: Callable[[int], object] = lambda count: None,
) -> dict[int, Sidecar]:
    """Read files, in order, into the tables of an empty Session; sidecars by trace id.

    What was worked out of each trace is in `session.examined`. `note` is told what a worker could not do,
    which was done here instead, `on_done` how many files have been read.
    """
    sidecars: dict[int, Sidecar] = {}
    next_id = dict.fromkeys(_IDENTITIES, 0)
    batch: list[Part] = []
    done = 0
    for part in _parts(_together(traces, workers.number), workers, how, note):
        batch.append(part)
        for _ in range(part.files):
            done += 1
            on_done(done)
        if sum(one.size_bytes for one in batch) >= _BATCH_BYTES or done == len(traces):
            sidecars |= _merge(session, batch, next_id)
            batch = []
    return sidecars


def _together(traces: Sequence[TraceFile], workers: int) -> list[list[TraceFile]]:
    most = min(_MOST_TOGETHER, len(traces) // (_TURNS * max(1, workers)))
    groups: list[list[TraceFile]] = []
    whole_bytes = 0
    for trace in traces:
        size_bytes = _MOST_BYTES_TOGETHER if trace.path is None else trace.path.stat().st_size
        whole_bytes += size_bytes
        if not groups or len(groups[-1]) >= most or whole_bytes > _MOST_BYTES_TOGETHER:
            groups.append([])
            whole_bytes = size_bytes
        groups[-1].append(trace)
    return groups


def _parts(
    groups: Sequence[Sequence[TraceFile]], workers: Workers, how: ReadOptions, note: Noted
) -> Iterator[Part]:
    """The parts in the order of the files; some more than there are workers wait for an earlier one.

    Where processes of this machine were killed, others try again. What a worker cannot read is read here.
    """
    how = how._replace(folder=workers.folder)
    executor = workers.make()
    running: dict[int, Future[Part]] = {}
    said: set[str] = set()
    for place, group in enumerate(groups):
        part, reason, tries = None, "", 0
        while part is None and not reason:
            try:
                for ahead in range(place, min(len(groups), place + _AHEAD + 2 * workers.number)):
                    if ahead not in running:
                        running[ahead] = executor.submit(read_part, groups[ahead], how)
                part = running.pop(place).result()
                reason = "" if part.version == __version__ else f"it has opscope {part.version}"
            except BrokenExecutor as error:
                # One process was killed, and with it the others' answers are lost.
                tries += 1
                if tries == _TRIES:
                    raise InputError(
                        "processes that read it were killed", source=group[0].name, hint="Use fewer --workers"
                    ) from error
                executor, running = workers.make(), {}
            except InputError as error:
                # Of another machine, or of a file system that only this process has.
                reason = str(error)
            except Exception as error:  # noqa: BLE001 - whatever a cluster comes upon, the file may be in order
                reason = f"{type(error).__name__}: {first_line(error)}"
        if reason and reason not in said:
            said.add(reason)
            note(f"a worker cannot read {group[0].name} ({reason}): it is read here")
        yield read_part(group, how) if part is None or reason else part


def _merge(session: Session, parts: Sequence[Part], next_id: dict[str, int]) -> dict[int, Sidecar]:
    """Put parts into a Session in their order, ids moved behind those there; sidecars by trace id."""
    sidecars: dict[int, Sidecar] = {}
    shifts: dict[str, list[int]] = {name: [] for name in _IDENTITIES}
    for part in parts:
        first = next_id["traces"]
        sidecars |= {first + one: sidecar for one, sidecar in part.sidecars.items()}
        session.examined |= {first + one: found.moved(next_id) for one, found in part.examined.items()}
        for name, shift in shifts.items():
            shift.append(next_id[name])
            next_id[name] += part.next_ids[name]
    columns = {name: np.array(shift, dtype=np.int64) for name, shift in shifts.items()}
    with (
        registered(session, part_shifts={"part": np.arange(len(parts)), **columns}),
        tempfile.TemporaryDirectory(dir=session.temporary_directory) as folder,
    ):
        # Names first, for others refer to them by ids that all share.
        for table in sorted(TABLES, key=lambda one: one.name != _NAMES):
            _insert(session, table, parts, Path(folder))
    return sidecars


def _insert(session: Session, table: Table, parts: Sequence[Part], folder: Path) -> None:
    paths = []
    for number, part in enumerate(parts):
        if table.name in part.tables:
            given = part.tables[table.name]
            paths.append(folder / f"{table.name}.{number}.parquet")
            if isinstance(given, Path):
                given.rename(paths[-1])
            else:
                paths[-1].write_bytes(given)
    if not paths:
        return
    rows = _ROWS.format(files=", ".join(f"'{path}'" for path in paths))
    if table.name == _NAMES:
        session.execute(_ADD_NAMES.format(rows=rows))
    else:
        columns, join = [], ""
        for column in table.columns:
            name = f'r."{column.name}"'
            target = (column.joins or f"{table.name}.{column.name}").split(".")
            if _IDENTITIES.get(target[0]) != target[1]:
                columns.append(name)
            elif target[0] == _NAMES:
                join = "JOIN part_names n ON n.part = r.part AND n.own = r.name_id"
                columns.append("n.shared")
            else:
                columns.append(f"{name} + s.{target[0]}")
        session.execute(
            f"INSERT INTO {table.name} SELECT {', '.join(columns)} "
            f"FROM {rows} r JOIN part_shifts s ON s.part = r.part {join}"
        )
    for path in paths:
        path.unlink()


_ROWS = r"""(SELECT *, regexp_extract(filename, '(\d+)\.parquet$', 1)::BIGINT AS part
FROM read_parquet([{files}], filename = true))"""
_ADD_NAMES = f"""
INSERT INTO {_NAMES} (name_id, kind, name)
SELECT (SELECT count(*) FROM {_NAMES}) + row_number() OVER (ORDER BY min((part << 32) + name_id)) - 1,
    kind, name
FROM {{rows}} ANTI JOIN {_NAMES} USING (kind, name) GROUP BY kind, name;
CREATE OR REPLACE TEMP TABLE part_names AS
SELECT part, r.name_id AS own, n.name_id AS shared FROM {{rows}} r JOIN {_NAMES} n USING (kind, name)"""


# Tables in memory take about twice the text's size. Above this share of the machine's memory they go to a
# file.
_MEMORY_PER_TEXT = 2
_MOST_OF_MEMORY = 0.25
# Traces shrink ten- to twentyfold; the size of compressed ones is known only when they are read.
_COMPRESSION = 20
# Where vLLM (#37524) and SGLang (#24370) put traces of captures, beside the trace.
_OF_CAPTURES = ("capture_traces", "graph_capture_profile")
# An export keeps numbers and texts once that a trace's text repeats.
_SIZE_AS_TEXT = {".json": 1, ".sqlite": 5}
# What these take is less than what processes take to start.
_FEW_FILES = 8


def load(
    sources: Sequence[str],
    *,
    memory_limit: str | None = None,
    threads: int | None = None,
    merge: bool = False,
    demangle: Demangle | None = None,
    captures: Sequence[str] = (),
    examine: Examine | None = None,
    workers: int | None = None,
    dask: str | None = None,
    note: Noted = lambda text: None,
    on_done: Callable[[int], object] = lambda count: None,
) -> Session:
    """A Session of one or several traces; arguments and errors are those of `opscope.load`.

    Without `captures` those of the folders beside the traces are read that vLLM and SGLang write them to.
    `demangle` makes the text that a Kineto trace shows of a mangled name, where a recorder keeps those;
    without it the recorder's own text is used. `examine` is what processes that read files work out of each
    rank too, kept in `session.examined`.
    """
    traces = [trace for source in sources for trace in find_traces(source)]
    known_bytes = ((one.path.suffix, one.path.stat().st_size) for one in traces if one.path is not None)
    needed_bytes = sum(_SIZE_AS_TEXT.get(suffix, _COMPRESSION) * size for suffix, size in known_bytes)
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    is_large = _MEMORY_PER_TEXT * needed_bytes > _MOST_OF_MEMORY * memory_bytes
    session = Session(
        memory_limit=memory_limit, threads=threads, is_temporary_file=is_large or memory_limit is not None
    )
    sidecars: dict[int, Sidecar] = {}
    folders = {one.path.parent / name for one in traces if one.path is not None for name in _OF_CAPTURES}
    captures = captures or sorted(str(one) for one in folders if one.is_dir() and any(one.glob("*.json*")))
    known = CaptureTraces(tuple(trace for one in captures for trace in find_traces(one)))
    how = ReadOptions(demangle, examine, known)
    try:
        with _processes(len(traces), workers, dask, session.temporary_directory, note) as processes:
            if processes is not None:
                with engine_errors(traces[0].name, memory_limit):
                    sidecars = read_parts(session, traces, processes, how, note=note, on_done=on_done)
            else:
                for count, trace in enumerate(traces, 1):
                    with engine_errors(trace.name, memory_limit):
                        sidecars |= read_file(session, trace, how)
                    on_done(count)
        if not merge and len({trace.name for trace in traces}) > 1:
            _require_one_job(session, sidecars)
        keep_sidecars(session, sidecars)
        session.defer("findings", lambda session: session.add_findings(quality.rank_findings(session)))
        session.make_room()
    except BaseException:
        session.close()
        raise
    return session


def _processes(
    files: int, workers: int | None, dask: str | None, folder: Path, note: Noted
) -> AbstractContextManager[Workers | None]:
    """Processes to read files in; None where this one does."""
    if dask is not None:
        return dask_cluster(dask, note)
    is_automatic = workers == 0 and files > _FEW_FILES
    count = min(files, len(os.sched_getaffinity(0)) if is_automatic else workers or 1)
    return local_processes(count, folder) if count > 1 else nullcontext()


def _require_one_job(session: Session, sidecars: dict[int, Sidecar]) -> None:
    workloads = {trace_id: sidecar.workload for trace_id, sidecar in sidecars.items()}
    if (reason := quality.unrelated(session, workloads)) is not None:
        raise InputError(
            f"these are not recordings of one job: {reason}",
            hint="Give one of them, or average them all with --merge (merge=True in Python)",
        )
