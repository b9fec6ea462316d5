"""`opscope analyze`: report where the device time of recorded traces goes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from opscope.cli import console
from opscope.errors import InputError
from opscope.ingest.memory_snapshot import is_memory_snapshot, read_memory_snapshot
from opscope.ingest.source import OtherRecorderError
from opscope.model.files import write_text
from opscope.provenance.kernel_names.cxx_name import demangle
from opscope.report.analysis import recording_document
from opscope.report.document import numbered
from opscope.report.json_encoding import versions
from opscope.results import advised


def analyze(
    traces: Annotated[list[str], Parameter(name="TRACE")],
    /,
    *,
    open: bool = False,  # noqa: A002 - the option's name
    save: Path | None = None,
    export_trace: Path | None = None,
    stacks: Path | None = None,
    report: console.Showing = console.SHOWING,
    top: console.Top = 10,
    ceilings: Path | None = None,
    merge: bool = False,
    by: str | None = None,
    capture: Annotated[console.Words, console.Several] = (),
    memory_limit: str | None = None,
    workers: str = "0",
) -> int:
    """Report where the device time of recorded traces goes.

    Example: opscope analyze trace.json.gz --section change kernels

    Args:
        traces: Kineto traces (.json, .json.gz, .json.zst), folders of rank files, name patterns
            ('run/rank*.json'), addresses (s3://, gs://, https://), or one saved session. Several are read
            as the ranks of one job. Or a PyTorch memory snapshot: shows what holds the peak.
        open: Open the page that --output FILE.html writes in a browser.
        save: Also write the session to this .opscope file.
        export_trace: Also write the trace to this file with extra tracks for Perfetto (ui.perfetto.dev): idle
            causes, the operator of each kernel, the critical path. For a single trace.
        stacks: Also write stacks from Python, or the operators, down to the kernels: FILE.json for
            speedscope.app, any other name collapsed (outer;…;inner NANOSECONDS). They sum to all device time.
        ceilings: Hardware limits saved by opscope devices --measure --save. By default those measured on
            this machine for the same GPU, else the datasheet's.
        merge: Also average traces of different jobs.
        by: Group device time by annotations: range:REGEX groups by what REGEX finds in their names.
        capture: Traces that contain the captures of the CUDA graphs replayed here, as serving engines write
            them.
        memory_limit: Memory limit of the database engine while reading, e.g. 1GB; more spills to disk.
        workers: Processes that read the files of many ranks; by default one per core from 9 files on. Or the
            address of a Dask scheduler (tcp://HOST:8786), whose workers read them.
    """
    outputs = [*report.output, save, export_trace, stacks]
    console.check_outputs(outputs, force=report.force, inputs=(*traces, ceilings))
    pages = [one for one in report.output if one.suffix == ".html"]
    if open and not pages:
        raise InputError("--open shows a page, and none is written", hint="Name it: --output report.html")
    if not workers.isdecimal() and "://" not in workers:
        raise InputError(
            f"--workers {workers} is neither a number nor an address", hint="Such as tcp://HOST:8786"
        )
    if len(traces) == 1 and is_memory_snapshot(Path(traces[0])):
        return _analyze_memory(Path(traces[0]), report, top)
    try:
        opened = console.open_source(
            traces,
            memory_limit=memory_limit,
            merge=merge,
            captures=capture,
            workers=int(workers) if workers.isdecimal() else None,
            dask=None if workers.isdecimal() else workers,
        )
    except OtherRecorderError as error:
        if len(traces) > 1 or error.source != traces[0]:
            raise
        return _show_totals(traces[0], error.message, report, top)
    with opened as session:
        # Queries on less text than 4 MB take longer to optimize than to run, and here nobody asks his own.
        few = f"SELECT if(sum(size_bytes) < {4 << 20}, 'disable', 'enable') FROM traces"
        session.defer("traces", lambda of: of.execute(f"PRAGMA {of.scalar(few)}_optimizer"))
        with console.status("Summarizing"):
            summary = advised(session, ceilings=ceilings, by=by)
        rows = None if top == "all" else top

        def document() -> Any:
            from opscope.report.summary_json import analysis_json  # noqa: PLC0415 - not for a screen

            return analysis_json(summary, top=rows)

        replace(report, output=()).show(
            document,
            lambda: recording_document(
                summary, top=report.rows(top), is_full=report.full, is_screen=report.is_screen
            ),
        )
        console.write_reports(
            report.output,
            document,
            lambda: numbered(recording_document(summary, top=rows, is_full=True)),
            lambda path: console.write_recording_page(path, session, summary, top=rows),
        )
        written = [*report.output, *([] if save is None else [session.save(save, overwrite=report.force)])]
        if export_trace is not None:
            from opscope.report.exports import export_trace as write_trace  # noqa: PLC0415 - seldom asked

            written.append(write_trace(session, export_trace))
        if stacks is not None:
            from opscope.api import flamegraph  # noqa: PLC0415 - seldom asked, and imports the recorder

            is_json = stacks.suffix == ".json"
            text = flamegraph(
                session, format="speedscope" if is_json else "collapsed", name=", ".join(traces)
            )
            written.append(write_text(stacks, text))
        console.say_wrote(written, on_stderr=report.json)
    if open:
        import webbrowser  # noqa: PLC0415 - seldom asked

        webbrowser.open(pages[0].resolve().as_uri())
    return 0


def _show_totals(source: str, recorder: str, report: console.Showing, top: console.Top) -> int:
    from opscope.ingest.recorder_totals import read_totals  # noqa: PLC0415 - seldom asked
    from opscope.report.tables import totals_document  # noqa: PLC0415 - seldom asked

    totals = read_totals(source, demangle)
    report.show(
        lambda: {**versions(1), "recorder": recorder, **totals},
        lambda: totals_document(totals, recorder, title=source, top=report.rows(top)),
    )
    return 0


def _analyze_memory(path: Path, report: console.Showing, top: console.Top) -> int:
    from opscope.report.html.charts import snapshot_charts  # noqa: PLC0415 - seldom asked
    from opscope.report.memory import memory_document, memory_json  # noqa: PLC0415 - seldom asked

    devices, rows = read_memory_snapshot(path), report.rows(top)
    report.show(
        lambda: memory_json(devices, top=rows),
        lambda: memory_document(devices, top=rows),
        charts=lambda: tuple(snapshot_charts(devices)),
    )
    return 0
