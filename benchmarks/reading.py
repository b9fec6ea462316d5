"""How fast traces are read, and in how much memory: whole processes against others in the same run.

    python benchmarks/reading.py RECORDING.json.gz [--against CHECKOUT] [--hta-python PYTHON]
    python benchmarks/reading.py RECORDING.json.gz --make FILE.json --size-mb 180      # a trace, no more

A recording is repeated, text for text, to traces of 180 MB and 1 GB, with `--huge` of 10 GB too. Every sample
is a process from its start to its end, imports and all; cases take turns, so that a slow minute of the
machine slows all of them. Figures are ratios of medians, with those of least times beside them. References:
`orjson.loads`, HTA's load and kernel breakdown under an interpreter that has it, `memcpy`, and another
checkout of opscope.
"""

from __future__ import annotations

import gzip
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

from harness import environment, parser_of, write

ROOT = Path(__file__).resolve().parent.parent
PACKAGED = ROOT / "src/opscope/data/bert_h200.json.gz"
_TIMED = """
import mmap, sys, time
from opscope.ingest.scan import scan_natively
with open(sys.argv[1], "rb") as file:
    text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
first = text.find(b"[", text.find(b'"traceEvents"')) + 1
began = time.perf_counter()
{work}
print(time.perf_counter() - began)
"""
# What runs, by the name of the case: code, or arguments of `opscope`; `{}` is the file.
CASES: dict[str, str | list[str]] = {
    "orjson": "import orjson, sys; events = orjson.loads(open(sys.argv[1], 'rb').read())",
    "load": "import opscope, sys; opscope.load(sys.argv[1])",
    "analyze": ["analyze", "{}", "--json"],
    "limited": ["analyze", "{}", "--json", "--memory-limit", "1GB"],
    "limited_2gb": ["analyze", "{}", "--json", "--memory-limit", "2GB"],
    "hta": "import sys; from hta.trace_analysis import TraceAnalysis;"
    "TraceAnalysis({0: sys.argv[1]}, trace_dir='').get_gpu_kernel_breakdown(visualize=False)",
    "memcpy": _TIMED.format(work="copy = bytearray(text)"),
    "scan": _TIMED.format(work="assert scan_natively(text, first, len(text)).is_closed"),
    "report": ["analyze", "{}"],
    "first": ["analyze", "{}", "--section", "first"],
    "sql": ["sql", "{}", "SELECT count(*) FROM operators"],
    "help": ["--help"],
}
# Case, file and reference of each figure; what is wanted of the ratio reference / case.
_FIGURES = (
    ("load", "small", "orjson", 7), ("load", "small", "hta", 50), ("analyze", "small", "orjson", 3.5),
    ("analyze", "small", "hta", 25), ("load", "large", "orjson", 6), ("limited", "large", "orjson", 6),
    ("scan", "small", "memcpy", None), ("load", "compressed", "orjson", None),
)  # fmt: skip
_PEAKS_MB = (("limited", "large", 650), ("limited_2gb", "huge", 2_100))
_STARTS = (("report", 0.55), ("first", 0.4), ("sql", 0.4), ("help", None))

# Every number of an event that differs between copies; `ts` up to its decimal point, so the span is whole µs.
_SLOT = re.compile(
    r'"(ts|External id|correlation|id|Python id|Python parent id|Ev Idx|Sequence number)": ?(?=\d)(\d+)'
    r"|(ProfilerStep#)(\d+)"
)
_ZERO_IS_NONE = {"External id", "correlation", "id", "Sequence number"}
_EXTENT = re.compile(r'"ts": ?(\d+(?:\.\d+)?)(?:, ?"dur": ?(\d+(?:\.\d+)?))?')
_WINDOW_END = re.compile(r'("name": "Record Window End".*?"ts": ?)(\d+)', re.DOTALL)


def make_trace(recording: Path, file: Path, size_bytes: int) -> None:
    """Repeat a recording up to a size.

    Layout and bytes per event stay those of the recording, because they decide how fast a parser is. Each
    copy is later by the span of the recording and its ids are larger: nothing of one copy links to another.

    Args:
        recording: As Kineto writes it: metadata events come behind all others.
        file: `.json`, or `.json.gz` to compress.
        size_bytes: Of the text, met to half a copy.
    """
    with _text(recording, "r") as opened:
        text = opened.read()
    first = text.find("{", text.find('"traceEvents": ['))
    last = text.rfind(",\n", first, text.find('"ph": "M"'))
    if min(first, last) < 0:
        raise ValueError(f"{recording}: not laid out as Kineto writes traces")
    head, body, tail = text[:first], text[first:last], text[last:]
    pieces, keys, values, position = [], [], [], 0
    for found in _SLOT.finditer(body):
        group = 2 if found[2] is not None else 4
        pieces.append(body[position : found.start(group)])
        keys.append(found[1] or found[3])
        values.append(int(found[group]))
        position = found.end(group)
    extents = [(float(start), float(length or 0)) for start, length in _EXTENT.findall(body)]
    span_us = int(max(map(sum, extents)) - min(start for start, _ in extents)) + 1
    most = {
        key: 1 + max(value for one, value in zip(keys, values, strict=True) if one == key)
        for key in set(keys)
    }
    # Flows of kernels carry their correlation as id; Python frames name their parent by its id.
    for pair in (("correlation", "id"), ("Python id", "Python parent id")):
        most |= dict.fromkeys(pair, max(most.get(key, 1) for key in pair))
    steps = [value for key, value in zip(keys, values, strict=True) if key == "ProfilerStep#"] or [0]
    most |= {"ts": span_us, "ProfilerStep#": max(steps) - min(steps) + 1}
    slots = [
        (value, 0 if value == 0 and key in _ZERO_IS_NONE else most[key])
        for key, value in zip(keys, values, strict=True)
    ]
    with _text(file, "w") as out:
        written, copies = out.write(head), 0
        while copies == 0 or written + (written // copies) // 2 < size_bytes:
            parts = [""] * (2 * len(slots) + 1)
            parts[:-1:2] = pieces
            parts[1::2] = [str(value + copies * added) for value, added in slots]
            parts[-1] = body[position:]
            written += out.write((",\n  " if copies else "") + "".join(parts))
            copies += 1
        out.write(_WINDOW_END.sub(lambda end: f"{end[1]}{int(end[2]) + (copies - 1) * span_us}", tail))


def _text(path: Path, mode: str) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, f"{mode}t", 6, encoding="utf-8")  # type: ignore[return-value]
    return path.open(mode, encoding="utf-8")


def run_case(case: str, file: Path, python: str, checkout: Path) -> dict[str, float]:
    """Seconds and peak memory of a process, or the seconds that it prints, of a part of it."""
    what = CASES[case]
    arguments = ["-c", what, str(file)] if isinstance(what, str) else ["-m", "opscope", *what]
    arguments = [one.replace("{}", str(file)) if isinstance(what, list) else one for one in arguments]
    arguments[-2:] = ["--brief"] if checkout != ROOT and case == "first" else arguments[-2:]  # until 2026-11
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    if case != "hta":
        environment["PYTHONPATH"] = str(checkout / "src")
    environment["PYTHONPYCACHEPREFIX"] = f"{tempfile.gettempdir()}/modules{checkout}"
    with tempfile.TemporaryFile() as printed:
        began = time.perf_counter()
        child = subprocess.Popen(
            [python, *arguments], env=environment, stdout=printed, stderr=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - began
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise RuntimeError(f"{case} of {file.name} exits with {child.returncode}")
        if what in (CASES["scan"], CASES["memcpy"]):
            printed.seek(0)
            seconds = float(printed.read())
    cpu_s = usage.ru_utime + usage.ru_stime
    return {"seconds": seconds, "cpu_s": cpu_s, "peak_mb": usage.ru_maxrss * 1024 / 1e6}


def take_samples(runs: dict[str, tuple[Any, ...]], repetitions: int) -> dict[str, list[dict[str, float]]]:
    """All samples of all runs, which take turns; a first turn compiles modules and is not counted."""
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in runs}
    for repetition in range(repetitions + 1):
        for name, run in runs.items():
            if repetition or run[1] == PACKAGED:
                sample = run_case(*run)
                if repetition:
                    samples[name].append(sample)
                    print(f"{repetition} {name:24} {sample}", file=sys.stderr, flush=True)
    return samples


def figures(samples: dict[str, list[dict[str, float]]], sizes: dict[str, int]) -> list[dict[str, Any]]:
    """Every figure that the samples allow, with what is wanted of it."""

    def of(name: str, key: str = "seconds") -> tuple[float, float]:
        taken = [sample[key] for sample in samples[name]]
        return statistics.median(taken), min(taken)

    found: list[dict[str, Any]] = []

    def ratio(name: str, above: str, below: str, wanted: str, key: str = "seconds") -> None:
        if samples.get(above) and samples.get(below):
            values = [one / other for one, other in zip(of(above, key), of(below, key), strict=True)]
            found.append({"figure": name, "median": values[0], "of_least": values[1], "wanted": wanted})

    for case, file, reference, least in _FIGURES:
        of_file = "small" if file == "compressed" else file
        wanted = f">= {least}" if least else ""
        ratio(f"{reference} / {case}, {file}", f"{reference} {of_file}", f"{case} {file}", wanted)
    for case, most in _STARTS:
        wanted = f"<= {most}" if most else ""
        ratio(f"{case} / before, packaged", f"{case} this", f"{case} before", wanted)
        ratio(f"{case} / before, packaged, CPU", f"{case} this", f"{case} before", wanted, "cpu_s")
    for case, file, most in _PEAKS_MB:
        if samples.get(f"{case} {file}"):
            peak_mb = max(sample["peak_mb"] for sample in samples[f"{case} {file}"])
            found.append({"figure": f"peak MB of {case}, {file}", "median": peak_mb, "wanted": f"<= {most}"})
    if samples.get("limited_2gb huge"):
        per_byte = [of(name)[0] / sizes[name.split()[1]] for name in ("limited_2gb huge", "limited large")]
        value = {"figure": "seconds per byte, huge / large", "median": per_byte[0] / per_byte[1]}
        found.append({**value, "wanted": "<= 1.2"})
    return found


def main() -> int:
    """Measure, print and write."""
    parser = parser_of(__doc__, "reading.json")
    parser.add_argument("recording", type=Path)
    parser.add_argument("--make", type=Path, help="make this trace, and measure nothing")
    parser.add_argument("--size-mb", type=float, default=180, help="of the trace that is made")
    parser.add_argument("--against", type=Path, help="another checkout of opscope, for small traces")
    parser.add_argument("--hta-python", help="an interpreter that has HolisticTraceAnalysis")
    parser.add_argument("--huge", action="store_true", help="10 GB too, once")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="for the traces")
    options = parser.parse_args()
    if options.make:
        make_trace(options.recording, options.make, int(options.size_mb * 1e6))
        return 0
    files = {"small": ("180MB.json", 180), "compressed": ("180MB.json.gz", 180), "large": ("1GB.json", 1_000)}
    files |= {"huge": ("10GB.json", 10_000)} if options.huge else {}
    paths = {
        key: options.folder / f"{options.recording.name.split('.')[0]}_{name}"
        for key, (name, _) in files.items()
    }
    for key, path in paths.items():
        if not path.exists():
            make_trace(options.recording, path, files[key][1] * 1_000_000)
    runs: dict[str, tuple[Any, ...]] = {}
    for case, file in {(row[end], row[1]) for row in _FIGURES for end in (0, 2)}:
        of_file = "small" if (file, case) == ("compressed", "orjson") else file
        if case != "hta" or options.hta_python:
            python = options.hta_python if case == "hta" else sys.executable
            runs[f"{case} {of_file}"] = (case, paths[of_file], python, ROOT)
    for case, _ in _STARTS:
        runs[f"{case} this"] = (case, PACKAGED, sys.executable, ROOT)
        if options.against:
            runs[f"{case} before"] = (case, PACKAGED, sys.executable, options.against.resolve())
    samples = take_samples(runs, options.repetitions)
    if options.huge:
        samples |= take_samples({"limited_2gb huge": ("limited_2gb", paths["huge"], sys.executable, ROOT)}, 1)
    found = figures(samples, {key: path.stat().st_size for key, path in paths.items()})
    for one in found:
        least = f"{one['of_least']:8.2f}" if "of_least" in one else " " * 8
        print(f"{one['figure']:40}{one['median']:10.2f}{least}  {one['wanted']}")
    known = environment("duckdb", "orjson", "numpy")
    result = {"environment": known, "recording": options.recording.name, "figures": found, "samples": samples}
    write(options.output, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
