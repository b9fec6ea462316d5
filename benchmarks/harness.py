"""What measurements share: options, the environment, processes, and results written as they come."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"


def parser_of(doc: str | None, output: str | None = None) -> argparse.ArgumentParser:
    """A parser that says what a module's docstring does, with `--output`: in `results` unless told else."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    default: dict[str, Any] = {"required": True} if output is None else {"default": RESULTS / output}
    parser.add_argument("--output", type=Path, **default)
    return parser


def environment(*packages: str) -> dict[str, Any]:
    """What goes into every result: the machine and its versions, those of further packages too."""
    import msgspec

    from opscope.capture.environment import collect_environment

    known: dict[str, Any] = msgspec.to_builtins(collect_environment())
    return {**known, "cores": len(os.sched_getaffinity(0)), **{name: version(name) for name in packages}}


def write(output: Path, document: Any) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(document, indent=1, ensure_ascii=False, default=str) + "\n", "utf-8")


@contextlib.contextmanager
def errors_kept(results: dict[str, Any], name: str) -> Iterator[None]:
    """An error in the block is kept under a name instead of ending the run; an interruption passes."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - one figure that fails must not cost the others
        results[name] = {"error": traceback.format_exc()[-6000:]}
        print(f"  {name}: FAILED: {type(error).__name__}: {str(error)[:300]}", flush=True)


def printed(command: Sequence[object], **variables: str) -> str:
    """What a process prints; ends the run if it fails."""
    environment = {**os.environ, **variables}
    words = list(map(str, command))
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        sys.exit(f"{' '.join(words)[:500]}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def median_s(run: Callable[[], object], repetitions: int = 5) -> float:
    """Seconds of a call, the median of several."""
    samples = []
    for _ in range(repetitions):
        started = time.perf_counter()
        run()
        samples.append(time.perf_counter() - started)
    return statistics.median(samples)
