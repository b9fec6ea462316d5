"""Command lines of ncu: which launches, which counters, of which program.

A filter matches the demangled name ncu shows, whose spelling differs from a trace's (`<unnamed>` for
`(anonymous namespace)`, `(int)4` for `4`), so it is made of identifiers, which both spell alike. Mangled
names are matched whole.

Source: Nsight Compute CLI 2025.3, "Profile", "Filter" and "Sampling" options.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from opscope.text_enum import TextEnum
from opscope.toolchain.ncu.metrics import SECTIONS, Quantity, metrics_to_collect

__all__ = [
    "TOPICS",
    "Collection",
    "KernelFilter",
    "NameBase",
    "filter_of_functions",
    "filter_of_mangled_names",
    "ncu_command",
    "shell_text",
    "suggested_command",
]

# What launch data cannot tell of a kernel, and what tells it.
TOPICS: dict[str, tuple[Quantity, ...]] = {
    "coalescing": (
        Quantity.LOAD_SECTORS,
        Quantity.LOAD_REQUESTS,
        Quantity.LOAD_BYTES_PER_SECTOR,
        Quantity.STORE_SECTORS,
        Quantity.STORE_REQUESTS,
        Quantity.STORE_BYTES_PER_SECTOR,
    ),
    "bank conflicts": (
        Quantity.SHARED_WAVEFRONTS,
        Quantity.SHARED_WAVEFRONTS_IDEAL,
    ),
    "divergence": (Quantity.THREADS_PER_INSTRUCTION,),
    "memory traffic": (Quantity.DURATION, Quantity.DRAM_BYTES, Quantity.L2_BYTES),
    "achieved occupancy": (Quantity.OCCUPANCY,),
    "stall reasons": (Quantity.WARP_LATENCY,),
}
# Characters with a meaning in ECMAScript expressions, which ncu uses; to escape others is an error there.
_SPECIAL = re.compile(r"[\\^$.|?*+()\[\]{}]")


class NameBase(TextEnum):
    """Which of a kernel's names a filter is held against."""

    FUNCTION = "function"
    DEMANGLED = "demangled"
    MANGLED = "mangled"


@dataclass(frozen=True)
class KernelFilter:
    """Launches whose name matches an expression somewhere."""

    pattern: str
    base: NameBase = NameBase.DEMANGLED

    def arguments(self) -> list[str]:
        """The options of ncu."""
        return ["--kernel-name-base", str(self.base), "--kernel-name", f"regex:{self.pattern}"]

    def covers(self, name: str) -> bool:
        """Whether it matches a name of its base."""
        return re.search(self.pattern, name) is not None


@dataclass(frozen=True)
class Collection:
    """What ncu records.

    Attributes:
        kernels: Which launches; all if None.
        launch_skip: Matching launches to pass over.
        launch_count: Matching launches to profile; all if None.
        sections: Section identifiers.
        metrics: Metric names.
        metric_set: A set of ncu (`basic`, `detailed`, `full`) beside these.
        replay_mode: `kernel` runs each launch again for every group of counters; `application` runs the
            program again.
    """

    kernels: KernelFilter | None = None
    launch_skip: int = 0
    launch_count: int | None = None
    sections: tuple[str, ...] = SECTIONS
    metrics: tuple[str, ...] = metrics_to_collect()
    metric_set: str | None = None
    replay_mode: str = "kernel"


def filter_of_functions(functions: Iterable[tuple[str, str | None]]) -> KernelFilter:
    """Kernels by function name, each with the functor its template was given or None."""
    patterns = dict.fromkeys(_function_pattern(*one) for one in functions)
    return KernelFilter("|".join(patterns))


def filter_of_mangled_names(names: Iterable[str]) -> KernelFilter:
    """Exactly these kernels."""
    alternatives = "|".join(_escape(name) for name in dict.fromkeys(names))
    return KernelFilter(f"^({alternatives})$", NameBase.MANGLED)


def ncu_command(
    collection: Collection,
    program: Sequence[str],
    *,
    output: Path,
    executable: str = "ncu",
    log_file: Path | None = None,
) -> list[str]:
    """The command that profiles a program, child processes included, at the clocks it runs at.

    Args:
        collection: What to record.
        program: The command to profile.
        output: The report to write, `NAME.ncu-rep`; one that exists is replaced.
        executable: ncu.
        log_file: Takes ncu's own words, which otherwise mix with the program's.
    """
    options = ["--target-processes", "all", "--replay-mode", collection.replay_mode]
    # Locked clocks need privileges, and their times compare with nothing else.
    options += ["--clock-control", "none", "--apply-rules", "no"]
    options += _what(collection)
    options += ["--export", str(output), "--force-overwrite"]
    if log_file is not None:
        options += ["--log-file", str(log_file)]
    return [executable, *options, *program]


def suggested_command(
    kernels: KernelFilter,
    launch_index: int,
    *,
    topics: Iterable[str] = TOPICS,
    compute_capability: str | None = None,
    program: Sequence[str] = ("python", "script.py"),
    output: str = "counters",
) -> list[str]:
    """The command that tells of one launch what only counters can.

    Args:
        kernels: The kernel.
        launch_index: Which of the launches it matches, from 0.
        topics: Keys of `TOPICS`.
        compute_capability: Of the device, where known.
        program: The command to profile.
        output: Report to write, without suffix.
    """
    quantities = [quantity for topic in topics for quantity in TOPICS[topic]]
    collection = Collection(
        kernels,
        launch_index,
        1,
        sections=("LaunchStats", "Occupancy", "WarpStateStats"),
        metrics=metrics_to_collect(compute_capability, quantities),
    )
    what = _what(collection)
    return ["ncu", "--clock-control", "none", *what, "--export", output, *program]


def shell_text(command: Sequence[str]) -> str:
    """The command as a shell reads it."""
    return shlex.join(command)


def _what(collection: Collection) -> list[str]:
    options = [] if collection.kernels is None else collection.kernels.arguments()
    if collection.launch_skip:
        options += ["--launch-skip", str(collection.launch_skip)]
    if collection.launch_count is not None:
        options += ["--launch-count", str(collection.launch_count)]
    if collection.metric_set is not None:
        options += ["--set", collection.metric_set]
    for section in collection.sections:
        options += ["--section", section]
    if collection.metrics:
        options += ["--metrics", ",".join(collection.metrics)]
    return options


def _function_pattern(function: str, functor: str | None) -> str:
    pattern = _word(function)
    return pattern if functor is None else f"{pattern}.*{_word(functor)}"


def _word(name: str) -> str:
    """The name, not as part of a longer one."""
    start = r"\b" if re.match(r"\w", name) else ""
    end = r"\b" if re.search(r"\w$", name) else ""
    return f"{start}{_escape(name)}{end}"


def _escape(text: str) -> str:
    return _SPECIAL.sub(r"\\\g<0>", text)
