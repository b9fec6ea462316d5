"""Nsight Systems: its reports exported; what an export holds is for `ingest.nsys` to read.

Source: Nsight Systems user guide, "CLI Export Command Switch Options".
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from opscope.errors import CaptureError
from opscope.hardware.driver import find_cuda_tool
from opscope.model.files import scratch_prefix
from opscope.toolchain.programs import run_program

_REPORT_SUFFIXES = (".nsys-rep", ".qdrep")
_EXPORT_LIMIT_S = 3600.0


def export_report(report: Path, output: Path, *, executable: str) -> Path:
    """Export a report to a SQLite database, over an existing one; the path of it."""
    options = ("--type=sqlite", "--force-overwrite=true", f"--output={output}")
    end = run_program([executable, "export", *options, str(report)], timeout_s=_EXPORT_LIMIT_S)
    if not end.succeeded or not output.exists():
        words = (end.failure or end.err or end.out).strip().splitlines()
        raise CaptureError(
            f"nsys could not export the report ({words[-1] if words else f'exit code {end.exit_code}'})",
            source=report,
            hint="A report of a newer nsys needs that nsys to export it",
        )
    return output


@contextmanager
def readable_source(source: str) -> Iterator[str]:
    """A source as it is; of a report its export: the one beside it, else one made for the block by nsys.

    A report without either stays as it is: reading it explains what to do.
    """
    report = Path(source)
    if not source.lower().endswith(_REPORT_SUFFIXES) or not report.is_file():
        yield source
        return
    beside = report.with_suffix(".sqlite")
    executable = find_cuda_tool("nsys")
    if beside.exists() and beside.stat().st_mtime_ns >= report.stat().st_mtime_ns:
        yield str(beside)
    elif executable is None:
        yield source
    else:
        with tempfile.TemporaryDirectory(prefix=scratch_prefix()) as folder:
            yield str(export_report(report, Path(folder) / beside.name, executable=executable))
