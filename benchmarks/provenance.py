"""How exact provenance is, and how fast: over every recorded trace given, libraries, and ground truth.

    python benchmarks/provenance.py --traces FOLDER [--ground-truth FOLDER] [--libraries FILE …]
        [--vendor-libraries FILE …] [--events-trace TRACE]

Prints one table of accuracy over the traces (fractions of device time), then the other figures with their
targets. Fractions are exact; times are of this machine, in this run, and of processes of their own where
memory counts. Results go to `results/provenance.json`.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

HERE = Path(__file__).resolve().parent
SAMPLE = 500
VENDOR_SAMPLE = 5000
REPETITIONS = 5
TRACE_SUFFIXES = (".json", ".json.gz", ".tar.gz")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--traces", type=Path, nargs="+", default=[])
    parser.add_argument("--ground-truth", type=Path)
    parser.add_argument("--libraries", type=Path, nargs="*", default=[])
    parser.add_argument("--vendor-libraries", type=Path, nargs="*", default=[])
    parser.add_argument("--events-trace", type=Path, help="a trace of about 650 k events, to time enrichment")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "provenance.json")
    parser.add_argument("--read-library", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read_library is not None:
        print(json.dumps(read_one_library(options.read_library)))
        return 0
    results: dict[str, Any] = {"environment": environment()}
    if options.traces:
        results["traces"] = []
        for folder in options.traces:
            with tempfile.TemporaryDirectory() as scratch:
                rows = list(accuracy_rows(unpacked(folder, Path(scratch))))
            results["traces"] += [*rows, together(f"**all of {folder.name}**", rows)]
        print_accuracy(results["traces"])
    if options.ground_truth is not None:
        results["ground_truth"] = ground_truth(options.ground_truth)
        results["names"] = name_figures(options.ground_truth)
    if options.libraries:
        results["libraries"] = [library_figures(path) for path in options.libraries]
    if options.vendor_libraries:
        results["vendor_names"] = vendor_figures(options.vendor_libraries)
    if options.events_trace is not None:
        results["enrichment"] = enrichment_figures(options.events_trace)
    print(json.dumps({key: value for key, value in results.items() if key != "traces"}, indent=2))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=2) + "\n")
    return 0


def environment() -> dict[str, Any]:
    import duckdb

    import opscope

    return {
        "python": platform.python_version(),
        "opscope": opscope.__version__,
        "duckdb": duckdb.__version__,
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
    }


# Accuracy over recorded traces


def accuracy_rows(root: Path) -> Iterator[dict[str, Any]]:
    from opscope.analysis.provenance import read_provenance
    from opscope.analysis.summary import summarize

    for name, source in trace_sources(root):
        session = load_or_none(source)
        if session is None:
            continue
        with session:
            started = time.perf_counter()
            provenance = read_provenance(session)
            enrich_s = time.perf_counter() - started
            summary = summarize(session)
        if not summary.has_device or summary.accuracy is None:
            continue
        other = [one.fraction for one in summary.categories if one.category == "other"]
        yield {
            "trace": name,
            "torch_version": provenance.torch_version,
            "torch_version_grade": provenance.torch_version_grade,
            "hit_rates": dict(provenance.hit_rates),
            "candidate_kernels": provenance.candidate_kernels,
            "enrich_s": enrich_s,
            "device_ns": summary.device_time_ns,
            "other_category_fraction": sum(other),
            **{
                key: value
                for key, value in msgspec.structs.asdict(summary.accuracy).items()
                if key.endswith(("_fraction", "_ns")) or key == "by_grade"
            },
        }


def unpacked(root: Path, folder: Path) -> Path:
    """A folder of traces and of those in its archives; links, so that nothing is copied twice."""
    import tarfile

    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        target = folder / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.name.endswith(".tar.gz"):
            with tarfile.open(path) as archive:
                archive.extractall(target.with_name(path.name.removesuffix(".tar.gz")), filter="data")
        else:
            target.symlink_to(path.resolve())
    return folder


def trace_sources(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Every trace below a folder; ranks that lie in one folder of `rank*` files are one source."""
    files = sorted(path for path in root.rglob("*") if path.name.endswith((".json", ".json.gz")))
    for folder in sorted({path.parent for path in files}):
        own = [path for path in files if path.parent == folder]
        ranks = [path for path in own if "rank" in path.name]
        if len(ranks) > 1:
            yield str(folder.relative_to(root)), [str(path) for path in ranks]
        for path in own:
            if len(ranks) < 2 or path not in ranks:
                yield str(path.relative_to(root)), [str(path)]


def load_or_none(source: list[str]) -> Any:
    import opscope
    from opscope.errors import InputError

    try:
        return opscope.load(source)
    except InputError as error:
        print(f"skipped {source[0]}: {error}", file=sys.stderr)
        return None


# Title, fraction, and the time it is a fraction of.
COLUMNS = (
    ("attributed", "attributed_fraction", "device_ns"),
    ("yaml entry", "aten_operator_entry_fraction", "aten_operator_ns"),
    ("file", "aten_operator_file_fraction", "aten_operator_ns"),
    ("line", "aten_operator_line_fraction", "aten_operator_ns"),
    ("unit", "aten_kernel_unit_fraction", "torch_kernel_ns"),
    ("one unit", "aten_kernel_single_unit_fraction", "torch_kernel_ns"),
    ("family", "family_fraction", "device_ns"),
    ("other", "other_category_fraction", "device_ns"),
)


def together(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """All traces as one: each fraction of the time of all of them."""
    total: dict[str, Any] = {"trace": name, "torch_version": "", "torch_version_grade": None}
    for _, key, weight in COLUMNS:
        known = [row for row in rows if row[key] is not None]
        whole_ns = sum(row[weight] for row in known)
        total[key] = sum(row[key] * row[weight] for row in known) / whole_ns if whole_ns else None
    return total


def print_accuracy(rows: list[dict[str, Any]]) -> None:
    print("| trace | torch | " + " | ".join(title for title, *_ in COLUMNS) + " | lines by grade |")
    print("|---|---|" + "---:|" * len(COLUMNS) + "---|")
    for row in rows:
        version = "unknown" if row["torch_version"] is None else row["torch_version"]
        if row["torch_version_grade"] == "neighbor_version":
            version += " (neighbor)"
        cells = " | ".join(percent(row[key]) for _, key, _ in COLUMNS)
        print(f"| {row['trace']} | {version} | {cells} | {line_grades(row)} |")


def line_grades(row: dict[str, Any]) -> str:
    """Shares of the time of operators by the grade of their line."""
    shares = row.get("by_grade", {}).get("operator_line", {})
    return ", ".join(f"{percent(share)} {grade}" for grade, share in shares.items() if grade != "unknown")


def percent(fraction: float | None) -> str:
    return "–" if fraction is None else f"{100 * fraction:.2f} %"


# Ground truth: what each release's own binary registers


def ground_truth(folder: Path) -> dict[str, Any]:
    from opscope.provenance.torch_releases import release

    figures = {}
    for file in sorted(folder.glob("kernel_units_*.json.xz")):
        version = file.name.removeprefix("kernel_units_").removesuffix(".json.xz")
        truth = json.loads(lzma.decompress(file.read_bytes()))
        table = release(version)
        some = random.Random(0).sample(sorted(truth), SAMPLE)
        for label, names in (("sample", some), ("all", sorted(truth))):
            answers = [(set(table.units_of(name)), set(truth[name])) for name in names]
            right = sum({path.rpartition("/")[2] for path in got} == want for got, want in answers)
            none = sum(not got for got, _ in answers)
            figures.setdefault(version, {})[label] = {
                "names": len(names),
                "right_fraction": right / len(names),
                "wrong": len(names) - right - none,
            }
    return figures


def name_figures(folder: Path) -> dict[str, Any]:
    """Share of torch's own kernel names with a family, and names decoded per second."""
    from opscope.provenance.kernel_names.decoder import decode

    figures = {}
    for file in sorted(folder.glob("kernel_units_*.json.xz")):
        names = sorted(json.loads(lzma.decompress(file.read_bytes())))
        started = time.perf_counter()
        known = sum(decode.__wrapped__(name).family is not None for name in names)
        seconds = time.perf_counter() - started
        figures[file.name] = {
            "names": len(names),
            "family_fraction": known / len(names),
            "names_per_s": len(names) / seconds,
        }
    return figures


# Binaries


def library_figures(path: Path) -> dict[str, Any]:
    """One library read in processes of its own: the first time, and again from the cache; medians."""
    command = [sys.executable, __file__, "--read-library", str(path)]
    runs = [
        json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for _ in range(REPETITIONS)
    ]
    middle = sorted(runs, key=lambda run: run["read_s"])[len(runs) // 2]
    return {**middle, "read_s_samples": [run["read_s"] for run in runs]}


def read_one_library(path: Path) -> dict[str, Any]:
    from opscope.provenance.binaries.library import cached_library, read_library

    started = time.perf_counter()
    read_library(path)
    first = {"read_s": time.perf_counter() - started, "peak_rss_mb": peak_memory_mb()}
    kernels = kernels_by_name(path)
    with tempfile.TemporaryDirectory() as folder:
        cached_library(path, Path(folder))
        started = time.perf_counter()
        cached_library(path, Path(folder)).units_of(next(iter(kernels)))
        first["second_look_up_s"] = time.perf_counter() - started
    return {
        "library": path.name,
        "size_mb": path.stat().st_size / 1e6,
        "kernels": len(kernels),
        "units": len(frozenset().union(*kernels.values())),
        **first,
    }


def kernels_by_name(path: Path) -> dict[str, Any]:
    from opscope.provenance.binaries import elf, library

    with elf.open_elf(path) as file:
        return library.by_shown_name(library.units_by_kernel(file))


def peak_memory_mb() -> float:
    """Peak resident memory of this process; `ru_maxrss` would count what it was forked from."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def vendor_figures(libraries: list[Path]) -> dict[str, Any]:
    """Share of a sample of each vendor library's own kernel names that have a family."""
    from opscope.errors import InputError
    from opscope.provenance.kernel_names.decoder import decode

    figures = {}
    for path in libraries:
        try:
            names = sorted(kernels_by_name(path))
        except InputError as error:
            print(f"skipped {path.name}: {error}", file=sys.stderr)
            continue
        sample = random.Random(0).sample(names, min(VENDOR_SAMPLE, len(names)))
        known = sum(decode(name).family is not None for name in sample)
        figures[path.name] = {
            "names": len(names),
            "sample": len(sample),
            "family_fraction": known / len(sample) if sample else None,
        }
    return figures


# Enrichment of a large Session


def enrichment_figures(trace: Path) -> dict[str, Any]:
    import opscope
    from opscope.provenance.resolution.resolvers import annotate

    with opscope.load(str(trace)) as session:
        events = sum(
            session.scalar(f"SELECT count(*) FROM {table}")
            for table in ("operators", "runtime_calls", "device_activities", "frames", "annotations")
        )
        started = time.perf_counter()
        annotate(session)
        return {"events": events, "annotate_s": time.perf_counter() - started}


if __name__ == "__main__":
    sys.exit(main())
