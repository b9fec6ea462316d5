"""`opscope analyze`: report where the device time of recorded traces goes."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from opscope.cli.console import (
    All,
    Merge,
    Parts,
    Top,
    check_outputs,
    markdown,
    open_source,
    say_wrote,
    show,
    status,
    write_recording_page,
)
from opscope.errors import InputError
from opscope.model.files import write_text
from opscope.report.document import Document
from opscope.report.json_encoding import write_json

_READING = Parts()
_JSON_NAME = "analysis.json"
_REPORT_NAME = "report.md"


def analyze(
    traces: Annotated[list[str], Parameter(name="TRACE")],
    /,
    *,
    json: bool = False,
    output_dir: Path | None = None,
    save: Path | None = None,
    export_trace: Path | None = None,
    html: Path | None = None,
    force: bool = False,
    reading: Parts = _READING,
    top: Top = 10,
    all: All = False,  # noqa: A002 - the option's name
    ceilings: Path | None = None,
    merge: Merge = False,
    by: str | None = None,
    capture: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=())] = (),
    memory_limit: str | None = None,
    threads: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    workers: Annotated[int, Parameter(validator=Number(gte=0))] = 0,
    dask: str | None = None,
    overlap: bool = False,
) -> int:
    """Report where the device time of recorded traces goes.

    Example: opscope analyze trace.json.gz --section change kernels

    Args:
        traces: Kineto traces (.json, .json.gz, .json.zst), folders of rank files, patterns of names
            ('run/rank*.json'), addresses of these (s3://, gs://, https://), or one saved session. Several
            are read as the ranks of one job.
        json: Print one JSON document and nothing else.
        output_dir: Also write analysis.json and report.md there.
        save: Also write the session to this .opscope file.
        export_trace: Also write the trace (one) there with its critical path as a track, for Perfetto.
        html: Also write the report with pictures to this HTML file, which needs no network.
        force: Overwrite existing files.
        reading: How much of the report is printed.
        top: Operators (and kernels) to list.
        all: List every operator and kernel instead.
        ceilings: Limits to hold calls against, of opscope devices --measure --save; else those cached on this
            machine for the same GPU, else the datasheet's.
        merge: Average traces that are not of one job too.
        by: Group device time by annotations, range:REGEX: by what the expression finds in their names.
        capture: Traces in which CUDA graphs that these replay were captured, as serving engines write them.
        memory_limit: Limit of the database engine while reading, e.g. 1GB; more spills to disk.
        threads: Worker threads; all cores by default.
        workers: Processes that read the files of many ranks; one for each core from 9 files on by default.
        dask: Address of the scheduler of a Dask cluster (tcp://HOST:8786), whose workers read the files.
        overlap: Tell only how much of communication runs beside computation, by rank: at once, for nothing
            else is read.
    """
    if overlap:
        return _overlap(**locals())
    from opscope.report import analysis as report  # noqa: PLC0415 - takes longer than the overlap of eight ranks
    from opscope.report.summary_json import analysis_document  # noqa: PLC0415
    from opscope.results import summarize  # noqa: PLC0415

    outputs = [] if output_dir is None else [output_dir / _JSON_NAME, output_dir / _REPORT_NAME]
    check_outputs([*outputs, save, export_trace, html], force=force, inputs=(*traces, ceilings))

    with open_source(
        traces,
        memory_limit=memory_limit,
        threads=threads,
        merge=merge,
        captures=capture,
        workers=workers,
        dask=dask,
    ) as session:
        with status("Summarizing"):
            summary = summarize(session, ceilings=ceilings, by=by)
        shown = None if all else top

        def document() -> Document:
            if reading.full:
                return report.full_document(summary)
            return report.overview_document(summary, top=shown)

        show(lambda: analysis_document(summary, top=shown), document, json=json, reading=reading)
        written = []
        if output_dir is not None:
            text = markdown(report.analysis_report(summary, top=shown))
            written = [
                write_json(output_dir / _JSON_NAME, analysis_document(summary, top=shown)),
                write_text(output_dir / _REPORT_NAME, text),
            ]
        if save is not None:
            written.append(session.save(save, overwrite=force))
        if export_trace is not None:
            from opscope.report.trace_export import export_trace as write_trace  # noqa: PLC0415 - seldom asked

            written.append(write_trace(session, export_trace))
        if html is not None:
            written.append(write_recording_page(html, session, summary, top=shown))
    say_wrote(written, on_stderr=json)
    return 0


def _overlap(*, traces: list[str], json: bool, overlap: bool, reading: Parts, **others: object) -> int:
    from opscope.analysis.overlap import communication_overlap  # noqa: PLC0415 - seldom asked
    from opscope.report.overlap import overlap_document, overlap_report  # noqa: PLC0415

    defaults = {one.name: one.default for one in signature(analyze).parameters.values()} | vars(_READING)
    for name, value in (others | vars(reading)).items():
        if value != defaults[name]:
            raise InputError(
                f"--overlap tells one thing alone: --{name.replace('_', '-')} cannot be given with it",
                hint="Leave one of them out",
            )
    with status("Reading"):
        found = communication_overlap(traces)
    show(lambda: overlap_document(found), lambda: overlap_report(found), json=json)
    return 0
