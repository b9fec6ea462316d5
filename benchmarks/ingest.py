"""Speed and memory of reading traces, as ratios to named references measured in the same run.

    python benchmarks/ingest.py --recording TRACE.json.gz [--hta-python PYTHON] [--repetitions 5]

A recording is repeated to 180 MB and 1 GB (`traces.py`). Every measurement is a process of its own; the cases
take turns within each repetition, so that a slow minute of the machine slows all of them. Times start after
imports and end with the result in hand, but of `analyze` before them: it is timed as a whole command.
`orjson.loads` is timed without reading the file, opscope with it.
Ratios are those of medians (of minima beside them). Results go to `results/ingest.json` with every sample.

This module imports only the standard library at its top: one case runs under another interpreter.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SMALL_MB, LARGE_MB = 180, 1000
MEMORY_LIMIT = "1GB"
CASE_TIMEOUT_S = 900


# Cases: each runs alone in a process, takes a file and returns the seconds that count.


def orjson_as_it_comes(file: Path) -> float:
    import orjson

    data = file.read_bytes()
    start = time.perf_counter()
    events = orjson.loads(data)
    seconds = time.perf_counter() - start
    del events
    return seconds


def orjson_without_gc(file: Path) -> float:
    gc.disable()
    return orjson_as_it_comes(file)


def memcpy(file: Path) -> float:
    """The bytes of the file once copied, in memory."""
    data = file.read_bytes()
    start = time.perf_counter()
    copy = bytearray(data)
    seconds = time.perf_counter() - start
    del copy
    return seconds


def opscope_scan(file: Path) -> float:
    """The compiled pass over the whole text, on one core, its columns copied out."""
    import mmap

    from opscope.ingest.scan import scan_natively

    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as text:
        array = text.find(b"[", text.find(b'"traceEvents"')) + 1
        start = time.perf_counter()
        scanned = scan_natively(text, array, len(text))
        seconds = time.perf_counter() - start
    if not (scanned.is_closed and scanned.row_count):
        raise RuntimeError("the scan did not reach the end of the array")
    return seconds


def opscope_load(file: Path) -> float:
    return timed_load(file)


def opscope_load_limited(file: Path) -> float:
    return timed_load(file, memory_limit=MEMORY_LIMIT)


def timed_load(file: Path, **options: Any) -> float:
    import opscope
    import opscope.ingest.reader  # `opscope.load` imports it only when it is called

    start = time.perf_counter()
    session = opscope.load(str(file), **options)
    seconds = time.perf_counter() - start
    session.close()
    return seconds


# What HTA's kernel breakdown tells: time by kind of work, overlaps counted once, and statistics by kernel.
_TIME_BY_TYPE = """
    WITH typed AS (
        SELECT device, start_ns, start_ns + duration_ns AS end_ns,
               CASE WHEN device_activities.kind <> 'kernel' THEN 'memory'
                    WHEN name ILIKE '%nccl%' THEN 'communication' ELSE 'computation' END AS type
        FROM device_activities JOIN kernel_names USING (name_id)
    ), reached AS (
        SELECT *, max(end_ns) OVER (
            PARTITION BY device, type ORDER BY start_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS until_ns
        FROM typed
    )
    SELECT device, type, sum(greatest(0, end_ns - greatest(start_ns, coalesce(until_ns, start_ns))))
    FROM reached GROUP BY ALL
"""
_TIME_BY_KERNEL = """
    SELECT device, name, device_activities.kind, count(*), sum(duration_ns), min(duration_ns),
           max(duration_ns), avg(duration_ns), stddev_samp(duration_ns)
    FROM device_activities JOIN kernel_names USING (name_id) GROUP BY ALL ORDER BY sum(duration_ns) DESC
"""


def opscope_breakdown(file: Path) -> float:
    import opscope
    import opscope.ingest.reader

    start = time.perf_counter()
    with opscope.load(str(file)) as session:
        types, kernels = session.query(_TIME_BY_TYPE), session.query(_TIME_BY_KERNEL)
        seconds = time.perf_counter() - start
    if not (types and kernels):
        raise RuntimeError("no kernels in the breakdown")
    return seconds


def opscope_analyze(file: Path) -> float:
    return timed_analyze(file)


def opscope_analyze_limited(file: Path) -> float:
    return timed_analyze(file, "--memory-limit", MEMORY_LIMIT)


def timed_analyze(file: Path, *options: str) -> float:
    """The whole command, its imports too, as `opscope` runs it."""
    printed = io.StringIO()
    sys.argv = ["opscope", "analyze", str(file), "--json", *options]
    start = time.perf_counter()
    with contextlib.redirect_stdout(printed):
        from opscope.cli import entry_point

        try:
            entry_point()
        except SystemExit as exit_:
            code = exit_.code
    seconds = time.perf_counter() - start
    if code != 0 or not json.loads(printed.getvalue())["top_operators"]:
        raise RuntimeError(f"analyze failed with exit code {code}")
    return seconds


def hta_breakdown(file: Path) -> float:
    from hta.trace_analysis import TraceAnalysis

    start = time.perf_counter()
    analysis = TraceAnalysis(trace_files={0: str(file)}, trace_dir="")
    kinds, _ = analysis.get_gpu_kernel_breakdown(visualize=False)
    seconds = time.perf_counter() - start
    if not len(kinds):
        raise RuntimeError("no kernels in the breakdown")
    return seconds


def opscope_graph(file: Path) -> float:
    """From a loaded Session to its simulated step and critical path."""
    import opscope
    from opscope.analysis.summary import Summary

    with opscope.load(str(file)) as session:
        summary = Summary(session)
        start = time.perf_counter()
        (model,) = summary.step_models
        seconds = model.recorded_ns and model.path and time.perf_counter() - start
    return float(seconds)


def opscope_what_if(file: Path) -> float:
    """One change of that step, simulated."""
    import opscope
    from opscope.analysis.summary import Summary

    with opscope.load(str(file)) as session:
        (model,) = Summary(session).step_models
        start = time.perf_counter()
        model.gain_ns(model.change().replay(1e5))
        return time.perf_counter() - start


def opscope_graph_mb(file: Path) -> float:
    """Most memory that the graph, its making and simulation take beside the Session, in MB."""
    import tracemalloc

    import opscope
    from opscope.analysis.summary import Summary

    with opscope.load(str(file)) as session:
        tracemalloc.start()
        (model,) = Summary(session).step_models
        if not (model.recorded_ns and model.path):
            raise RuntimeError("no steps")
        return tracemalloc.get_traced_memory()[1] / 1e6


def hta_critical_path(file: Path) -> float:
    """Of all steps, the trace being loaded."""
    from hta.trace_analysis import TraceAnalysis

    analysis = TraceAnalysis(trace_files={0: str(file)}, trace_dir="")
    steps = sum("ProfilerStep" in name for name in analysis.t.symbol_table.get_sym_table())
    start = time.perf_counter()
    _, is_found = analysis.critical_path_analysis(0, "ProfilerStep", (0, steps - 1))
    if not is_found:
        raise RuntimeError("no critical path")
    return time.perf_counter() - start


def opscope_help(_: Path) -> float:
    """Start to end of the process, as a user waits for it."""
    start = time.perf_counter()
    subprocess.run([Path(sys.executable).with_name("opscope"), "--help"], check=True, capture_output=True)
    return time.perf_counter() - start


def opscope_imports_torch(_: Path) -> float:
    """1.0 if `opscope --help` imports torch, else 0.0."""
    script = "import sys; from opscope.cli import main; main(['--help']); sys.exit('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True)
    return float(result.returncode)


CASES: dict[str, Callable[[Path], float]] = {
    case.__name__: case
    for case in (
        orjson_as_it_comes,
        orjson_without_gc,
        memcpy,
        opscope_scan,
        opscope_load,
        opscope_load_limited,
        opscope_breakdown,
        opscope_analyze,
        opscope_analyze_limited,
        hta_breakdown,
        opscope_graph,
        opscope_what_if,
        opscope_graph_mb,
        hta_critical_path,
        opscope_help,
        opscope_imports_torch,
    )
}


@dataclass(frozen=True)
class Sample:
    """One run of one case. `peak_rss_bytes` is of the whole process, imports included."""

    seconds: float
    peak_rss_bytes: int


@dataclass(frozen=True)
class Run:
    """A case on a file: `key` names it in the results."""

    key: str
    case: str
    file: Path
    python: str = sys.executable


@dataclass(frozen=True)
class Claim:
    """One figure with its bound; a ratio is that of medians, with that of minima beside it."""

    name: str
    value: float
    of_minima: float | None = None
    unit: str = "x"
    at_least: float | None = None
    at_most: float | None = None

    @property
    def met(self) -> bool:
        """Whether the bound is kept."""
        above = self.at_least is None or self.value >= self.at_least
        return above and (self.at_most is None or self.value <= self.at_most)

    @property
    def target(self) -> str:
        """The bound in words."""
        if self.at_least is None and self.at_most is None:
            return ""
        bound = f"≤ {self.at_most:g}" if self.at_least is None else f"≥ {self.at_least:g}"
        return f"{bound} {self.unit}".rstrip()


def peak_rss_bytes() -> int:
    """High-water mark of this process.

    Not `ru_maxrss`: Linux carries the parent's mark over into it at exec.
    """
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmHWM in /proc/self/status")


def run_case(run: Run) -> Sample:
    """One sample, in a process of its own."""
    command = [run.python, str(Path(__file__).resolve()), "--case", run.case, "--file", str(run.file)]
    result = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=CASE_TIMEOUT_S, stdin=subprocess.DEVNULL
    )
    if result.returncode != 0:
        raise RuntimeError(f"{run.key} failed:\n{result.stderr.strip()[-2000:]}")
    return Sample(**json.loads(result.stdout.splitlines()[-1]))


def planned_runs(files: dict[str, Path], hta_python: str | None) -> list[Run]:
    small, large, packed = files["small"], files["large"], files["small_gz"]
    runs = [
        Run("orjson", "orjson_as_it_comes", small),
        Run("load", "opscope_load", small),
        Run("memcpy", "memcpy", small),
        Run("scan", "opscope_scan", small),
        Run("orjson_without_gc", "orjson_without_gc", small),
        Run("load_gz", "opscope_load", packed),
        Run("analyze", "opscope_analyze", small),
        Run("breakdown", "opscope_breakdown", small),
        Run("orjson_large", "orjson_as_it_comes", large),
        Run("load_large", "opscope_load", large),
        Run("orjson_large_without_gc", "orjson_without_gc", large),
        Run("load_large_limited", "opscope_load_limited", large),
        Run("analyze_large_limited", "opscope_analyze_limited", large),
        Run("graph", "opscope_graph", small),
        Run("what_if", "opscope_what_if", small),
        Run("graph_mb", "opscope_graph_mb", small),
        Run("help", "opscope_help", small),
        Run("help_imports_torch", "opscope_imports_torch", small),
    ]
    if hta_python is not None:
        runs.append(Run("hta", "hta_breakdown", small, hta_python))
        runs.append(Run("hta_critical_path", "hta_critical_path", small, hta_python))
    return runs


def take_samples(runs: list[Run], repetitions: int) -> dict[str, list[Sample]]:
    """All samples of all runs, which take turns."""
    samples: dict[str, list[Sample]] = {run.key: [] for run in runs}
    for repetition in range(repetitions):
        for run in runs:
            sample = run_case(run)
            samples[run.key].append(sample)
            print(
                f"{repetition + 1}/{repetitions} {run.key:<24} {sample.seconds:8.3f} s "
                f"{sample.peak_rss_bytes / 1e6:7.0f} MB",
                file=sys.stderr,
            )
    return samples


def claims(samples: dict[str, list[Sample]], files: dict[str, Path]) -> list[Claim]:
    """Every figure that the samples allow, with its target."""
    median = {key: statistics.median(s.seconds for s in taken) for key, taken in samples.items()}
    least = {key: min(s.seconds for s in taken) for key, taken in samples.items()}

    def ratio(name: str, above: str, below: str, *, scale: float = 1.0, **bound: float) -> Claim:
        value, of_minima = (times[above] / times[below] * scale for times in (median, least))
        return Claim(name, value, of_minima, **bound)

    gigabytes = files["small"].stat().st_size / 1e9
    large_to_small = files["small"].stat().st_size / files["large"].stat().st_size
    per_180_mb = 180e6 / files["small"].stat().st_size
    extra_s, extra_least_s = ((times["load_gz"] - times["load"]) * per_180_mb for times in (median, least))

    def peak(name: str, key: str, at_most: float) -> Claim:
        mb = max(sample.peak_rss_bytes for sample in samples[key]) / 1e6
        return Claim(name, mb, unit="MB", at_most=at_most)

    found = [
        Claim("scan alone, one core", gigabytes / median["scan"], gigabytes / least["scan"], unit="GB/s"),
        Claim("memcpy of the same", gigabytes / median["memcpy"], gigabytes / least["memcpy"], unit="GB/s"),
        ratio("orjson.loads / load", "orjson", "load", at_least=7.0),
        ratio("orjson.loads, gc off / load", "orjson_without_gc", "load", at_least=1.5),
        ratio("large: orjson.loads / load", "orjson_large", "load_large", at_least=6.0),
        ratio("large: same, gc off", "orjson_large_without_gc", "load_large", at_least=1.5),
        ratio("large: orjson.loads / load, limited", "orjson_large", "load_large_limited"),
        ratio("large: same, gc off", "orjson_large_without_gc", "load_large_limited"),
        peak("large: peak RSS of load, limited", "load_large_limited", 650.0),
        ratio("orjson.loads / whole analyze", "orjson", "analyze", at_least=2.2),
        ratio("whole analyze / load", "analyze", "load", at_most=1.5),
        ratio(
            "large: orjson.loads / analyze, limited", "orjson_large", "analyze_large_limited", at_least=4.0
        ),
        peak("large: peak RSS of analyze, limited", "analyze_large_limited", 700.0),
        Claim(".json.gz, extra time per 180 MB", extra_s, extra_least_s, unit="s", at_most=0.4),
        ratio("time per byte, large / small", "load_large", "load", scale=large_to_small, at_most=1.2),
        Claim(
            "execution graph, simulated, with its path",
            median["graph"],
            least["graph"],
            unit="s",
            at_most=1.0,
        ),
        Claim("one what-if", median["what_if"], least["what_if"], unit="s", at_most=0.1),
        Claim("peak memory of the graph", median["graph_mb"], least["graph_mb"], unit="MB", at_most=300.0),
        Claim("opscope --help", median["help"], least["help"], unit="s", at_most=0.3),
        Claim("opscope --help imports torch", median["help_imports_torch"], unit="", at_most=0.0),
    ]
    if "hta" in samples:
        found.append(ratio("HTA / opscope, load + kernel breakdown", "hta", "breakdown", at_least=22.0))
        found.append(ratio("HTA, the same / whole analyze", "hta", "analyze", at_least=13.0))
        found.append(ratio("HTA's critical path / graph and path", "hta_critical_path", "graph"))
    return found


def make_files(recording: Path, folder: Path, small_mb: float, large_mb: float) -> dict[str, Path]:
    """The traces to read; one that is there already is taken as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = recording.name.split(".")[0]
    wanted = {
        "small": (folder / f"{stem}_{small_mb:g}MB.json", small_mb),
        "small_gz": (folder / f"{stem}_{small_mb:g}MB.json.gz", small_mb),
        "large": (folder / f"{stem}_{large_mb:g}MB.json", large_mb),
    }
    for file, size_mb in wanted.values():
        if not file.exists():
            command = [sys.executable, HERE / "traces.py", recording, file, "--size-mb", str(size_mb)]
            subprocess.run(command, check=True, stdout=sys.stderr)
        # Once through the page cache, so that the first case does not pay for the disk.
        with file.open("rb") as data:
            while data.read(1 << 24):
                pass
    return {key: file for key, (file, _) in wanted.items()}


def environment(hta_python: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "cpu": cpu_model(),
        "cpu_count": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
    }
    for package in ("opscope", "duckdb", "orjson", "numpy"):
        found[package] = installed(package)
    if hta_python is not None:
        packages = ("HolisticTraceAnalysis", "pandas", "numpy")
        script = f"from importlib.metadata import version; print(*map(version, {packages!r}))"
        printed = subprocess.run(
            [hta_python, "-c", script], check=True, capture_output=True, text=True
        ).stdout
        found["hta"] = dict(zip(packages, printed.split(), strict=True))
    return found


def cpu_model() -> str | None:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return None


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def show(found: list[Claim]) -> None:
    print(f"{'figure':<40}{'median':>10}{'minimum':>10}{'target':>12}")
    for claim in found:
        of_minima = "" if claim.of_minima is None else f"{claim.of_minima:.2f}"
        verdict = ("met" if claim.met else "MISSED") if claim.target else ""
        print(f"{claim.name:<40}{claim.value:>10.2f}{of_minima:>10}{claim.target:>12}  {verdict}")


def benchmark(options: argparse.Namespace) -> int:
    """Everything; 1 if a target is missed."""
    files = make_files(options.recording, options.folder, options.small_mb, options.large_mb)
    samples = take_samples(planned_runs(files, options.hta_python), options.repetitions)
    found = claims(samples, files)
    show(found)
    result = {
        "environment": environment(options.hta_python),
        "recording": options.recording.name,
        "files": {key: {"name": file.name, "size_bytes": file.stat().st_size} for key, file in files.items()},
        "repetitions": options.repetitions,
        "memory_limit": MEMORY_LIMIT,
        "figures": [{**asdict(claim), "met": claim.met} for claim in found],
        "samples": {key: [asdict(sample) for sample in taken] for key, taken in samples.items()},
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"Wrote {options.output}")
    return 0 if all(claim.met for claim in found) else 1


def main() -> int:
    root = HERE.parent
    parser = argparse.ArgumentParser(description="Measure how traces are read, against named references.")
    parser.add_argument(
        "--recording",
        type=Path,
        default=root / "src/opscope/data/bert_h200.json.gz",
        help="real trace to repeat (default: the packaged one, of inference)",
    )
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument(
        "--hta-python", help="interpreter that has HolisticTraceAnalysis; left out without it"
    )
    parser.add_argument("--small-mb", type=float, default=SMALL_MB)
    parser.add_argument("--large-mb", type=float, default=LARGE_MB)
    parser.add_argument(
        "--folder", type=Path, default=root / "opscope_output/benchmarks", help="for the traces"
    )
    parser.add_argument("--output", type=Path, default=HERE / "results/ingest.json")
    parser.add_argument("--case", choices=sorted(CASES), help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case is None:
        return benchmark(options)
    # The reference prints as it works; the result is the last line.
    seconds = CASES[options.case](options.file)
    print("\n" + json.dumps({"seconds": seconds, "peak_rss_bytes": peak_rss_bytes()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
