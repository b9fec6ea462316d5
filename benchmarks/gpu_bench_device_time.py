"""Sections `agreement` and `ncu` of `gpu_bench.py`: the same calls, timed in other ways.

The calls are the same in every way, and each runs behind an overwrite of 256 MiB, so that the cache is in the
same state. ncu looks at a process of its own, which this module's `run_child` is.
"""

from __future__ import annotations

import csv
import io
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gpu_setup import Setup, recording_errors, timed

FLUSH_BYTES = 256 << 20
NCU_CALLS = 9
TURNS = 7
NCU_TIMEOUT_S = 300


def operations(setup: Setup) -> dict[str, Callable[[], object]]:
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

    calls = operations(setup)
    source = torch.randn(setup.size, setup.size, device=setup.device)
    target = torch.empty_like(source)
    calls["plain_copy"] = lambda: target.copy_(source)
    results: dict[str, Any] = {}
    for name, call in calls.items():
        with recording_errors(results, name):
            ours, theirs = [], []
            for _ in range(TURNS):
                row = timed({name: call}, setup, precision=0.0, min_samples=50, max_samples=50).rows[0]
                ours.append(row.median_ns)
                theirs.append(triton.testing.do_bench(call, warmup=20, rep=100, return_mode="median") * 1e6)
            ratio = statistics.median(ours) / statistics.median(theirs)
            results[name] = {
                "ours_ns": ours,
                "do_bench_ns": theirs,
                "ratio": ratio,
                "within": abs(ratio - 1) <= 0.02,
            }
            print(
                f"  {name:18} ours {statistics.median(ours) / 1e3:9.2f} µs"
                f"  do_bench {statistics.median(theirs) / 1e3:9.2f} µs  ratio {ratio:.4f}"
            )
    return results


def measure_ncu(setup: Setup) -> dict[str, Any]:
    """Device time per call: by the profiler, by ncu, by our events."""
    by_profiler = profiler_durations(setup)
    by_ncu = ncu_durations(setup)
    calls = operations(setup)
    results: dict[str, Any] = {"operations": {}}
    for name, call in calls.items():
        profiler, ncu = statistics.median(by_profiler[name]), statistics.median(by_ncu[name])
        event = timed({name: call}, setup, precision=0.0, min_samples=50, max_samples=200).rows[0].median_ns
        results["operations"][name] = {
            "profiler_ns": by_profiler[name],
            "ncu_ns": by_ncu[name],
            "event_ns": event,
            "ratio": profiler / ncu,
            "within": abs(profiler / ncu - 1) <= 0.03,
        }
        print(
            f"  {name:18} profiler {profiler / 1e3:9.2f} µs  ncu {ncu / 1e3:9.2f} µs"
            f"  ratio {profiler / ncu:.4f}  events {event / 1e3:9.2f} µs (+{(event - profiler) / 1e3:.2f})"
        )
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


def profiler_durations(setup: Setup) -> dict[str, list[float]]:
    """Device time of each operation's calls in one recording of opscope."""
    import opscope

    steps = NCU_CALLS * len(operations(setup))
    with opscope.profile(setup.work_dir / "ncu", warmup=1, active=steps, overwrite=True) as profile:
        for _ in flushed_calls(setup):
            profile.step()
    session = profile.session
    rows = session.records(
        "SELECT n.name, a.duration_ns FROM device_activities a JOIN kernel_names n USING (name_id) "
        "WHERE a.kind = 'kernel' ORDER BY a.start_ns"
    )
    return durations_by_operation(setup, [(row["name"], float(row["duration_ns"])) for row in rows])


def ncu_durations(setup: Setup) -> dict[str, list[float]]:
    """Device time of each operation's calls by ncu, in a process of its own."""
    ncu = find_ncu()
    if ncu is None:
        raise FileNotFoundError("ncu is neither in PATH nor where CUDA and Nsight Compute install it")
    program = Path(__file__).with_name("gpu_bench.py")
    options = "--clock-control none --cache-control none --profile-from-start off --csv --print-units base"
    child = [str(program), "--child", "--device", setup.device, "--size", str(setup.size)]
    command = [ncu, *options.split(), "--metrics", "gpu__time_duration.sum", sys.executable, *child]
    done = subprocess.run(command, capture_output=True, text=True, timeout=NCU_TIMEOUT_S, check=False)
    (setup.work_dir / "ncu.csv").write_text(done.stdout)
    if done.returncode:
        raise RuntimeError(f"ncu ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
    return durations_by_operation(setup, parse_ncu(done.stdout))


def find_ncu() -> str | None:
    """The path of ncu, the newest where several are installed."""
    found = shutil.which("ncu")
    if found:
        return found
    installed = sorted(Path("/opt/nvidia/nsight-compute").glob("*/ncu"))
    candidates = [*reversed(installed), Path("/usr/local/cuda/bin/ncu")]
    return next((str(path) for path in candidates if path.exists()), None)


def parse_ncu(text: str) -> list[tuple[str, float]]:
    """Kernels in order with their duration in nanoseconds, from ncu's CSV, whichever of its pages it is."""
    lines = [line for line in text.splitlines() if line.startswith('"')]  # not ncu's own messages
    head = next((number for number, line in enumerate(lines) if '"Kernel Name"' in line), None)
    if head is None:
        raise ValueError(f"no table in ncu's output: {text[-1000:]}")
    found = []
    unit = "ns"
    for row in csv.DictReader(io.StringIO("\n".join(lines[head:]))):
        if "Metric Name" in row:
            if row["Metric Name"] != "gpu__time_duration.sum":
                continue
            value, unit = row["Metric Value"], row["Metric Unit"]
        elif not row["Kernel Name"]:  # the row of units
            unit = row["gpu__time_duration.sum"]
            continue
        else:
            value = row["gpu__time_duration.sum"]
        found.append((row["Kernel Name"], float(value.replace(",", "")) * ns_per_unit(unit)))
    return found


def ns_per_unit(unit: str) -> float:
    """Nanoseconds in one of ncu's units of time."""
    names = {"n": 1.0, "u": 1e3, "m": 1e6, "s": 1e9}
    return names[unit.strip().lower()[:1] or "n"]


def durations_by_operation(setup: Setup, kernels: list[tuple[str, float]]) -> dict[str, list[float]]:
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
