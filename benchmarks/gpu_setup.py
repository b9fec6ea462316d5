"""What measurements on a GPU share: options and results, a plain timing, and keeping errors apart."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Setup:
    """What every section is given.

    Args:
        device: `"cuda:N"` or `"cpu"`.
        size: Side of the square tensors.
        runs: Of the repeatability section.
        work_dir: For recordings and builds of this run.
    """

    device: str
    size: int
    runs: int
    work_dir: Path

    @property
    def is_cuda(self) -> bool:
        """Whether the device is a CUDA device."""
        return self.device.startswith("cuda")


@functools.cache
def environment() -> Any:
    """The environment that goes into every result."""
    from opscope.capture.environment import collect_environment

    return collect_environment()


def parser_of(doc: str | None, **output: Any) -> argparse.ArgumentParser:
    """A parser described by the first line of a docstring, with `--output`, required unless told else."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, **(output or {"required": True}))
    return parser


def environment_facts() -> Any:
    """The environment in JSON types."""
    import msgspec

    return msgspec.to_builtins(environment())


def write(output: Path, document: dict[str, Any]) -> None:
    """Write results as JSON."""
    output.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def problem_of(calls: dict[str, Callable[[], object]], setup: Setup, *, reference: str | None = None) -> Any:
    """A problem of calls without inputs."""
    from opscope.benchmarking.problem import Implementation, Problem

    return Problem(
        name="calls",
        device=setup.device,
        make_inputs=lambda seed: (),
        implementations=tuple(Implementation(name, lambda fn=fn: fn) for name, fn in calls.items()),
        reference=reference or next(iter(calls)),
    )


def timed(calls: dict[str, Callable[[], object]], setup: Setup, **options: Any) -> Any:
    """The benchmark's result for calls without inputs, neither checked nor profiled."""
    from opscope.benchmarking.run import run_benchmark
    from opscope.model.benchmark import BenchmarkOptions

    plain = BenchmarkOptions(check=False, profile=False, ceilings=False, **options)
    return run_benchmark(problem_of(calls, setup), plain, environment=environment())


@contextlib.contextmanager
def recording_errors(results: dict[str, Any], name: str) -> Iterator[None]:
    """An error in the block is kept under a name instead of ending the run; an interruption passes."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - one figure that fails must not cost the others
        results[name] = {"error": traceback.format_exc()[-6000:]}
        print(f"  {name}: FAILED: {type(error).__name__}: {str(error)[:300]}")
    if "error" in results.get(name, {}):
        release()


def release() -> None:
    """Give cached memory back; a device that was lost is left alone."""
    from opscope.workloads.runtime import release_memory

    try:
        release_memory()
    except RuntimeError as error:
        print(f"  the device does not answer any more: {error}")
