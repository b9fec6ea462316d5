"""`opscope flamegraph`: write stacks from Python down to the kernels for flame graph viewers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from opscope import api
from opscope.analysis.program.stacks import StackBasis, StackWeight
from opscope.cli.console import Force, check_outputs, open_source, say_wrote, status
from opscope.errors import InputError
from opscope.model.files import write_text


def flamegraph(
    source: Annotated[list[str], Parameter(name="SOURCE")],
    /,
    *,
    weight: StackWeight = StackWeight.DEVICE,
    by: StackBasis | None = None,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    force: Force = False,
) -> int:
    """Write stacks from Python down to the kernels, for speedscope.app or other flame graph viewers.

    The weights sum exactly to all device time. Work without an operator or stack appears under a root in
    square brackets.

    Example: opscope flamegraph trace.json.gz --output stacks.speedscope.json

    Args:
        source: A trace, a folder of rank files, or a saved session. Several are read as the ranks of one job.
        weight: Device time, or host time.
        by: What to stack above the operators: Python frames (needs recorded stacks), modules, or nothing.
            By default Python if it was recorded. With modules the backward pass stands under the forward
            operators it differentiates, else where it ran.
        output: FILE.json for speedscope, any other name for collapsed stacks (outer;…;inner WEIGHT). Without
            it collapsed stacks are printed, for a pipe.
    """
    if output is None and sys.stdout.isatty():
        raise InputError(
            "stacks are for other programs, not for a terminal",
            hint="Name a file (--output stacks.json), or send them into a pipe",
        )
    check_outputs([output], force=force, inputs=source)
    with open_source(source, merge=True) as session, status("Collecting stacks"):
        text = api.flamegraph(
            session,
            weight=weight,
            by=by,
            format="speedscope" if output and output.suffix == ".json" else "collapsed",
            name=", ".join(source),
        )
    if output is None:
        sys.stdout.write(text)
    else:
        say_wrote([write_text(output, text)], on_stderr=False)
    return 0
