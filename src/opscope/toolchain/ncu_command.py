"""Nsight Compute's command: which launches, which counters, of which program; and running it.

A filter matches the demangled name ncu shows, whose spelling differs from a trace's (`<unnamed>` for
`(anonymous namespace)`, `(int)4` for `4`), so it is made of identifiers, which both spell alike. Mangled
names are matched whole. A program that is run keeps its standard input and output; ncu writes to a log file,
whose errors become one CaptureError with the remedy. The exit code of the program is in that log too, for ncu
may end with its own.

Source: Nsight Compute CLI 2025.3, "Profile", "Filter" and "Sampling" options.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from opscope.errors import CaptureError, DependencyError
from opscope.hardware.driver import find_cuda_tool
from opscope.text_enum import TextEnum
from opscope.toolchain.ncu_report import SECTIONS, metrics_to_collect
from opscope.toolchain.programs import run_attached

# Characters with a meaning in ECMAScript expressions, which ncu uses; to escape others is an error there.
_SPECIAL = re.compile(r"[\\^$.|?*+()\[\]{}]")


class NameBase(TextEnum):
    """Which of a kernel's names a filter is held against."""

    FUNCTION = "function"
    DEMANGLED = "demangled"
    MANGLED = "mangled"


class KernelFilter(msgspec.Struct, frozen=True):
    """Launches whose name matches an expression somewhere."""

    pattern: str
    base: NameBase = NameBase.DEMANGLED

    def arguments(self) -> list[str]:
        return ["--kernel-name-base", str(self.base), "--kernel-name", f"regex:{self.pattern}"]

    def covers(self, name: str) -> bool:
        return re.search(self.pattern, name) is not None


class Collection(msgspec.Struct, frozen=True):
    """What ncu records, and of which launches; all where nothing says which."""

    kernels: KernelFilter | None = None
    launch_skip: int = 0  # matching launches to pass over
    launch_count: int | None = None
    sections: tuple[str, ...] = SECTIONS
    metrics: tuple[str, ...] = metrics_to_collect()
    options: tuple[str, ...] = ()  # further ones of ncu, as they are


def filter_of_functions(functions: Iterable[tuple[str, str | None]]) -> KernelFilter:
    """Kernels by function name, each with the functor its template was given or None."""
    words = ((_word(function), *([_word(functor)] if functor else [])) for function, functor in functions)
    return KernelFilter("|".join(dict.fromkeys(map(".*".join, words))))


def filter_of_mangled_names(names: Iterable[str]) -> KernelFilter:
    return KernelFilter(f"^({'|'.join(map(_escape, dict.fromkeys(names)))})$", NameBase.MANGLED)


def ncu_command(
    collection: Collection,
    program: Sequence[str],
    *,
    output: Path,
    executable: str = "ncu",
    log_file: Path | None = None,
) -> list[str]:
    """The command that profiles a program, child processes included, at the clocks it runs at."""
    # Locked clocks need privileges, and their times compare with nothing else.
    options = ["--target-processes", "all", "--clock-control", "none"]
    options += options_of(collection)
    options += ["--export", str(output), "--force-overwrite"]
    if log_file is not None:
        options += ["--log-file", str(log_file)]
    return [executable, *options, *program]


def options_of(collection: Collection) -> list[str]:
    """The options of ncu that say what to record; the user's (`--launch-count=5`) stand in place of ours."""
    given = {one.partition("=")[0] for one in collection.options}
    options = [] if collection.kernels is None else collection.kernels.arguments()
    if collection.launch_skip and "--launch-skip" not in given:
        options += ["--launch-skip", str(collection.launch_skip)]
    if collection.launch_count is not None and "--launch-count" not in given:
        options += ["--launch-count", str(collection.launch_count)]
    for section in collection.sections:
        options += ["--section", section]
    if collection.metrics:
        options += ["--metrics", ",".join(collection.metrics)]
    return [*options, *collection.options]


def _word(name: str) -> str:
    """The name, not as part of a longer one."""
    start = r"\b" if re.match(r"\w", name) else ""
    end = r"\b" if re.search(r"\w$", name) else ""
    return f"{start}{_escape(name)}{end}"


def _escape(text: str) -> str:
    return _SPECIAL.sub(r"\\\g<0>", text)


_WITHOUT = (
    "Without it: `opscope analyze` and `opscope explain` say from a trace what launch data tell, and reports "
    "made elsewhere are read on any machine"
)
_TARGET_CODE = re.compile(r"^==ERROR== The application returned an error code \((\d+)\)", re.MULTILINE)
_ERROR = re.compile(r"^==ERROR== (.*)$", re.MULTILINE)
_AVAILABLE = re.compile(r"^Available Kernels:\n((?:\s*\d+\. .*\n?)+)", re.MULTILINE)
# What ncu says, what it means, what to do.
_PROBLEMS: tuple[tuple[str, str, str], ...] = (
    (
        "ERR_NVGPUCTRPERM",
        "the driver lets only administrators read hardware counters (ERR_NVGPUCTRPERM)",
        "Run it as root; or have the administrator set NVreg_RestrictProfilingToAdminUsers=0 for the kernel "
        "module nvidia (a line `options nvidia NVreg_RestrictProfilingToAdminUsers=0` in /etc/modprobe.d) "
        "and reload it; a container also needs --cap-add SYS_ADMIN. "
        "See developer.nvidia.com/ERR_NVGPUCTRPERM. " + _WITHOUT,
    ),
    (
        "driver resource was unavailable",
        "another tool holds the hardware counters",
        "Monitoring such as DCGM does: `dcgmi profread --pause`, or stop what profiles this GPU. " + _WITHOUT,
    ),
    (
        "LibraryNotLoaded",
        "ncu cannot reach the counters of this driver",
        "Its version may not fit the driver, or the machine (a sandbox, WSL) offers none. " + _WITHOUT,
    ),
    (
        "failed to connect to the CUDA driver",
        "ncu finds no CUDA driver",
        "Run it on a machine with a GPU; a stub libcuda.so on the library path also causes this. " + _WITHOUT,
    ),
)


class NcuRun(msgspec.Struct, frozen=True):
    """How a run ended; the program's exit code is what ncu's log says, else 0."""

    exit_code: int
    target_code: int
    log: str
    was_interrupted: bool = False  # ncu was given time to write what it had


def find_ncu() -> str:
    """The ncu on PATH, or where installers put it; a DependencyError if there is none."""
    if (found := shutil.which("ncu") or find_cuda_tool("ncu")) is not None:
        return found
    raise DependencyError(
        "ncu (Nsight Compute) is not installed or not on PATH",
        hint="It comes with the CUDA toolkit, or alone: apt install nsight-compute, or from "
        f"developer.nvidia.com/nsight-compute. {_WITHOUT}",
    )


def run_ncu(command: Sequence[str], log_file: Path, *, stdout: int | None = None) -> NcuRun:
    """Run a command that `ncu_command` made with this log file to its end."""
    exit_code, was_interrupted = run_attached(command, "ncu", command[0], stdout=stdout)
    log = log_file.read_text(encoding="utf-8", errors="replace") if log_file.exists() else ""
    codes = _TARGET_CODE.findall(log)
    return NcuRun(exit_code, int(codes[-1]) if codes else 0, log, was_interrupted)


def check_run(run: NcuRun, report: Path) -> None:
    """Raise why a run left no report, if it left none."""
    for mark, meaning, hint in _PROBLEMS:
        if mark in run.log:
            raise CaptureError(meaning, hint=hint)
    if "No kernels were profiled" not in run.log and report.exists():
        return
    errors = [text for text in _ERROR.findall(run.log) if not text.startswith("The application returned")]
    if errors:
        raise CaptureError(f"ncu profiled nothing: {' '.join(errors[:3])}")
    if run.target_code:
        raise CaptureError(
            f"the program ended with exit code {run.target_code} before a kernel was profiled",
            hint="Its own output is above",
        )
    if "No kernels were profiled" not in run.log:
        raise CaptureError(f"ncu wrote no report (exit code {run.exit_code})", hint=run.log.strip()[-500:])
    available = _AVAILABLE.search(run.log)
    if available is None:
        raise CaptureError("the program launched no kernels", hint="Does it use the GPU?")
    kernels = [line.split(". ", 1)[-1].strip() for line in available.group(1).strip().splitlines()]
    shown = "; ".join(kernels[:5]) + (f"; and {len(kernels) - 5} more" if len(kernels) > 5 else "")
    raise CaptureError("no launch matched the filter", hint=f"Kernels launched: {shown}. See --kernel")
