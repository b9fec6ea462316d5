"""What a GPU reaches at its best, by `opscope devices --measure`'s own function, as JSON.

    python benchmarks/gpu_limits.py --output benchmarks/results/h200_limits.json [--repeats 3]

The measurement is repeated in one process; the first is kept whole, of the others the rates, so that their
spread is known. What was expected of an H200 before the first run: copy 4.28 TB/s (as measured for
benchmarks), reading alone 4.2 to 4.6 TB/s, L2 5 to 9 TB/s; fp32 51, TF32 409, bf16 810, fp16 780, fp64 50 to
65, fp8 1200 to 1700 TFLOP/s, int8 1000 to 1700 TOP/s; a launch 1.5 to 4 µs, empty kernels 1 to 2.5 µs
apart.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

from gpu_setup import parser_of, write
from opscope.benchmarking.limits import measure_device
from opscope.errors import OpscopeError
from opscope.hardware.devices import match_device
from opscope.hardware.measured import save_measured
from opscope.model.measured_limits import MeasuredLimits
from opscope.report.devices import measured_document, measured_json
from opscope.report.terminal import render_terminal


def main(argv: list[str] | None = None) -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--save", type=Path, help="also write the first measurement as `opscope devices` does"
    )
    options = parser.parse_args(argv)
    try:
        runs = [measure_device(options.device) for _ in range(options.repeats)]
    except OpscopeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    document = summary(runs)
    write(options.output, document)
    if options.save is not None:
        save_measured(options.save, runs[0])
    show(runs[0], document)
    return 0


def summary(runs: list[MeasuredLimits]) -> dict[str, Any]:
    """The first measurement, and of all of them each rate's and time's values with their spread."""
    first = runs[0]
    values: dict[str, list[float]] = {}
    for run in runs:
        for rate in run.rates:
            values.setdefault(rate.name, []).append(rate.per_s)
        for time in run.times:
            values.setdefault(time.name, []).append(time.median_ns)
    return {
        "measured": measured_json(first, spec_of(first)),
        "duration_s": [run.duration_ns / 1e9 for run in runs],
        "repeats": {
            name: {"values": found, "spread": (max(found) - min(found)) / statistics.median(found)}
            for name, found in values.items()
        },
    }


def spec_of(measured: MeasuredLimits) -> Any:
    if measured.compute_capability is None:
        return None
    return match_device(
        measured.device,
        compute_capability=measured.compute_capability,
        memory_bytes=measured.memory_bytes,
        sm_count=measured.sm_count,
    ).spec


def show(measured: MeasuredLimits, document: dict[str, Any]) -> None:
    from rich.console import Console

    Console(width=120).print(render_terminal(measured_document(measured, spec_of(measured))))
    for name, found in document["repeats"].items():
        print(f"  {name:18} spread over {len(found['values'])} runs {100 * found['spread']:.2f} %")
    print(f"  seconds: {', '.join(f'{one:.1f}' for one in document['duration_s'])}")


if __name__ == "__main__":
    sys.exit(main())
