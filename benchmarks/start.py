"""How long whole `opscope` processes take on small input, as ratios to another checkout in the same run.

    python benchmarks/start.py [--against CHECKOUT] [--repetitions 15]

The commands take turns: a bare interpreter, `opscope --help`, and `opscope analyze` of the packaged trace,
from this checkout and from the other (say a `git worktree` of an older commit; it needs the same packages).
Times are of whole processes, from outside, their modules compiled; CPU time is user and system. Modules are
those that `analyze` leaves imported beyond the standard library. Results go to `results/start.json` with
every sample.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TRACE = ROOT / "src/opscope/data/bert_h200.json.gz"
COMMANDS = {
    "python": ["-c", "pass"],
    "help": ["-m", "opscope", "--help"],
    "analyze": ["-m", "opscope", "analyze", str(TRACE)],
}
_COUNT = """
import contextlib, io, sys
from opscope.cli import main
with contextlib.redirect_stdout(io.StringIO()):
    main(["analyze", sys.argv[1]])
names = [name for name in sys.modules if name.partition(".")[0] not in sys.stdlib_module_names]
print(len(names), sum(name.partition(".")[0] == "opscope" for name in names))
"""


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", type=Path, help="another checkout of opscope, the reference")
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/start.json")
    options = parser.parse_args()
    checkouts = {"this": ROOT} | ({"reference": options.against.resolve()} if options.against else {})
    with tempfile.TemporaryDirectory() as folder:
        samples = take_samples(checkouts, options.repetitions, Path(folder))
    found = {
        "environment": {"python": platform.python_version(), "cpus": os.cpu_count()},
        "commit": {name: commit_of(checkout) for name, checkout in checkouts.items()},
        "modules": {name: count_modules(checkout) for name, checkout in checkouts.items()},
        "samples_s": samples,
    }
    options.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    show(found)
    print(f"Wrote {options.output}")
    return 0


def take_samples(
    checkouts: dict[str, Path], repetitions: int, bytecode: Path
) -> dict[str, dict[str, list[float]]]:
    """Wall and CPU seconds by checkout and command; the first round, which compiles, is not counted."""
    samples: dict[str, dict[str, list[float]]] = {}
    for repetition in range(repetitions + 1):
        for name, checkout in checkouts.items():
            for command, arguments in COMMANDS.items():
                wall_s, cpu_s = run(checkout, arguments, bytecode)
                if repetition:
                    kept = samples.setdefault(f"{name} {command}", {"wall": [], "cpu": []})
                    kept["wall"].append(wall_s)
                    kept["cpu"].append(cpu_s)
    return samples


def run(checkout: Path, arguments: list[str], bytecode: Path) -> tuple[float, float]:
    """Wall and CPU seconds of one process."""
    start = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, *arguments],
        env=environment_of(checkout, bytecode),
        stdout=subprocess.DEVNULL,
        cwd=checkout,
    )
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{' '.join(arguments)} in {checkout} exits with {child.returncode}")
    return seconds, usage.ru_utime + usage.ru_stime


def count_modules(checkout: Path) -> dict[str, int]:
    """Modules beyond the standard library, and those of opscope among them, after `analyze`."""
    command = [sys.executable, "-c", _COUNT, str(TRACE)]
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    printed = subprocess.run(
        command, env=environment, cwd=checkout, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    count, own = printed.split()
    return {"imported": int(count), "opscope": int(own)}


def environment_of(checkout: Path, bytecode: Path) -> dict[str, str]:
    """That of a process that imports the checkout, compiled as an installed package is."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(checkout / "src"), "PYTHONPYCACHEPREFIX": str(bytecode)}


def commit_of(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True).stdout.strip()


def show(found: dict[str, Any]) -> None:
    """A row per command: medians, and the ratios to the reference, of medians and of the least."""
    for key, kept in found["samples_s"].items():
        name, _, command = key.partition(" ")
        wall_s, cpu_s = statistics.median(kept["wall"]), statistics.median(kept["cpu"])
        text = f"{command:8} {name:10} wall {wall_s:.3f} s, CPU {cpu_s:.3f} s"
        reference = found["samples_s"].get(f"reference {command}")
        if name == "this" and reference is not None:
            wall = wall_s / statistics.median(reference["wall"])
            cpu = cpu_s / statistics.median(reference["cpu"])
            least = [min(kept[kind]) / min(reference[kind]) for kind in ("wall", "cpu")]
            text += (
                f"; {wall:.2f} × (CPU {cpu:.2f} ×) the reference's; least {least[0]:.2f} ({least[1]:.2f}) ×"
            )
        print(text)
    for name, modules in found["modules"].items():
        print(f"modules  {name:10} {modules['imported']}, {modules['opscope']} of them opscope's")


if __name__ == "__main__":
    sys.exit(main())
