"""Handlers of finished cycles: copies of the trace where other tools look for them.

Pass them as `on_cycle`. Each returns a function of one Cycle; the cycle's own files stay where they are.
Imports nothing of torch.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from opscope.capture.cycle import Cycle, CycleHandler
from opscope.errors import CaptureError, InputError

__all__ = ["CycleHandler", "export_chrome_trace", "tensorboard_trace"]


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
            raise InputError("the file exists", source=target, hint="Choose another pattern or overwrite it")
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
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(source, partial)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise CaptureError(f"the trace cannot be copied ({error.strerror})", source=target) from error
    return target
