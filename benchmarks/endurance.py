"""Does opscope hold out? A trace of 10 GB under a limit of memory, and a thousand loads in one process.

    python benchmarks/endurance.py --recording TRACE.json.gz [--large-mb 10000] [--loads 1000]

The recording is repeated (`traces.py`) to 1 GB and to the large size, both are read and analyzed with
`--memory-limit 2GB` by processes of their own, and what they count is held against the smaller one: n copies
of what is repeated have n times its operators, kernels and times. Results go to `results/endurance.json`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import opscope
from traces import open_text, read_recording, write_trace

MEMORY_LIMIT = "2GB"
_FIGURES = """
    SELECT (SELECT count(*) FROM operators), (SELECT count(*) FROM device_activities),
           (SELECT sum(duration_ns)::BIGINT FROM device_activities),
           (SELECT sum(duration_ns)::BIGINT FROM operators), (SELECT count(*) FROM runtime_calls)
"""


def _status(key: str, process: str = "self") -> int:
    for line in Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {key} in /proc/{process}/status")


def measure_load(file: Path) -> dict[str, Any]:
    """Load, check the laws, count; in a process of its own."""
    began, began_cpu = time.perf_counter(), time.process_time()
    with opscope.load(str(file), memory_limit=MEMORY_LIMIT) as session:
        load_s, load_cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
        violations = sum(len(check.violations) for check in session.check())
        figures = [int(value or 0) for value in session.query(_FIGURES)[0]]
    return {
        "load_s": round(load_s, 2),
        "load_cpu_s": round(load_cpu_s, 2),
        "violations": violations,
        "figures": figures,
        "peak_rss_bytes": _status("VmHWM"),
    }


def measure_analyze(file: Path) -> dict[str, Any]:
    """The whole command."""
    began = time.perf_counter()
    command = [
        sys.executable,
        "-m",
        "opscope",
        "analyze",
        str(file),
        "--json",
        "--memory-limit",
        MEMORY_LIMIT,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        peak_bytes, output = 0, b""
        os.set_blocking(process.stdout.fileno(), False)
        while process.poll() is None:
            try:
                peak_bytes = max(peak_bytes, _status("VmHWM", str(process.pid)))
            except (OSError, RuntimeError):
                break
            output += process.stdout.read() or b""
            time.sleep(0.05)
        os.set_blocking(process.stdout.fileno(), True)
        output += process.stdout.read()
    if process.returncode != 0:
        raise RuntimeError(f"analyze of {file} failed with exit code {process.returncode}")
    operators = json.loads(output)["top_operators"]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "analyze_s": round(time.perf_counter() - began, 2),
        "analyze_cpu_s": round(used.ru_utime + used.ru_stime, 2),
        "peak_rss_bytes": peak_bytes,
        "operators": len(operators),
    }


def in_process(case: str, file: Path) -> dict[str, Any]:
    """A case in a process of its own."""
    command = [sys.executable, __file__, "--case", case, "--file", str(file)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)  # type: ignore[no-any-return]


def measure_size(recording: Path, folder: Path, size_mb: float) -> dict[str, Any]:
    """A trace of a size, made, read and removed."""
    file = folder / f"{size_mb:g}MB.json"
    try:
        with open_text(file, "w") as out:
            copies = write_trace(read_recording(recording), out, int(size_mb * 1e6))
        loaded = in_process("load", file)
        return {
            "size_bytes": file.stat().st_size,
            "copies": copies,
            "load": loaded,
            "ns_per_byte": round(loaded["load_s"] * 1e9 / file.stat().st_size, 3),
            "cpu_ns_per_byte": round(loaded["load_cpu_s"] * 1e9 / file.stat().st_size, 3),
            "analyze": in_process("analyze", file),
        }
    finally:
        file.unlink(missing_ok=True)


def measure_loads(recording: Path, loads: int) -> dict[str, Any]:
    """Descriptors and memory of this process over many loads."""
    samples = []
    for number in range(loads + 1):
        with opscope.load(str(recording)) as session:
            opscope.summarize(session).operators  # noqa: B018 - computed when asked for
        if number in {1, 10} or number % 50 == 0:
            descriptors = len(list(Path("/proc/self/fd").iterdir()))
            samples.append({"loads": number, "descriptors": descriptors, "rss_bytes": _status("VmRSS")})
            print(samples[-1], file=sys.stderr, flush=True)
    return {"recording": recording.name, "samples": samples}


_STEPPED = """
import json, statistics, sys, time, torch
from torch.optim import optimizer as optimizers
width, batch_size, steps, blocks = map(int, sys.argv[1:])
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(8)])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
batch = torch.ones(batch_size, width)
def mean_ns():
    began_ns = time.thread_time_ns()
    for _ in range(steps):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    return (time.thread_time_ns() - began_ns) / steps
mean_ns()
registered = optimizers._global_optimizer_post_hooks
hooks = dict(registered)
times_ns = {True: [], False: []}
for block in range(2 * blocks):
    registered.clear()
    is_idle = block % 4 in (1, 2)
    if is_idle:
        registered.update(hooks)
    times_ns[is_idle].append(mean_ns())
registered.update(hooks)
print(json.dumps({"hooks": len(hooks), "bare": times_ns[False], "idle": times_ns[True]}))
"""
# Steps of less than a millisecond and of some eight: width, batch, steps of a block, pairs of blocks.
_STEPS = {"short": (64, 16, 100, 60), "usual": (512, 64, 12, 60)}


def measure_hooks() -> dict[str, Any]:
    """What `opscope run` that never comes to record adds to a step.

    Blocks of steps with the hook and without it take turns in one process, so that caches, memory and the
    machine's mood are the same; time is that of the processor, in which waiting for one does not count. The
    interval is that of the median of the pairs, by the sign test: what else runs widens it and moves nothing.
    """
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(_STEPPED)
        idle = ["-m", "opscope", "run", "--wait", "1000000", "--quiet", "--force", "--output-dir", folder]
        for name, settings in _STEPS.items():
            command = [sys.executable, *idle, str(script), *map(str, settings)]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            measured = json.loads(done.stdout)
            if measured["hooks"] != 1:
                raise RuntimeError(f"{measured['hooks']} hooks instead of one: {done.stderr}")
            found[name] = _added(measured["bare"], measured["idle"])
    return found


def _added(bare_ns: list[float], idle_ns: list[float]) -> dict[str, Any]:
    added_ns = sorted(idle - bare for bare, idle in zip(bare_ns, idle_ns, strict=True))
    pairs, step_ns = len(added_ns), statistics.median(bare_ns)
    outer = next(rank for rank in range(pairs) if _tail(pairs, rank + 1) > 0.025)
    edges_ns = {"median": statistics.median(added_ns), "low": added_ns[outer], "high": added_ns[-1 - outer]}
    return {
        "step_ns": round(step_ns),
        "pairs": pairs,
        "added_ns": {name: round(value) for name, value in edges_ns.items()},
        "share": {name: round(value / step_ns, 5) for name, value in edges_ns.items()},
    }


def _tail(count: int, most: int) -> float:
    """Probability of at most so many heads of a fair coin."""
    return sum(math.comb(count, heads) for heads in range(most + 1)) / 2**count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recording", type=Path)
    parser.add_argument("--large-mb", type=float, default=10_000)
    parser.add_argument("--small-mb", type=float, default=1_000)
    parser.add_argument("--loads", type=int, default=1_000)
    parser.add_argument("--hooks", action="store_true", help="the cost of hooks that do not record, too")
    parser.add_argument("--folder", type=Path, help="where the large files are made")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results/endurance.json")
    parser.add_argument("--case", choices=("load", "analyze"), help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps({"load": measure_load, "analyze": measure_analyze}[options.case](options.file)))
        return 0
    results: dict[str, Any] = {"memory_limit": MEMORY_LIMIT, "cores": len(os.sched_getaffinity(0))}
    if options.output.exists():
        results |= json.loads(options.output.read_text())
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        if options.large_mb:
            results["recording"] = in_process("load", options.recording)
            for key, size_mb in (("small", options.small_mb), ("large", options.large_mb)):
                results[key] = measure_size(options.recording, Path(folder), size_mb)
                options.output.write_text(json.dumps(results, indent=1) + "\n")
    if options.hooks:
        results["hooks"] = measure_hooks()
    if options.loads:
        results["loads"] = measure_loads(options.recording, options.loads)
    options.output.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
