"""How much of the GPU time has a known cost, and what knowing it costs.

    python benchmarks/costs.py --traces FOLDER … [--events-trace TRACE] [--output FILE.json]

Per trace the share of device time with known least bytes and with known operations. Times are of this
machine, after imports, the median of five runs, and as ratios to `orjson.loads` of the same file's text.
Results go to `results/costs.json`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REPETITIONS = 5
TRACE_SUFFIXES = (".json", ".json.gz")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--traces", type=Path, nargs="+", default=[])
    parser.add_argument("--events-trace", type=Path, help="a trace of about 650 k events, to time filling")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "costs.json")
    options = parser.parse_args()
    files = [file for source in options.traces for file in trace_files(source)]
    results: dict[str, Any] = {
        "environment": environment(),
        "traces": [row for file in files if (row := measured(file))],
    }
    print_table(results["traces"])
    if options.events_trace is not None:
        results["large"] = measured(options.events_trace)
        print_table([results["large"]])
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=1) + "\n")
    print(f"Wrote {options.output}", file=sys.stderr)
    return 0


def trace_files(source: Path) -> Iterator[Path]:
    if source.is_file():
        yield source
        return
    yield from sorted(file for file in source.rglob("*") if file.name.endswith(TRACE_SUFFIXES))


def environment() -> dict[str, Any]:
    import duckdb
    import orjson

    return {
        "python": platform.python_version(),
        "cpu_count": os.cpu_count(),
        "duckdb": duckdb.__version__,
        "orjson": orjson.__version__,
    }


def measured(file: Path) -> dict[str, Any] | None:
    """Coverage and times of one trace; None if it has no device time."""
    import orjson

    import opscope
    from opscope.errors import InputError

    try:
        session = opscope.load(str(file))
    except InputError as error:
        print(f"skipped {file}: {error}", file=sys.stderr)
        return None
    with session:
        device_ns = session.scalar("SELECT sum(duration_ns)::BIGINT FROM device_activities")
        if not device_ns:
            return None
        fill_s, rows = filling(session)
    text = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    reference_s = median_time(lambda: orjson.loads(text))
    return {
        "trace": "/".join(file.parts[-2:]),
        "device_ms": device_ns / 1e6,
        "distinct_calls": len(rows),
        "known": coverage(rows),
        "unknown": unknown(rows),
        "fill_s": fill_s,
        "orjson_loads_s": reference_s,
        "fill_over_orjson": fill_s / reference_s,
    }


def filling(session: Any) -> tuple[float, Any]:
    """Median seconds to fill a Session's costs anew, and the rows."""
    from opscope.operators.session_costs import fill_costs, read_costs

    def fill() -> None:
        session.connection.execute("DELETE FROM metadata WHERE key = 'costs'; DELETE FROM call_costs")
        fill_costs(session)

    fill()  # imports and caches
    return median_time(fill), read_costs(session)


def coverage(rows: Any) -> dict[str, float]:
    total = sum(row.self_device_ns for row in rows)
    return {
        "bytes_fraction": sum(r.self_device_ns for r in rows if r.cost.min_bytes is not None) / total,
        "flop_fraction": sum(r.self_device_ns for r in rows if r.cost.flop_count is not None) / total,
    }


def unknown(rows: Any) -> list[dict[str, Any]]:
    """What has the most unknown time."""
    return [
        {"name": row.name[:100], "device_ns": row.self_device_ns, "reason": row.cost.reason}
        for row in rows
        if row.cost.reason is not None
    ][:5]


def median_time(run: Callable[[], object]) -> float:
    samples = []
    for _ in range(REPETITIONS):
        started = time.perf_counter()
        run()
        samples.append(time.perf_counter() - started)
    return statistics.median(samples)


def print_table(rows: list[dict[str, Any]]) -> None:
    titles = ("trace", "calls", "bytes", "FLOPs", "fill", "/ orjson")
    print("| " + " | ".join(titles) + " |")
    print("|---|" + "---:|" * (len(titles) - 1))
    for row in rows:
        cells = (
            row["trace"],
            str(row["distinct_calls"]),
            *(f"{100 * row['known'][key]:.2f} %" for key in ("bytes_fraction", "flop_fraction")),
            f"{row['fill_s']:.3f} s",
            f"{row['fill_over_orjson']:.2f}",
        )
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    sys.exit(main())
