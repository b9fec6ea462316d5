"""Recording a program with Nsight Systems: `opscope trace --nsys`.

Standard output is the program's own and then the statistics'; with `--json` the program's goes to standard
error, so that standard output is one JSON document.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from opscope import api
from opscope.cli.app import EXIT_INTERRUPTED
from opscope.cli.console import STDERR, check_outputs, open_source, say_wrote, show, status
from opscope.errors import InputError
from opscope.report.tables import stats_json, stats_tables_document
from opscope.toolchain.nsys import check_run, export_report, find_nsys, profile_command, run_nsys


def record_with_nsys(
    program: Sequence[str], report: Path, options: Sequence[str], *, force: bool, json: bool
) -> int:
    """Run a program under nsys, export its report and print the statistics; the program's exit code."""
    if shutil.which(program[0]) is None:
        raise InputError(
            f"there is no program '{program[0]}'", hint="opscope trace --nsys -- python script.py ARGS"
        )
    executable = find_nsys(os.environ.get("PATH"))
    export = report.with_suffix(".sqlite")
    check_outputs([report, export], force=force)
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    command = profile_command(options, program, output=report, executable=executable)
    sys.stdout.flush()
    run = run_nsys(command, stdout=STDERR if json else None)
    if run.was_interrupted and not report.exists():
        raise KeyboardInterrupt
    check_run(run, report)
    with status(f"Exporting {report}"):
        export_report(report, export, executable=executable)
    say_wrote([report, export], on_stderr=json)
    with open_source([str(export)]) as session:
        tables = api.stats(session)
    show(lambda: stats_json(tables), lambda: stats_tables_document(tables), json=json)
    return EXIT_INTERRUPTED if run.was_interrupted else run.exit_code
