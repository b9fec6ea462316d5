"""The public functions to load, print and save results and recordings.

Imports nothing heavy at its top. Only `print_report` prints.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from opscope.errors import InputError
from opscope.model import notebook
from opscope.model.finding import Finding
from opscope.model.session import Session, is_session_file

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from opscope.analysis.counters import CounterAnalysis
    from opscope.analysis.explanation import Explanation
    from opscope.analysis.summary import Summary
    from opscope.analysis.timeline.values import Timeline
    from opscope.model.benchmark import BenchmarkResult
    from opscope.model.comparison import BenchmarkComparison, SessionComparison
    from opscope.model.trial import TrialResult
    from opscope.report.document import Document
    from opscope.toolchain.doctor.checks import Diagnosis

    Reportable = (
        Session
        | Summary
        | BenchmarkResult
        | BenchmarkComparison
        | SessionComparison
        | Explanation
        | CounterAnalysis
        | TrialResult
        | Diagnosis
    )

Source = str | os.PathLike[str]


class LoadOptions(TypedDict, total=False):
    """How several files are read: by default by this process, one after the other.

    Attributes:
        workers: Local processes that read them; 0 means one per core if there are more than eight files. As
            with any process pool, scripts must guard their main part with `if __name__ == "__main__":`.
        dask: Address of a Dask scheduler (`tcp://host:8786`), whose workers read them.
        note: Called with a message when this process does what a worker could not.
        on_done: Called with the number of files read so far.
    """

    workers: int | None
    dask: str | None
    note: Callable[[str], object]
    on_done: Callable[[int], object]


def load(
    source: Source | Sequence[Source],
    *,
    memory_limit: str | None = None,
    threads: int | None = None,
    merge: bool = False,
    captures: Source | Sequence[Source] = (),
    **options: Unpack[LoadOptions],
) -> Session:
    """Load a saved `.opscope` file, or one or several traces, as a Session.

    Args:
        source: A trace (`.json`), an export of Nsight Systems (`.sqlite`), a folder of rank
            files, a name pattern, an fsspec address (`s3://`, `gs://`, `https://`, `memory://`), a saved
            Session, or several traces that belong together. A report of Nsight Systems (`.nsys-rep`) is
            exported first, if nsys is installed.
        memory_limit: Memory limit of the process, e.g. `"1GB"`; the tables are then in a temporary file.
        threads: Worker threads; all cores if None.
        merge: Also read traces of different jobs together.
        captures: Traces that contain the captures of the CUDA graphs replayed here, as serving engines write
            them. opscope's own recordings include captures.
        **options: How several files are read, see `LoadOptions`.

    Raises:
        InputError: The source cannot be read (the message names the file and byte offset), the traces are of
            different jobs, or captures are given for a saved Session.
        CaptureError: nsys could not export a report.
        DependencyError: The address needs a package that is not installed; the message has the install line.
    """
    sources = [os.fspath(one) for one in several(source)]
    if len(sources) == 1 and is_session_file(sources[0]):
        if captures:
            raise InputError(
                "a saved Session has matched its CUDA graphs already",
                source=sources[0],
                hint="Read the trace itself with its capture",
            )
        return Session.open(sources[0])
    from opscope.ingest.reader import load as load_traces  # noqa: PLC0415 - sessions open without numpy
    from opscope.provenance.kernel_names.cxx_name import demangle  # noqa: PLC0415
    from opscope.toolchain.nsys import readable_source  # noqa: PLC0415

    with ExitStack() as opened:
        readable = [opened.enter_context(readable_source(one)) for one in sources]
        session = load_traces(
            readable,
            memory_limit=memory_limit,
            threads=threads,
            merge=merge,
            captures=[os.fspath(one) for one in several(captures)],
            demangle=demangle,
            examine=_timelines,
            **options,
        )
        for given, read in zip(sources, readable, strict=True):
            if given != read:
                session.execute("UPDATE traces SET source = ? WHERE source = ?", [given, read])
        return session


def _timelines(session: Session) -> Mapping[int, Timeline]:
    """What processes that read files, which are handed this by its name, work out of each trace."""
    from opscope.analysis.timeline.measure import measure_each  # noqa: PLC0415 - analyses import much

    return measure_each(session)


def several(sources: Source | Sequence[Source]) -> Sequence[Source]:
    """One source or several, as several."""
    return [sources] if isinstance(sources, str | os.PathLike) else sources


def open_session(path: Source) -> Session:
    """Open a saved Session, read-only.

    Raises:
        InputError: No such file, not a Session, or written by a newer opscope.
    """
    return Session.open(path)


def summarize(session: Session, *, ceilings: Source | None = None, by: str | None = None) -> Summary:
    """Everything reports say about a Session: totals, limits, waiting, and what to change.

    Args:
        session: The Session.
        ceilings: File of `opscope devices --measure --save`. By default limits measured on this machine for
            the same kind of GPU, else its datasheet.
        by: `range:REGEX` groups device time by annotations: by what REGEX finds in their names, or by its
            first group. By default by the steps of a serving engine.

    Returns:
        The Summary, complete. It keeps the Session, for the pictures of a notebook, until that is closed.

    Raises:
        InputError: The file is invalid or for another GPU, or the expression is invalid.
    """
    summary = advised(session, ceilings=ceilings, by=by).complete()
    summary.recorded = session
    return summary


def advised(session: Session, *, ceilings: Source | None = None, by: str | None = None) -> Summary:
    """What `summarize` gives, with sections that are computed when asked for, while the Session is open."""
    from opscope.advice import assess  # noqa: PLC0415 - needed only here
    from opscope.hardware.limits import LIMITS_FOLDER  # noqa: PLC0415
    from opscope.provenance.packaged import cache_folder  # noqa: PLC0415

    file = None if ceilings is None else Path(ceilings)
    return assess(session, measured_dir=cache_folder() / LIMITS_FOLDER, ceilings_file=file, by=by)


def print_report(
    subject: Reportable | Sequence[Reportable], *, top: int | None = 10, file: Any = None
) -> None:
    """Print a Session or result as the command line does.

    Args:
        subject: A Session, or what a verb returned; a list, as `bench` returns for a sweep, is printed one
            after the other.
        top: Operators and kernels to list; all if None. Benchmarks list every implementation.
        file: Output file; standard output if None.

    Raises:
        InputError: There is no report for this type.
    """
    from rich.console import Console  # noqa: PLC0415 - needed only to print

    from opscope.report.terminal import render_terminal  # noqa: PLC0415

    console = Console(file=file)
    for one in subject if isinstance(subject, list | tuple) else (subject,):
        console.print(render_terminal(_document(one, top)), crop=False)


# By a value's class: module and function of its report, and whether that takes `top`.
_REPORTS = {
    "Summary": ("analysis", "recording_document", True),
    "BenchmarkResult": ("benchmark", "benchmark_document", False),
    "BenchmarkComparison": ("comparison", "comparison_document", True),
    "SessionComparison": ("comparison", "comparison_document", True),
    "Explanation": ("explanation", "explanation_document", False),
    "CounterAnalysis": ("ncu", "ncu_document", True),
    "TrialResult": ("trial", "trial_document", False),
    "Diagnosis": ("machine", "doctor_document", False),
}


def _document(subject: object, top: int | None) -> Document:
    from opscope.report.document import Document, FindingList  # noqa: PLC0415 - needed only to print

    if isinstance(subject, Finding):
        return Document(subject.code, (FindingList((subject,)),))
    shown = summarize(subject) if isinstance(subject, Session) else subject
    if type(shown).__name__ not in _REPORTS:
        raise InputError(
            f"there is no report on a {type(shown).__name__}",
            hint="Pass a Session or what a verb returned: analyze, explain, bench, compare, ncu, doctor, …",
        )
    module, function, takes_top = _REPORTS[type(shown).__name__]
    composed = getattr(import_module(f"opscope.report.{module}"), function)
    document: Document = composed(shown, top=top) if takes_top else composed(shown)
    return document


def _text_report(subject: Reportable | Finding) -> str:
    from rich.console import Console  # noqa: PLC0415 - needed only to show

    from opscope.report.terminal import render_terminal  # noqa: PLC0415

    # In a notebook rich would show what is printed, whatever the file, and in color.
    printed = io.StringIO()
    console = Console(file=printed, width=100, force_jupyter=False, color_system=None)
    console.print(render_terminal(_document(subject, 10)))
    return printed.getvalue().rstrip()


def _page_report(subject: Any) -> str:
    from html import escape  # noqa: PLC0415 - needed only to show

    from opscope.report.html import page  # noqa: PLC0415

    summary = summarize(subject) if isinstance(subject, Session) else subject
    recorded = getattr(summary, "recorded", None)
    if recorded is not None and recorded.is_open:
        text = page.session_page(recorded, summary)
    else:
        text = page.render_page(_document(summary, 10))
    style = "width:100%;height:600px;border:0;resize:vertical"
    return f'<iframe srcdoc="{escape(text)}" style="{style}" title="opscope"></iframe>'


def save_result(result: BenchmarkResult, path: Source, *, overwrite: bool = False) -> Path:
    """Write a benchmark result as JSON, as `opscope bench --save` does, and return its path.

    Raises:
        InputError: The file exists and `overwrite` is false, or cannot be written.
    """
    from opscope.benchmarking.benchmark_sweep import save_benchmark  # noqa: PLC0415 - needed only to save

    return save_benchmark(path, result, force=overwrite)


def load_result(path: Source) -> BenchmarkResult:
    """Load a benchmark result that `save_result` or `opscope bench --save` wrote.

    Raises:
        InputError: The file is missing, holds no result, comes from a newer opscope, or holds a sweep.
    """
    from opscope.benchmarking.benchmark_sweep import load_results  # noqa: PLC0415 - needed only to load

    results = load_results(path)
    if len(results) != 1:
        raise InputError(
            f"the file holds {len(results)} results of a sweep",
            source=path,
            hint="Show it with opscope bench FILE",
        )
    return results[0]


notebook.page, notebook.text = _page_report, _text_report
