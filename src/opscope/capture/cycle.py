"""Cycles: which steps are skipped, warmed up and recorded, what is written of one, what may be done after.

One cycle is `wait` steps without the profiler, `warmup` steps with it attached but not recording, and
`active` recorded steps; it runs `repeat` times. Handlers are passed as `on_cycle`; those here copy the trace
to where other tools look for it, and the cycle's own files stay where they are.

Of a stopped recording the trace is written first, then the sidecar that vouches for it. What this process
knows of its kernels and operators is collected right after the trace is written, while everything is still
loaded. Nothing of that may break a recording: a part that fails is a Gap. Importing this module does not
import torch.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from opscope.capture.process_sources import compiled_graphs, extension_sources, live_objects, triton_sources
from opscope.capture.recording import TraceNames
from opscope.capture.registrations import collect_registrations
from opscope.errors import CaptureError, InputError
from opscope.model.files import replacing
from opscope.model.origin import Gap, RecordedKernel
from opscope.model.sidecar import Sidecar, UnrecordedStep, write_sidecar
from opscope.provenance.binaries import recorded_origins
from opscope.provenance.generated_code import files_by_hash, generated_sources, is_generated, read_generated

# Recorded steps by default: the fewest that a comparison has an interval for.
ACTIVE_STEPS = 6


@dataclass(frozen=True)
class Cycle:
    """One recorded cycle, counted from 0; both files are whole."""

    index: int
    trace_path: Path
    sidecar_path: Path
    sidecar: Sidecar


class CycleHandler(Protocol):
    """Called after each cycle, while nothing is being recorded; any function of one Cycle is one."""

    def __call__(self, cycle: Cycle, /) -> object:
        """Use a finished cycle; the result is ignored."""


class Phase(Enum):
    WAIT = "wait"
    WARMUP = "warmup"
    ACTIVE = "active"
    DONE = "done"


class Position(NamedTuple):
    """A cycle, counted from 0, and the phase within it."""

    cycle: int
    phase: Phase


@dataclass(frozen=True)
class Schedule:
    wait: int
    warmup: int
    active: int
    repeat: int

    def __post_init__(self) -> None:
        if self.wait < 0 or self.warmup < 0 or self.active < 1 or self.repeat < 1:
            raise InputError(
                f"wait={self.wait}, warmup={self.warmup}, active={self.active}, repeat={self.repeat} "
                "is no schedule",
                hint="Need wait >= 0, warmup >= 0, active >= 1 and repeat >= 1",
            )

    @property
    def total_steps(self) -> int:
        return self.repeat * (self.wait + self.warmup + self.active)

    def recorded_from(self, step: int) -> int:
        """The step at which a wait ends in which this one lies."""
        return step + self.wait - step % (self.wait + self.warmup + self.active)

    def position(self, step: int) -> Position:
        """Where a step, counted from 0, lies."""
        cycle, offset = divmod(step, self.wait + self.warmup + self.active)
        if cycle >= self.repeat:
            return Position(self.repeat, Phase.DONE)
        if offset < self.wait:
            return Position(cycle, Phase.WAIT)
        return Position(cycle, Phase.WARMUP if offset < self.wait + self.warmup else Phase.ACTIVE)


def export_chrome_trace(
    directory: str | os.PathLike[str], pattern: str = "{name}", *, overwrite: bool = False
) -> CycleHandler:
    """A handler that copies each trace into a folder.

    Args:
        directory: Created if missing.
        pattern: File name of the copy: `{name}` is the trace's, `{stem}` the same without its ending,
            `{index}` the cycle.
        overwrite: Replace files instead of refusing.

    Raises:
        InputError: The pattern names anything else, or (from the handler) the file exists.
    """
    try:
        pattern.format(name="", stem="", index=0)
    except (KeyError, IndexError, ValueError) as error:
        raise InputError(
            f"'{pattern}' is not a pattern ({error})", hint="Use {name}, {stem} and {index}"
        ) from error

    def handle(cycle: Cycle, /) -> Path:
        name = cycle.trace_path.name
        target = Path(directory) / pattern.format(name=name, stem=name.split(".json")[0], index=cycle.index)
        if target.exists() and not overwrite:
            raise InputError(
                "the file exists", source=target, hint="Choose another pattern, or pass overwrite=True"
            )
        return _copy(cycle.trace_path, target)

    return handle


def tensorboard_trace(directory: str | os.PathLike[str], worker_name: str | None = None) -> CycleHandler:
    """A handler that copies each trace into a folder under the name TensorBoard's profiler plug-in expects.

    Source: pytorch/kineto, tb_plugin/torch_tb_profiler/consts.py, WORKER_PATTERN:
    `<worker>.<timestamp>.pt.trace.json[.gz]`.

    Args:
        directory: A log folder of TensorBoard; created if missing.
        worker_name: One per process of a distributed job; `pid<process id>` if None.
    """
    worker = worker_name or f"pid{os.getpid()}"

    def handle(cycle: Cycle, /) -> Path:
        ending = ".gz" if cycle.trace_path.name.endswith(".gz") else ""
        # Nanoseconds, as torch does: cycles of one second must not replace each other.
        return _copy(cycle.trace_path, Path(directory) / f"{worker}.{time.time_ns()}.pt.trace.json{ending}")

    return handle


def _copy(source: Path, target: Path) -> Path:
    with replacing(target, "the copy of the trace", error=CaptureError) as unfinished:
        shutil.copyfile(source, unfinished)
    return target


T = TypeVar("T")


def attempted(gaps: list[Gap], part: str, read: Callable[[], T]) -> T | None:
    """What reading gives; a gap, and None, where it fails."""
    try:
        return read()
    except Exception as error:  # noqa: BLE001 - reads other programs' private parts, which may be any
        gaps.append(Gap(part, f"{type(error).__name__}: {error}"))
        return None


def collect(names: TraceNames, copies: Path, gaps: list[Gap]) -> dict[str, Any]:
    """All that this process knows of the names in a trace, as fields of a Sidecar.

    Generated sources are copied to a folder.
    """
    attempt = partial(attempted, gaps)
    wanted = names.kernels
    graphs, functions, traced = (attempt("Triton kernels", live_objects) if wanted else None) or ((),) * 3
    # Those that torch.compile generated, then others that Triton compiled, then those of shared libraries.
    generated = attempt(
        "torch.compile",
        lambda: generated_sources(
            wanted,
            files_by_hash(names.kernel_files),
            names.graph_keys,
            compiled_graphs(graphs, traced),
            read=lambda file, hash_: None if file is None else read_generated(file, hash_),
        ),
    )
    texts = {one.hash: text for one, text in generated or () if one.hash and text is not None}
    copied = attempt("copies of kernels", lambda: write_copies(copies, texts)) or {}
    sources = [msgspec.structs.replace(one, copy=copied.get(one.hash or "")) for one, _ in generated or ()]
    rest = wanted - {one.kernel for one in sources}
    sources += attempt("Triton kernels", lambda: triton_sources(rest, functions)) or ()
    rest = wanted - {one.kernel for one in sources}
    origins = attempt("kernel origins", lambda: recorded_origins(rest)) if rest else None
    kernels = tuple((origins or {}).get(name, RecordedKernel(name)) for name in sorted(wanted))
    sources += attempt("CUDA extensions", lambda: extension_sources(kernels)) or ()
    return {
        "kernels": kernels,
        "kernel_sources": tuple(sources),
        "registrations": attempt("registrations", lambda: collect_registrations(names.operators)) or (),
    }


def write_copies(folder: Path, texts: Mapping[str, str]) -> dict[str, str]:
    """Write source texts into a folder as `<hash>.py`; paths by hash, relative to the folder's parent.

    Those of an earlier recording go. The folder is there afterwards exactly if there are texts, or other
    files of the user's in it.
    """
    if folder.is_dir():
        for stale in folder.iterdir():
            if is_generated(stale.name) and stale.stem not in texts:
                stale.unlink()
        if not any(folder.iterdir()):
            folder.rmdir()
    for hash_, text in texts.items():
        with replacing(folder / f"{hash_}.py", error=CaptureError) as unfinished:
            unfinished.write_bytes(text.encode("utf-8", "surrogatepass"))
    return {hash_: f"{folder.name}/{hash_}.py" for hash_ in texts}


def with_unrecorded(cycle: Cycle, steps: tuple[UnrecordedStep, ...]) -> Cycle:
    """The cycle with these unrecorded steps, in its file too; as it is where the file is gone."""
    if steps == cycle.sidecar.unrecorded_steps or not cycle.sidecar_path.exists():
        return cycle
    sidecar = msgspec.structs.replace(cycle.sidecar, unrecorded_steps=steps)
    write_sidecar(cycle.sidecar_path, sidecar)
    return replace(cycle, sidecar=sidecar)


def trace_file_names(name: str, repeat: int) -> tuple[str, ...]:
    if name in {"", ".."} or Path(name).name != name:
        raise InputError(f"'{name}' is not a file name", hint="Give the folder as output_dir")
    suffix = next((known for known in (".json.gz", ".json") if name.endswith(known)), "")
    stem, suffix = name.removesuffix(suffix), suffix or ".json"
    if not stem or stem.endswith(".opscope"):
        raise InputError(f"'{name}' cannot be a trace's name", hint="*.opscope.json are sidecars")
    if repeat == 1:
        return (f"{stem}{suffix}",)
    return tuple(f"{stem}_cycle{index}{suffix}" for index in range(repeat))
