"""Are the benchmark's figures right? Needs a CUDA device (one section: ncu).

    python benchmarks/gpu_bench.py --output FILE.json [--sections agreement ncu …] [--size 8192]

Sections, each within two minutes on an H200; one that fails is recorded with its error, and the others go on:

agreement      Our median beside `triton.testing.do_bench(return_mode="median")`, taking turns: within 2 %.
ncu            Device time by torch's profiler (a recording of opscope) beside ncu's: within 3 % when both
               find the cache as a 256 MiB overwrite leaves it.
repeatability  The verdicts of runs on one implementation under two names, and beside 3 % more work.
overhead       The part of the sampling time that no sample used, for a short kernel and a long one.
capture        A step under `opscope.profile` beside the same step under `torch.profiler`, options alike.

With `--device cpu --size 256` the sections that need no GPU run as a rehearsal. How good the kernels of the
suites are, `opscope bench NAME` says.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import environment, errors_kept, parser_of, printed, write

FLUSH_BYTES = 256 << 20
NCU_CALLS, TURNS = 9, 7
Call = Callable[[], object]


@dataclass(frozen=True)
class Setup:
    """What every section is given: the device, the side of square tensors, and of repeated runs how many."""

    device: str
    size: int
    runs: int
    work_dir: Path

    @property
    def is_cuda(self) -> bool:
        """Whether there is a GPU."""
        return self.device.startswith("cuda")


def timed(calls: dict[str, Call], setup: Setup, **options: Any) -> Any:
    """The benchmark's result for calls without inputs, neither checked nor profiled."""
    from opscope.benchmarking.problem import Implementation, Problem
    from opscope.benchmarking.run import run_benchmark
    from opscope.capture.environment import collect_environment
    from opscope.model.benchmark import BenchmarkOptions

    problem = Problem(
        name="calls",
        device=setup.device,
        make_inputs=lambda seed: (),
        implementations=tuple(Implementation(name, lambda fn=fn: fn) for name, fn in calls.items()),
        reference=next(iter(calls)),
    )
    plain = BenchmarkOptions(check=False, profile=False, ceilings=False, **options)
    return run_benchmark(problem, plain, environment=collect_environment())


def operations(setup: Setup) -> dict[str, Call]:
    """The calls measured in several ways: gelu, softmax, copy, layer_norm, a small and a large GEMM."""
    import torch
    from torch.nn.functional import gelu, layer_norm

    generator = torch.Generator(setup.device).manual_seed(0)

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, generator=generator, device=setup.device)

    size = setup.size
    x, weight, bias = normal(size, size), normal(size), normal(size)
    small_left, small_right = (normal(size // 8, size // 8) for _ in range(2))
    # A product of milliseconds meets the power limit, and then takes as long as the pauses between its calls
    # allow the device to cool down, of which do_bench makes none. On an H200 8192³ in bfloat16 took 1.37 to
    # 1.69 ms in one run, by any clock.
    left, right = (normal(size, size).bfloat16() for _ in range(2))
    return {
        "gelu": lambda: gelu(x, approximate="tanh"),
        "softmax": lambda: torch.softmax(x, -1),
        "transposing_copy": lambda: x.t().contiguous(),
        "layer_norm": lambda: layer_norm(x, (size,), weight, bias),
        "gemm_float32": lambda: small_left @ small_right,
        "gemm_bfloat16": lambda: left @ right,
    }


def measure_agreement(setup: Setup) -> dict[str, Any]:
    """Our cold median beside do_bench's, in short turns, so that both meet the same clocks."""
    import torch
    import triton.testing

    source = torch.randn(setup.size, setup.size, device=setup.device)
    calls = {**operations(setup), "plain_copy": functools.partial(torch.empty_like(source).copy_, source)}
    results: dict[str, Any] = {}
    for name, call in calls.items():
        with errors_kept(results, name):
            ours, theirs = [], []
            for _ in range(TURNS):
                row = timed({name: call}, setup, precision=0.0, min_samples=50, max_samples=50).rows[0]
                ours.append(row.median_ns)
                theirs.append(triton.testing.do_bench(call, warmup=20, rep=100, return_mode="median") * 1e6)
            ratio = statistics.median(ours) / statistics.median(theirs)
            within = abs(ratio - 1) <= 0.02
            results[name] = {"ours_ns": ours, "do_bench_ns": theirs, "ratio": ratio, "within": within}
            print(f"  {name:18} ours / do_bench {ratio:.4f}")
    return results


def measure_ncu(setup: Setup) -> dict[str, Any]:
    """Device time per call: by the profiler, by ncu, by our events."""
    by_profiler, by_ncu = (
        by_operation(setup, profiler_durations(setup)),
        by_operation(setup, ncu_durations(setup)),
    )
    results: dict[str, Any] = {}
    for name, call in operations(setup).items():
        ratio = statistics.median(by_profiler[name]) / statistics.median(by_ncu[name])
        event = timed({name: call}, setup, precision=0.0, min_samples=50, max_samples=200).rows[0].median_ns
        results[name] = {
            "profiler_ns": by_profiler[name],
            "ncu_ns": by_ncu[name],
            "event_ns": event,
            "ratio": ratio,
            "within": abs(ratio - 1) <= 0.03,
        }
        print(f"  {name:18} profiler / ncu {ratio:.4f}, events {event / 1e3:9.2f} µs")
    return results


def flushed_calls(setup: Setup) -> Iterator[str]:
    """Call each operation behind an overwrite of the cache; yields its name after each call."""
    import torch

    buffer = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device=setup.device)
    calls = operations(setup)
    for call in calls.values():
        call()
    torch.cuda.synchronize()
    yield ""  # warm: what follows is measured
    for name, call in calls.items():
        for _ in range(NCU_CALLS):
            buffer.fill_(0)
            call()
            yield name


def profiler_durations(setup: Setup) -> list[tuple[str, float]]:
    import opscope

    steps = NCU_CALLS * len(operations(setup))
    with opscope.profile(setup.work_dir / "ncu", warmup=1, active=steps, overwrite=True) as profile:
        for _ in flushed_calls(setup):
            profile.step()
    return profile.session.query(
        "SELECT n.name, a.duration_ns FROM device_activities a JOIN kernel_names n USING (name_id) "
        "WHERE a.kind = 'kernel' ORDER BY a.start_ns"
    )


def ncu_durations(setup: Setup) -> list[tuple[str, float]]:
    """By ncu, in a process of its own, with the clocks and the cache as they are."""
    from opscope.toolchain.ncu_command import find_ncu
    from opscope.toolchain.ncu_report import read_report

    report = setup.work_dir / "calls.ncu-rep"
    options = "--clock-control none --cache-control none --profile-from-start off --force-overwrite"
    child = [__file__, "--child", "--output", "-", "--device", setup.device, "--size", setup.size]
    metrics = ["--metrics", "gpu__time_duration.sum", "--export", report]
    printed([find_ncu(os.environ.get("PATH")), *options.split(), *metrics, sys.executable, *child])
    return [(one.name, float(one.duration_ns or 0)) for one in read_report(report).kernels]


def by_operation(setup: Setup, kernels: list[tuple[str, float]]) -> dict[str, list[float]]:
    """Device time of each call: what runs between one overwrite of the cache and the next."""
    calls: list[float] = []
    for name, duration_ns in kernels:
        if "FillFunctor" in name:
            calls.append(0.0)
        elif calls:
            calls[-1] += duration_ns
    names = list(operations(setup))
    if len(calls) != NCU_CALLS * len(names):
        raise ValueError(f"{len(calls)} calls found, not {NCU_CALLS} of each of {len(names)}: {kernels[:12]}")
    return {name: calls[index * NCU_CALLS : (index + 1) * NCU_CALLS] for index, name in enumerate(names)}


def run_child(setup: Setup) -> None:
    """The program that ncu looks at: recorded from when everything is warm."""
    import torch

    for name in flushed_calls(setup):
        torch.cuda.synchronize()
        if not name:
            torch.cuda.cudart().cudaProfilerStart()
    torch.cuda.cudart().cudaProfilerStop()


def measure_repeatability(setup: Setup) -> dict[str, Any]:
    """How often the same is called the same, and 3 % more work slower."""
    import torch
    from torch.nn.functional import gelu

    x = torch.randn(setup.size, setup.size, device=setup.device)
    more = torch.randn(round(setup.size * 1.03), setup.size, device=setup.device)
    results: dict[str, Any] = {}
    for expected, given in (("same", x), ("slower", more)):
        pair = {
            name: functools.partial(gelu, one, approximate="tanh") for name, one in (("a", x), ("b", given))
        }
        rows = [timed(pair, setup, seed=seed).row("b") for seed in range(setup.runs)]
        right = sum(str(row.verdict) == expected for row in rows)
        results[expected] = {
            "verdicts": [str(row.verdict) for row in rows],
            "ratios": [row.ratio for row in rows],
            "samples": [len(row.samples_ns) for row in rows],
            "right": right,
            "work_ratio": given.numel() / x.numel(),
        }
        print(f"  {right} of {setup.runs} runs say '{expected}'")
    return results


def measure_overhead(setup: Setup) -> dict[str, Any]:
    """The part of the sampling time outside samples, for a short kernel and a long one."""
    import torch
    from torch.nn.functional import gelu

    from opscope.model.benchmark import CacheState

    results: dict[str, Any] = {}
    for title, rows in (("short", setup.size // 16), ("long", setup.size * 8)):
        x = torch.randn(rows, setup.size, device=setup.device)
        for state in (CacheState.COLD, CacheState.HOT):
            call = functools.partial(gelu, x, approximate="tanh")
            found = timed({"gelu": call}, setup, precision=0.0, max_samples=10**6, cache_state=state)
            fraction = 1 - found.in_samples_ns / found.sampling_ns
            median_ns, count = found.rows[0].median_ns, len(found.rows[0].samples_ns)
            results[f"{title} {state}"] = {
                "median_ns": median_ns, "samples": count, "outside_fraction": fraction,
                "within": fraction <= 0.2,
            }  # fmt: skip
            print(
                f"  {title} {state}: {count} of {median_ns / 1e3:.1f} µs, {fraction:.1%} outside of samples"
            )
    return results


def measure_capture(setup: Setup) -> dict[str, Any]:
    """A training step without a profiler, under torch.profiler, and under opscope.profile, in turns."""
    sizes = {"launch-bound": (1, 64), "device-bound": (32, 512)} if setup.is_cuda else {"tiny": (1, 16)}
    active, repeats = (10, 9) if setup.is_cuda else (3, 3)
    results: dict[str, Any] = {}
    for title, sides in sizes.items():
        with errors_kept(results, title):
            step = training_step(setup, *sides)
            times: dict[str, list[float]] = {way: [] for way in ("bare", "torch", "opscope")}
            for turn in range(repeats + 1):
                for way, found in times.items():
                    seconds = recorded_s(step, setup, way, active)
                    if turn:  # attaching the first time takes seconds
                        found.append(seconds)
            steps = {way: statistics.median(found) for way, found in times.items()}
            ratio = steps["opscope"] / steps["torch"]
            results[title] = {
                "active_steps": active, "samples_s": times, "step_s": steps, "ratio": ratio,
                "within": ratio <= 1.05,
            }  # fmt: skip
            print(f"  {title}: step {steps['bare'] * 1e3:.3f} ms, opscope / torch.profiler {ratio:.3f}")
    return results


def training_step(setup: Setup, batch: int, length: int) -> Call:
    """A step of training an encoder of BERT's shape."""
    import torch
    from torch import nn

    layers, width = (12, 768) if setup.is_cuda else (2, 64)
    layer = nn.TransformerEncoderLayer(width, width // 64, width * 4, activation="gelu", batch_first=True)
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).to(setup.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.randn(batch, length, width, device=setup.device)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(setup.device.partition(":")[0], torch.bfloat16):
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()

    return step


def recorded_s(step: Call, setup: Setup, way: str, active: int) -> float:
    """Seconds of a step in a window, from just after it opened to just before it closes, the device idle."""
    import torch

    import opscope
    from opscope.workloads.runtime import synchronize

    profiler = torch.profiler
    kinds = profiler.supported_activities() if setup.is_cuda else {profiler.ProfilerActivity.CPU}
    recorder: Any = None
    if way == "torch":
        trace = str(setup.work_dir / "torch_trace.json")
        recorder = profiler.profile(
            activities=kinds, record_shapes=True,
            schedule=profiler.schedule(wait=0, warmup=1, active=active, repeat=1),
            on_trace_ready=lambda done: done.export_chrome_trace(trace),
        )  # fmt: skip
    elif way == "opscope":
        recorder = opscope.profile(setup.work_dir / "capture", warmup=1, active=active, overwrite=True)
    advance: Call = (lambda: None) if recorder is None else recorder.step
    if recorder is not None:
        recorder.__enter__()
    step()
    synchronize()
    advance()
    began = time.perf_counter()
    for number in range(active):
        step()
        if number + 1 < active:
            advance()
    synchronize()
    seconds = (time.perf_counter() - began) / active
    advance()
    if recorder is not None:
        recorder.__exit__(None, None, None)
    return seconds


SECTIONS: dict[str, Callable[[Setup], dict[str, Any]]] = {
    "agreement": measure_agreement,
    "ncu": measure_ncu,
    "repeatability": measure_repeatability,
    "overhead": measure_overhead,
    "capture": measure_capture,
}


def main() -> int:
    """Run the sections asked for; 1 if one of them failed as a whole."""
    parser = parser_of(__doc__)
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", type=int, default=8192)
    parser.add_argument("--runs", type=int, default=20, help="of the section repeatability")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    from opscope.workloads.runtime import release_memory, resolve_device

    with tempfile.TemporaryDirectory() as scratch:
        setup = Setup(resolve_device(options.device), options.size, options.runs, Path(scratch))
        if options.child:
            run_child(setup)
            return 0
        document: dict[str, Any] = {
            "environment": environment(), "device": setup.device, "size": setup.size, "sections": {},
        }  # fmt: skip
        for name in options.sections:
            print(name, flush=True)
            with errors_kept(document["sections"], name):
                document["sections"][name] = SECTIONS[name](setup)
                release_memory()
            write(options.output, document)
    return int(any("error" in section for section in document["sections"].values()))


if __name__ == "__main__":
    raise SystemExit(main())
