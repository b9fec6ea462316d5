"""Are the benchmark's figures right, and how good are the kernels? Needs a CUDA device (one section: ncu).

    python benchmarks/gpu_bench.py --output FILE.json [--sections suites ncu …] [--device cuda] [--size 8192]

Sections, each within two minutes on an H200; one that fails is recorded with its error, and the others go on:

ceilings       Copying and matrix products, as `opscope bench` measures them, cold and hot.
suites         gelu, square, add, softmax, layer_norm at fp32 size² and matmul at bf16 size³: the median of
               every implementation beside the copy ceiling of the same run, Triton's product beside torch's.
agreement      Our median beside `triton.testing.do_bench(return_mode="median")`, taking turns.
ncu            Device time by torch's profiler (a recording of opscope) beside ncu's `gpu__time_duration.sum`.
repeatability  The verdicts of runs on one implementation under two names, and beside 3 % more work.
overhead       The part of the sampling time that no sample used.
capture        A step under `opscope.profile` beside the same step under `torch.profiler`, options alike.

Predictions for an H200, written down before the first run:

* suites: 512 MiB at 4.1 to 4.3 TB/s is 125 to 131 µs for every memory-bound kernel that reads and writes
  once, 192 µs for add; good ones lie between 95 % and 102 % of the copy ceiling, which is only one more
  streaming kernel. Triton's product reaches 85 % of torch's.
* agreement: ratio 1.00 ± 0.01. Both overwrite 256 MiB before each call and hide the launch behind that, and
  at this size no inputs are rotated, so both time the same thing.
* ncu: ratio 1.00 ± 0.02 when both find the cache as a 256 MiB overwrite leaves it. ncu's own default
  (`--cache-control all`) leaves a clean cache, in which a kernel that writes much ends early, its last lines
  not yet written back: about 5 % shorter. Event time is 1 to 4 µs longer than either.
* repeatability: "same" and "slower" in all 20 runs: samples spread by 0.5 %, medians of 20 by 0.1 %.
* overhead: 5 to 15 % for a 10 µs kernel (a sample takes about 100 µs with the flush), under 2 % for 1 ms.
* capture: 1.00 to 1.03 per step: within the window both run the same profiler, and only `step()` differs.

With `--device cpu --size 256` the sections that need no GPU run as a rehearsal.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_bench_capture import measure_capture
from gpu_bench_device_time import measure_agreement, measure_ncu, run_child
from gpu_setup import (
    Setup,
    environment,
    environment_facts,
    parser_of,
    recording_errors,
    release,
    timed,
    write,
)

MEMORY_BOUND = (
    ("gelu", {"approximate": "tanh"}),
    ("gelu", {"approximate": "erf"}),
    ("square", {}),
    ("add", {}),
    ("softmax", {}),
    ("layer_norm", {}),
)
TARGET_COPY_FRACTION = 0.95
TARGET_MATMUL_FRACTION = 0.80


Section = Callable[[Setup], dict[str, Any]]


def measure_ceilings(setup: Setup) -> dict[str, Any]:
    """Every ceiling of the device, cold and hot."""
    from opscope.benchmarking.limits import CEILINGS, measure_ceilings
    from opscope.benchmarking.timer import benchmark_timer
    from opscope.model.benchmark import CacheState

    results: dict[str, Any] = {}
    for state in (CacheState.COLD, CacheState.HOT):
        timer = benchmark_timer(setup.device, None, state)
        for one in measure_ceilings(setup.device, CEILINGS, timer):
            figures = {"per_s": one.per_s, "unit": one.unit, "how": one.how}
            results.setdefault(one.name, {})[str(state)] = figures
            print(f"  {one.name:16} {state!s:5} {one.per_s / 1e12:9.3f} T{one.unit}/s  {one.how}")
    return {"missing": [name for name in CEILINGS if name not in results], **results}


def measure_suites(setup: Setup) -> dict[str, Any]:
    """Every suite at its large size: medians, parts of the copy ceiling, Triton's product beside torch's."""
    results: dict[str, Any] = {}
    square = (setup.size, setup.size)
    for name, parameters in MEMORY_BOUND:
        title = " ".join([name, *parameters.values()])
        with recording_errors(results, title):
            results[title] = memory_bound_suite(setup, name, parameters, square, title)
    with recording_errors(results, "matmul bfloat16"):
        results["matmul bfloat16"] = matmul_suite(setup)
    return results


def memory_bound_suite(
    setup: Setup, name: str, parameters: dict[str, str], shape: tuple[int, ...], title: str
) -> dict[str, Any]:
    """One suite whose good implementations should move bytes as fast as a copy."""
    result = run_suite(setup, name, parameters, shape, "float32")
    copies = {one.name: one.per_s for one in result.ceilings if one.name.startswith("copy")}
    rows = {}
    for row in result.rows:
        fraction = large_fraction = None
        if row.bytes_per_s is not None and copies:
            fraction, large_fraction = (row.bytes_per_s / copies[name] for name in ("copy", "copy_large"))
        is_good = str(row.engine) in {"cuda", "triton"} and not row.teaching and str(row.status) == "ok"
        rows[row.name] = {
            **row_figures(row),
            "copy_fraction": fraction,
            "copy_large_fraction": large_fraction,
            "target_met": fraction >= TARGET_COPY_FRACTION if is_good and fraction is not None else None,
        }
        shares = "" if fraction is None else f"{fraction:7.1%} of copy, {large_fraction:6.1%} of a large one"
        print_row(title, row, shares)
    return {"copy_bytes_per_s": copies, "rows": rows, **run_figures(result)}


def matmul_suite(setup: Setup) -> dict[str, Any]:
    """The bf16 product: Triton's rate over torch's."""
    result = run_suite(setup, "matmul", {}, (setup.size,) * 3, "bfloat16")
    reference = result.row(result.reference).median_ns
    rows = {}
    for row in result.rows:
        fraction = reference / row.median_ns if reference and row.median_ns else None
        is_good = str(row.engine) == "triton" and not row.teaching and str(row.status) == "ok"
        rows[row.name] = {
            **row_figures(row),
            "flop_per_s": row.flop_per_s,
            "rate_over_torch": fraction,
            "target_met": fraction >= TARGET_MATMUL_FRACTION if is_good and fraction is not None else None,
        }
        rate = "" if row.flop_per_s is None else f"{row.flop_per_s / 1e12:7.1f} TFLOP/s"
        print_row("matmul bfloat16", row, rate + ("" if fraction is None else f" {fraction:7.1%} of torch"))
    return {"rows": rows, **run_figures(result)}


def run_suite(setup: Setup, name: str, parameters: dict[str, str], shape: tuple[int, ...], dtype: str) -> Any:
    """A suite's result with the options `opscope bench` has by default."""
    from opscope.benchmarking.run import run_benchmark
    from opscope.benchmarking.suites import suite
    from opscope.model.benchmark import BenchmarkOptions

    problem = suite(name).problem({"shape": shape, "dtype": dtype, **parameters}, device=setup.device)
    return run_benchmark(problem, BenchmarkOptions(profile=False), environment=environment())


def row_figures(row: Any) -> dict[str, Any]:
    """What the results keep of one implementation."""
    return {
        "status": str(row.status),
        "reason": row.reason,
        "engine": str(row.engine),
        "teaching": row.teaching,
        "median_ns": row.median_ns,
        "interval_ns": row.interval_ns,
        "samples_ns": row.samples_ns,
        "ratio": row.ratio,
        "verdict": None if row.verdict is None else str(row.verdict),
        "max_relative_error": row.max_relative_error,
        "min_bytes": row.min_bytes,
        "build_ns": row.build_ns,
        "first_call_ns": row.first_call_ns,
        "peak_memory_bytes": row.peak_memory_bytes,
    }


def run_figures(result: Any) -> dict[str, Any]:
    """What the results keep of one run."""
    import msgspec

    return {
        "shape": result.shape,
        "setup_ns": result.setup_ns,
        "sampling_ns": result.sampling_ns,
        "in_samples_ns": result.in_samples_ns,
        "device_state_after": msgspec.to_builtins(result.device_state_after),
        "findings": [msgspec.to_builtins(finding) for finding in result.findings],
    }


def print_row(title: str, row: Any, figures: str) -> None:
    """One line of a suite's table."""
    median = "" if row.median_ns is None else f"{row.median_ns / 1e3:10.1f} µs"
    verdict = "" if row.verdict is None else str(row.verdict)
    what = "" if str(row.status) == "ok" else f"{row.status!s}: {row.reason}"
    teaching = "teaching" if row.teaching else ""
    print(f"  {title:16} {row.name:24} {median:>13} {figures} {verdict} {teaching} {what}".rstrip())


def measure_repeatability(setup: Setup) -> dict[str, Any]:
    """How often the same is called the same, and 3 % more work slower."""
    import torch
    from torch.nn.functional import gelu

    rows = setup.size
    x = torch.randn(rows, setup.size, device=setup.device)
    more = torch.randn(round(rows * 1.03), setup.size, device=setup.device)
    cases = {
        "same": ("same", lambda: gelu(x, approximate="tanh")),
        "3 % more work": ("slower", lambda: gelu(more, approximate="tanh")),
    }
    results: dict[str, Any] = {}
    for title, (expected, candidate) in cases.items():
        verdicts, ratios, counts = [], [], []
        for seed in range(setup.runs):
            pair = {"reference": lambda: gelu(x, approximate="tanh"), "candidate": candidate}
            row = timed(pair, setup, seed=seed).row("candidate")
            verdicts.append(str(row.verdict))
            ratios.append(row.ratio)
            counts.append(len(row.samples_ns))
        right = verdicts.count(expected)
        results[title] = {
            "verdicts": verdicts, "ratios": ratios, "samples": counts, "expected": expected, "right": right,
            "work_ratio": more.numel() / x.numel() if expected == "slower" else 1.0,
        }  # fmt: skip
        print(
            f"  {title:14} {right} of {setup.runs} runs say '{expected}'; ratios {min(ratios):.4f} to"
            f" {max(ratios):.4f}, median of {statistics.median(counts):.0f} samples"
        )
    return results


def measure_overhead(setup: Setup) -> dict[str, Any]:
    """The part of the sampling time outside samples, for a short kernel and a long one."""
    import torch
    from torch.nn.functional import gelu

    rows = (
        {"10 µs": setup.size // 16, "1 ms": setup.size * 8} if setup.is_cuda else {"short": 16, "long": 4096}
    )
    results: dict[str, Any] = {}
    for title, count in rows.items():
        x = torch.randn(count, setup.size, device=setup.device)
        for cache in ("cold", "hot"):
            from opscope.model.benchmark import CacheState

            call = functools.partial(gelu, x, approximate="tanh")
            result = timed(
                {"gelu": call}, setup, precision=0.0, max_samples=10**6, cache_state=CacheState(cache)
            )
            fraction = 1 - result.in_samples_ns / result.sampling_ns
            row = result.rows[0]
            results[f"{title} {cache}"] = {
                "median_ns": row.median_ns,
                "samples": len(row.samples_ns),
                "sampling_ns": result.sampling_ns,
                "in_samples_ns": result.in_samples_ns,
                "setup_ns": result.setup_ns,
                "outside_fraction": fraction,
                "within": fraction <= 0.20,
            }
            print(
                f"  {title:6} {cache:5} median {row.median_ns / 1e3:9.1f} µs, {len(row.samples_ns)} samples"
                f" in {result.sampling_ns / 1e9:.2f} s, {fraction:.1%} outside samples"
            )
        del x
    return results


SECTIONS: dict[str, Section] = {
    "ceilings": measure_ceilings,
    "suites": measure_suites,
    "agreement": measure_agreement,
    "ncu": measure_ncu,
    "repeatability": measure_repeatability,
    "overhead": measure_overhead,
    "capture": measure_capture,
}


def run_sections(setup: Setup, names: list[str], output: Path) -> dict[str, Any]:
    """Every section's results; the file is written after each, so that nothing is lost."""
    from opscope.benchmarking.problem import lost_device

    document: dict[str, Any] = {
        "environment": environment_facts(),
        "device": setup.device,
        "size": setup.size,
        "sections": {},
    }
    sections = document["sections"]
    for number, name in enumerate(names):
        print(name, flush=True)
        began = time.perf_counter()
        with recording_errors(sections, name):
            sections[name] = SECTIONS[name](setup)
        release()
        sections[name]["seconds"] = time.perf_counter() - began
        print(f"  ({sections[name]['seconds']:.1f} s)", flush=True)
        write(output, document)
        if number + 1 < len(names) and lost_device(setup.device) is not None:
            sections |= run_afresh(setup, names[number + 1 :])
            write(output, document)
            break
    return document


def run_afresh(setup: Setup, names: list[str]) -> dict[str, Any]:
    """Sections in a new process, because this one has lost the device."""
    print("the device does not answer this process any more; a new one goes on", flush=True)
    output = setup.work_dir / f"rest{len(names)}.json"
    options = ["--device", setup.device, "--size", str(setup.size), "--runs", str(setup.runs)]
    command = [sys.executable, __file__, *options, "--sections", *names, "--output", str(output)]
    subprocess.run(command, check=False)
    rest: dict[str, Any] = json.loads(output.read_text())["sections"]
    return rest


def main() -> int:
    """Run the sections asked for; 1 if one of them failed as a whole."""
    parser = parser_of(__doc__, default=Path(os.devnull))
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", type=int, default=8192)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--work-dir", type=Path)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    from opscope.workloads.runtime import resolve_device

    with tempfile.TemporaryDirectory() as scratch:
        setup = Setup(
            device=resolve_device(arguments.device),
            size=arguments.size,
            runs=arguments.runs,
            work_dir=arguments.work_dir or Path(scratch),
        )
        if arguments.child:
            run_child(setup)
            return 0
        setup.work_dir.mkdir(parents=True, exist_ok=True)
        document = run_sections(setup, arguments.sections, arguments.output)
    return int(any("error" in section for section in document["sections"].values()))


if __name__ == "__main__":
    raise SystemExit(main())
