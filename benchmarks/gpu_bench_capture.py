"""Section `capture` of `gpu_bench.py`: what recording costs a step, beside torch.profiler used bare.

The steps of a window are timed from just after it opened to just before it closes, all devices idle at both
ends. The three ways take turns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from gpu_setup import Setup, recording_errors


def measure_capture(setup: Setup) -> dict[str, Any]:
    """A training step without a profiler, under torch.profiler, and under opscope.profile."""
    sizes = {"launch-bound": (1, 64), "device-bound": (32, 512)} if setup.is_cuda else {"tiny": (1, 16)}
    results: dict[str, Any] = {}
    for title, (batch, length) in sizes.items():
        with recording_errors(results, title):
            results[title] = capture_configuration(setup, title, batch, length)
    return results


def capture_configuration(setup: Setup, title: str, batch: int, length: int) -> dict[str, Any]:
    """One size of the program: the three ways in turn, their medians and ratios."""
    step = training_step(setup, batch, length)
    active, repeats = (10, 9) if setup.is_cuda else (3, 3)
    ways = {"bare": without_profiler, "torch": under_torch, "opscope": under_opscope}
    times: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for way in ways.values():  # attaching the first time takes seconds
        way(step, setup, active)
    for _ in range(repeats):
        for name, way in ways.items():
            times[name].append(way(step, setup, active))
    steps = {name: statistics.median(each[0] / active for each in found) for name, found in times.items()}
    totals = {name: statistics.median(each[1] for each in found) for name, found in times.items()}
    ratio = steps["opscope"] / steps["torch"]
    print(
        f"  {title:13} step {steps['bare'] * 1e3:8.3f} ms, torch.profiler {steps['torch'] * 1e3:8.3f} ms,"
        f" opscope {steps['opscope'] * 1e3:8.3f} ms: ratio {ratio:.3f};"
        f" with export {totals['torch']:.3f} s and {totals['opscope']:.3f} s"
    )
    return {
        "active_steps": active,
        "window_and_total_s": times,
        "step_s": steps,
        "total_s": totals,
        "ratio": ratio,
        "within": ratio <= 1.05,
    }


def training_step(setup: Setup, batch: int, length: int) -> Callable[[], object]:
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


def without_profiler(step: Callable[[], object], setup: Setup, active: int) -> tuple[float, float]:
    """Seconds of the active steps, and of everything."""
    began = time.perf_counter()
    window = timed_window(step, active, lambda: None)
    return window, time.perf_counter() - began


def under_torch(step: Callable[[], object], setup: Setup, active: int) -> tuple[float, float]:
    """Likewise, under torch.profiler with the options opscope has by default."""
    import torch

    profiler = torch.profiler
    trace = setup.work_dir / "torch_trace.json"
    activities = [profiler.ProfilerActivity.CPU]
    if setup.is_cuda:
        activities.append(profiler.ProfilerActivity.CUDA)
    began = time.perf_counter()
    with profiler.profile(
        activities=activities,
        record_shapes=True,
        schedule=profiler.schedule(wait=0, warmup=1, active=active, repeat=1),
        on_trace_ready=lambda done: done.export_chrome_trace(str(trace)),
    ) as profile:
        window = timed_window(step, active, profile.step)
    return window, time.perf_counter() - began


def under_opscope(step: Callable[[], object], setup: Setup, active: int) -> tuple[float, float]:
    """Likewise, under opscope.profile."""
    import opscope

    began = time.perf_counter()
    with opscope.profile(setup.work_dir / "capture", warmup=1, active=active, overwrite=True) as profile:
        window = timed_window(step, active, profile.step)
    return window, time.perf_counter() - began


def timed_window(step: Callable[[], object], active: int, advance: Callable[[], object]) -> float:
    """Seconds of the active steps, between the call that opens the window and the one that closes it."""
    from opscope.workloads.runtime import synchronize

    step()
    synchronize()
    advance()
    began = time.perf_counter()
    for number in range(active):
        step()
        if number + 1 < active:
            advance()
    synchronize()
    window = time.perf_counter() - began
    advance()
    return window
