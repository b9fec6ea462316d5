"""How much is known of the GPU time of recorded traces: provenance and costs; and how fast that is found out.

    python benchmarks/coverage.py --traces FOLDER … [--ground-truth FOLDER] [--libraries FILE …]
        [--vendor-libraries FILE …] [--events-trace TRACE]

Prints one table over the traces (fractions of device time), then the other figures. Fractions are exact;
times are of this machine, in this run, and of processes of their own where memory counts. Of the large trace
(some 650 k events) it is timed how long provenance and costs take, the latter also over `orjson.loads`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
import random
import resource
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from harness import environment, median_s, parser_of, printed, write

SAMPLE, VENDOR_SAMPLE = 500, 5000
REPETITIONS = 5


def main() -> int:
    parser = parser_of(__doc__, "coverage.json")
    parser.add_argument("--traces", type=Path, nargs="+", default=[])
    parser.add_argument("--ground-truth", type=Path, help="folder of kernel_units_VERSION.json.xz")
    parser.add_argument("--libraries", type=Path, nargs="*", default=[])
    parser.add_argument("--vendor-libraries", type=Path, nargs="*", default=[])
    parser.add_argument("--events-trace", type=Path, help="a large trace, to time finding out")
    parser.add_argument("--read-library", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read_library is not None:
        print(json.dumps(read_one_library(options.read_library)))
        return 0
    results: dict[str, Any] = {"environment": environment("duckdb", "orjson"), "traces": []}
    for folder in options.traces:
        with tempfile.TemporaryDirectory() as scratch:
            rows = list(trace_rows(unpacked(folder, Path(scratch))))
        results["traces"] += [*rows, together(f"**all of {folder.name}**", rows)]
    print_table(results["traces"])
    if options.ground_truth is not None:
        results["ground_truth"] = ground_truth(options.ground_truth)
    if options.libraries:
        results["libraries"] = [library_figures(path) for path in options.libraries]
    if options.vendor_libraries:
        results["vendor_names"] = vendor_figures(options.vendor_libraries)
    if options.events_trace is not None:
        results["large"] = large_figures(options.events_trace)
    print(json.dumps({key: value for key, value in results.items() if key != "traces"}, indent=2))
    write(options.output, results)
    return 0


def trace_rows(root: Path) -> Iterator[dict[str, Any]]:
    import opscope
    from opscope.analysis.summary import Summary
    from opscope.errors import InputError

    for name, source in trace_sources(root):
        try:
            session = opscope.load(source)
        except InputError as error:
            print(f"skipped {name}: {error}", file=sys.stderr)
            continue
        with session:
            summary = Summary(session).complete()
            if not summary.has_device or summary.accuracy is None:
                continue
            costs = cost_figures(session)
        accuracy = msgspec.structs.asdict(summary.accuracy)
        yield {
            "trace": name,
            "torch_version": summary.torch_version,
            "torch_version_grade": summary.torch_version_grade,
            "device_ns": summary.device_time_ns,
            "other_category_fraction": sum(
                one.fraction for one in summary.categories if one.category == "other"
            ),
            **{key: accuracy[key] for key in accuracy if key.endswith(("_fraction", "_ns", "by_grade"))},
            **costs,
        }


def cost_figures(session: Any) -> dict[str, Any]:
    """Shares of device time with known least bytes and operations, and what has the most unknown time."""
    from opscope.operators.session_costs import read_costs

    rows = read_costs(session)
    total_ns = sum(row.self_device_ns for row in rows)
    if not total_ns:
        return {"bytes_fraction": None, "flop_fraction": None}
    return {
        "bytes_fraction": sum(r.self_device_ns for r in rows if r.cost.min_bytes is not None) / total_ns,
        "flop_fraction": sum(r.self_device_ns for r in rows if r.cost.flop_count is not None) / total_ns,
        "cost_unknown": [
            {"name": row.name[:100], "device_ns": row.self_device_ns, "reason": row.cost.reason}
            for row in rows
            if row.cost.reason is not None
        ][:5],
    }


def unpacked(root: Path, folder: Path) -> Path:
    """A folder of traces and of those in its archives; links, so that nothing is copied twice."""
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
    ("bytes", "bytes_fraction", "device_ns"),
    ("FLOP", "flop_fraction", "device_ns"),
)


def together(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """All traces as one: each fraction of the time of all of them."""
    total: dict[str, Any] = {"trace": name, "torch_version": "", "torch_version_grade": None}
    for _, key, weight in COLUMNS:
        known = [row for row in rows if row[key] is not None]
        whole_ns = sum(row[weight] for row in known)
        total[key] = sum(row[key] * row[weight] for row in known) / whole_ns if whole_ns else None
    return total


def print_table(rows: list[dict[str, Any]]) -> None:
    def percent(fraction: float | None) -> str:
        return "–" if fraction is None else f"{100 * fraction:.2f} %"

    print("| trace | torch | " + " | ".join(title for title, *_ in COLUMNS) + " | lines by grade |")
    print("|---|---|" + "---:|" * len(COLUMNS) + "---|")
    for row in rows:
        version = "unknown" if row["torch_version"] is None else row["torch_version"]
        if row["torch_version_grade"] == "neighbor_version":
            version += " (neighbor)"
        cells = " | ".join(percent(row[key]) for _, key, _ in COLUMNS)
        shares = row.get("by_grade", {}).get("operator_line", {})
        grades = ", ".join(f"{percent(one)} {grade}" for grade, one in shares.items() if grade != "unknown")
        print(f"| {row['trace']} | {version} | {cells} | {grades} |")


def ground_truth(folder: Path) -> dict[str, Any]:
    """What each release's own binary registers, beside what its table says, and how names are decoded."""
    from opscope.provenance.kernel_names.decoder import decode
    from opscope.provenance.torch_releases import release

    figures = {}
    for file in sorted(folder.glob("kernel_units_*.json.xz")):
        version = file.name.removeprefix("kernel_units_").removesuffix(".json.xz")
        truth = json.loads(lzma.decompress(file.read_bytes()))
        table, names = release(version), sorted(truth)
        started = time.perf_counter()
        known = sum(decode.__wrapped__(name).family is not None for name in names)
        decoded_s = time.perf_counter() - started
        found: dict[str, Any] = {"family_fraction": known / len(names), "names_per_s": len(names) / decoded_s}
        for label, some in (("sample", random.Random(0).sample(names, SAMPLE)), ("all", names)):
            answers = [(set(table.units_of(name)), set(truth[name])) for name in some]
            right = sum({path.rpartition("/")[2] for path in got} == want for got, want in answers)
            none = sum(not got for got, _ in answers)
            found[label] = {
                "names": len(some),
                "right_fraction": right / len(some),
                "wrong": len(some) - right - none,
            }
        figures[version] = found
    return figures


def library_figures(path: Path) -> dict[str, Any]:
    """One library read in processes of its own: the first time, and again from the cache; medians."""
    command = [sys.executable, __file__, "--output", "-", "--read-library", path]
    runs = [json.loads(printed(command)) for _ in range(REPETITIONS)]
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
        known = [decode(name).family is not None for name in sample]
        figures[path.name] = {
            "names": len(names),
            "sample": len(sample),
            "family_fraction": statistics.fmean(known) if known else None,
        }
    return figures


def large_figures(trace: Path) -> dict[str, Any]:
    """How long provenance and costs of a large trace take, after imports."""
    import orjson

    import opscope
    from opscope.operators.session_costs import fill_costs
    from opscope.provenance.resolution.resolvers import annotate

    text = gzip.decompress(trace.read_bytes()) if trace.suffix == ".gz" else trace.read_bytes()
    orjson_s = median_s(lambda: orjson.loads(text))
    with opscope.load(str(trace)) as session:
        events = sum(
            session.scalar(f"SELECT count(*) FROM {table}")
            for table in ("operators", "runtime_calls", "device_activities", "frames", "annotations")
        )
        annotate_s = median_s(lambda: annotate(session), 1)

        def fill() -> None:
            session.connection.execute("DELETE FROM metadata WHERE key = 'costs'; DELETE FROM call_costs")
            fill_costs(session)

        fill()  # imports and caches
        fill_s = median_s(fill)
    return {
        "events": events,
        "annotate_s": annotate_s,
        "fill_costs_s": fill_s,
        "orjson_loads_s": orjson_s,
        "fill_over_orjson": fill_s / orjson_s,
    }


if __name__ == "__main__":
    sys.exit(main())
