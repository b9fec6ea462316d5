"""Nsight Systems: its commands written and run, to record a program and to export a report.

The program keeps its standard input and output; nsys speaks on the same terminal. The exit code of
`nsys profile` is the program's own. That a report is there is what tells whether it recorded. What an export
holds is for `ingest.nsys` to read.

Source: Nsight Systems user guide, "CLI Profile Command Switch Options" and "CLI Export Command Switch
Options".
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from opscope.errors import CaptureError, DependencyError
from opscope.model.files import scratch_prefix
from opscope.toolchain.programs import AttachedExit, find_program, run_attached, run_program

_REPORT_SUFFIXES = (".nsys-rep", ".qdrep")


def profile_command(
    options: Sequence[str], program: Sequence[str], *, output: Path, executable: str
) -> list[str]:
    """The command that runs a program and writes the report `output`.

    Sampling of the CPU is off: nothing here reads it, and it needs permissions that containers lack. Options
    of the user's (`--trace=cuda,cublas`) stand in place of ours.
    """
    given = {one.partition("=")[0] for one in options}
    ours = {"--trace": "cuda,nvtx", "--sample": "none", "--cpuctxsw": "none"}
    ours |= {"--force-overwrite": "true", "--output": str(output)}
    # The end of a range, and that of the time, would end the program by default.
    ours |= {"--capture-range-end": "stop"} if "--capture-range" in given else {}
    ours |= {"--kill": "none"} if "--duration" in given else {}
    told = [f"{name}={value}" for name, value in ours.items() if name not in given]
    return [executable, "profile", *told, *options, *program]


# Where installers put it, the newest first.
_PLACES = (
    "/usr/local/cuda/bin/nsys",
    "/opt/nvidia/nsight-systems/*/bin/nsys",
    "/opt/nvidia/nsight-systems-cli/*/bin/nsys",
    "/opt/nvidia/nsight-systems/*/target-linux-*/nsys",
    "/usr/local/cuda-*/bin/nsys",
)
_HINT = (
    "Install it: apt install nsight-systems-cli (NVIDIA's repository), or from "
    "developer.nvidia.com/nsight-systems; the CUDA toolkit brings it too. Without it: `opscope run "
    "script.py` profiles a PyTorch script with operators and shapes, and `opscope trace -- ./program` "
    "records kernels, copies and CUDA calls of any program. Exports made elsewhere (.sqlite) are read on any "
    "machine"
)
_EXPORT_LIMIT_S = 3600.0


def find_nsys(search_path: str | None) -> str:
    """The nsys on a search path, or where installers put it; a DependencyError if there is none."""
    found = find_program("nsys", search_path, _PLACES)
    if found is None:
        raise DependencyError("nsys (Nsight Systems) is not installed or not on PATH", hint=_HINT)
    return found


def run_nsys(command: Sequence[str], *, stdout: int | None = None) -> AttachedExit:
    return run_attached(command, "nsys", command[0], stdout=stdout)


def check_run(run: AttachedExit, report: Path) -> None:
    if not report.exists():
        raise CaptureError(
            f"nsys wrote no report (exit code {run.exit_code})",
            source=report,
            hint="Its own output is above. `nsys status -e` shows what it needs on this machine",
        )


def export_report(report: Path, output: Path, *, executable: str) -> Path:
    """Export a report to a SQLite database, over an existing one; the path of it."""
    command = [executable, "export", "--type=sqlite", "--force-overwrite=true", f"--output={output}"]
    command.append(str(report))
    end = run_program(command, timeout_s=_EXPORT_LIMIT_S)
    if not end.succeeded or not output.exists():
        words = (end.failure or end.err or end.out).strip().splitlines()
        raise CaptureError(
            f"nsys could not export the report ({words[-1] if words else f'exit code {end.exit_code}'})",
            source=report,
            hint="A report of a newer nsys needs that nsys to export it",
        )
    return output


@contextmanager
def readable_source(source: str, search_path: str | None = None) -> Iterator[str]:
    """A source as it is; of a report its export: the one beside it, else one made for the block by nsys.

    A report without either stays as it is: reading it explains what to do.
    """
    report = Path(source)
    if not source.lower().endswith(_REPORT_SUFFIXES) or not report.is_file():
        yield source
        return
    beside, executable = report.with_suffix(".sqlite"), find_program("nsys", search_path, _PLACES)
    if beside.exists() and beside.stat().st_mtime_ns >= report.stat().st_mtime_ns:
        yield str(beside)
        return
    if executable is None:
        yield source
        return
    with tempfile.TemporaryDirectory(prefix=scratch_prefix()) as folder:
        target = Path(folder) / report.with_suffix(".sqlite").name
        yield str(export_report(report, target, executable=executable))
