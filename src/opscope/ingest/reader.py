"""`load`: any source → one Session.

What a file is, its first bytes say: a database is an export of Nsight Systems, everything else a Kineto
trace. Either arrives wholly in the tables or not at all; the first error ends the load.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from opscope.errors import InputError
from opscope.ingest import quality
from opscope.ingest.captured import Demangle
from opscope.ingest.kineto_file import CaptureTraces, keep_sidecars
from opscope.ingest.parallel import (
    Examine,
    Noted,
    ReadOptions,
    Workers,
    dask_cluster,
    engine_errors,
    local_processes,
    read_file,
    read_parts,
)
from opscope.ingest.source import find_traces
from opscope.model.session import Session
from opscope.model.sidecar import Sidecar

# Tables in memory take about twice the text's size. Above this share of the machine's memory they go to a
# file.
_MEMORY_PER_TEXT = 2
_MOST_OF_MEMORY = 0.25
# Traces shrink ten- to twentyfold; the size of compressed ones is known only when they are read.
_COMPRESSION = 20
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
    """A Session of one or several traces.

    Args:
        sources: Files, folders of rank files, fsspec addresses.
        memory_limit: What the process should stay under, e.g. `"1GB"`; the Session then lives in a temporary
            file.
        threads: Worker threads; all cores if None.
        merge: Read traces together that are not of one job.
        demangle: Makes the text that a Kineto trace shows of a mangled name, where a recorder keeps those;
            without it the recorder's own text is used.
        captures: Traces in which CUDA graphs were captured that these may replay.
        examine: What processes that read files work out of each rank too, kept in `session.examined`.
        workers: Processes that read several files; this one alone if None; one for each core where there are
            more than eight files if 0.
        dask: Address of the scheduler of a Dask cluster, whose workers read the files instead.
        note: Told what a worker could not do.
        on_done: Told how many files have been read.

    Raises:
        InputError: A source cannot be read; names the file and byte offset. Or several are not of one job.
        DependencyError: An address needs a package that is not installed.
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
        session.add_findings(quality.rank_findings(session))
        session.plan_for(session.scalar("SELECT sum(size_bytes) FROM traces"))
        session.make_room()
    except BaseException:
        session.close()
        raise
    return session


@contextmanager
def _processes(
    files: int, workers: int | None, dask: str | None, folder: Path, note: Noted
) -> Iterator[Workers | None]:
    """Processes to read files in; None where this one does."""
    count = workers or 1
    if workers == 0 and files > _FEW_FILES:
        count = len(os.sched_getaffinity(0))
    if dask is not None:
        with dask_cluster(dask, note) as cluster:
            yield cluster
    elif min(count, files) > 1:
        with local_processes(min(count, files), folder) as processes:
            yield processes
    else:
        yield None


def _require_one_job(session: Session, sidecars: dict[int, Sidecar]) -> None:
    workloads = {trace_id: sidecar.workload for trace_id, sidecar in sidecars.items()}
    reason = quality.unrelated(session, workloads)
    if reason is not None:
        raise InputError(
            f"these are not recordings of one job: {reason}",
            hint="Give one of them, or average them all with --merge (merge=True in Python)",
        )
