"""The commands of nsys that opscope runs.

Source: Nsight Systems user guide, "CLI Profile Command Switch Options" and "CLI Export Command Switch
Options".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Recording", "export_command", "is_report", "profile_command"]

_REPORT_SUFFIXES = (".nsys-rep", ".qdrep")


@dataclass(frozen=True)
class Recording:
    """What nsys records of a program.

    Args:
        trace: APIs, e.g. `cuda`, `nvtx`.
        cuda_graph_trace: `graph`, launches of CUDA graphs as a whole, or `node`, every kernel in them.
        capture_range: `none`, or what starts and stops the recording: `cudaProfilerApi`, `nvtx`.
        delay_s: Seconds before it starts.
        duration_s: Seconds until it stops; the program runs on.
        options: Further options of `nsys profile`, as they are.
    """

    trace: tuple[str, ...] = ("cuda", "nvtx")
    cuda_graph_trace: str | None = None
    capture_range: str = "none"
    delay_s: float | None = None
    duration_s: float | None = None
    options: tuple[str, ...] = ()


def profile_command(
    recording: Recording, program: Sequence[str], *, output: Path, executable: str
) -> list[str]:
    """The command that runs a program and writes the report `output`.

    Sampling of the CPU is off: nothing here reads it, and it needs permissions that containers lack.
    """
    command = [
        executable,
        "profile",
        f"--trace={','.join(recording.trace)}",
        "--sample=none",
        "--cpuctxsw=none",
        "--force-overwrite=true",
        f"--output={output}",
    ]
    if recording.cuda_graph_trace is not None:
        command.append(f"--cuda-graph-trace={recording.cuda_graph_trace}")
    if recording.capture_range != "none":
        # The end of the range would end the program by default.
        command += [f"--capture-range={recording.capture_range}", "--capture-range-end=stop"]
    if recording.delay_s is not None:
        command.append(f"--delay={recording.delay_s:g}")
    if recording.duration_s is not None:
        command += [f"--duration={recording.duration_s:g}", "--kill=none"]
    return [*command, *recording.options, *program]


def export_command(report: Path, *, output: Path, executable: str) -> list[str]:
    """The command that exports a report to a SQLite database, over an existing one."""
    return [
        executable,
        "export",
        "--type=sqlite",
        "--force-overwrite=true",
        f"--output={output}",
        str(report),
    ]


def is_report(path: str) -> bool:
    """Whether a file is called like a report of nsys."""
    return path.lower().endswith(_REPORT_SUFFIXES)
