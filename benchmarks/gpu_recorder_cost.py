"""What does recording one host event cost? Fits the constants of `analysis/timeline/host.py`.

    python benchmarks/gpu_recorder_cost.py --output FILE.json [--budget-s 40]   # needs a CUDA device
    python benchmarks/gpu_recorder_cost.py --output FILE.json --device cpu   # a rehearsal: no runtime calls

Steps of small tensors, so that the host is the limit, timed bare and under torch.profiler: without shapes,
with shapes, with shapes and stacks, in turns. What a recorded step takes longer is explained by its counts of
operators, runtime calls and Python frames: least squares on relative errors, no cost below zero. Bounds come
from leaving out one workload at a time. Where the device is the limit, it hides what recording costs.
"""

from __future__ import annotations

import gc
import itertools
import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gpu_setup import environment_facts, parser_of, write

Step = Callable[[], object]

RECORDINGS = {
    "plain": {},
    "shapes": {"record_shapes": True},
    "stacks": {"record_shapes": True, "with_stack": True},
}
TERMS = ("operator", "shaped_operator", "runtime_call", "python_frame")
_CATEGORIES = {"cpu_op": "operator", "cuda_runtime": "runtime_call", "cuda_driver": "runtime_call"}
WARMUP_STEPS = 2
TIMED_STEPS = 8
LEAST_ROUNDS = 3


@dataclass
class Measured:
    """One workload under one recording, and what was measured. `counts` are events per step by term."""

    workload: str
    recording: str
    counts: dict[str, float]
    recorded_ns: list[float] = field(default_factory=list)


def build_workloads(device: str) -> dict[str, Step]:
    """Steps whose mixtures of operators, launches and Python frames differ."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    torch.set_num_threads(1)  # threads of its own make the times of a CPU unsteady
    x = torch.randn(8, 64, device=device)

    def pointwise() -> None:
        y = x
        for _ in range(500):
            y = y + x

    def views() -> None:
        for _ in range(500):
            x.view(64, 8).transpose(0, 1).unsqueeze(0)

    def frames() -> None:
        for _ in range(5000):
            _nothing()

    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).to(device).eval()
    tokens = torch.randn(2, 16, 64, device=device)

    def encoder_forward() -> None:
        with torch.no_grad():
            encoder(tokens)

    workloads = {
        "pointwise": pointwise,
        "views": views,
        "frames": frames,
        "encoder_forward": encoder_forward,
        "encoder_training": _training(
            nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), tokens, device
        ),
        "convolution_training": _training(_convolutions(), torch.randn(1, 8, 8, 8, device=device), device),
    }
    if device.startswith("cuda"):
        workloads["event_records"] = _event_records()
    return workloads


def _nothing() -> None:
    return None


def _event_records() -> Step:
    """Runtime calls without operators."""
    import torch

    event = torch.cuda.Event()

    def step() -> None:
        for _ in range(500):
            event.record()

    return step


def _convolutions() -> Any:
    from torch import nn

    blocks = (
        nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        for _ in range(16)
    )
    return nn.Sequential(*blocks)


def _training(module: Any, inputs: Any, device: str) -> Step:
    """Forward, backward and an AdamW step."""
    import torch

    module = module.to(device).train()
    optimizer = torch.optim.AdamW(module.parameters(), foreach=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        module(inputs).square().mean().backward()
        optimizer.step()

    return step


def timed(step: Step, device: str) -> float:
    """Nanoseconds of a step, the mean of a few."""
    import torch

    synchronize = torch.cuda.synchronize if device.startswith("cuda") else _nothing
    for _ in range(WARMUP_STEPS):
        step()
    synchronize()
    start = time.perf_counter_ns()
    for _ in range(TIMED_STEPS):
        step()
    synchronize()
    return (time.perf_counter_ns() - start) / TIMED_STEPS


def recorded(step: Step, device: str, recording: str) -> tuple[float, Any]:
    """The same while it is recorded, and the profiler."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if device.startswith("cuda"):
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, **RECORDINGS[recording]) as profiler:
        duration_ns = timed(step, device)
    return duration_ns, profiler


def count_events(profiler: Any, recording: str) -> dict[str, float]:
    """Recorded host events of one step, by term."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    found: Counter[str] = Counter()
    for event in events:
        if event.get("ph") == "X":
            category = event.get("cat")
            found[
                _CATEGORIES.get(category, "python_frame" if category == "python_function" else "other")
            ] += 1
    if recording != "plain":
        found["shaped_operator"] = found.pop("operator", 0)
    return {term: found[term] / (WARMUP_STEPS + TIMED_STEPS) for term in TERMS}


def measure(device: str, budget_s: float) -> tuple[dict[str, list[float]], list[Measured]]:
    """Bare times by workload, and every case, measured in turns until the budget is spent."""
    workloads = build_workloads(device)
    cases = []
    for name, step in workloads.items():
        for recording in RECORDINGS:
            _, profiler = recorded(step, device, recording)  # also warms up
            cases.append(Measured(name, recording, count_events(profiler, recording)))
    bare_ns: dict[str, list[float]] = {name: [] for name in workloads}
    deadline = time.monotonic() + budget_s
    rounds = 0
    while rounds < LEAST_ROUNDS or time.monotonic() < deadline:
        rounds += 1
        for name, step in workloads.items():
            gc.collect()
            bare_ns[name].append(timed(step, device))
            for case in cases:
                if case.workload == name:
                    case.recorded_ns.append(recorded(step, device, case.recording)[0])
    return bare_ns, cases


def added_ns(case: Measured, bare_ns: dict[str, list[float]]) -> float:
    """What recording added to a step: the difference of medians."""
    return statistics.median(case.recorded_ns) - statistics.median(bare_ns[case.workload])


def fit(cases: list[Measured], bare_ns: dict[str, list[float]]) -> dict[str, float | None]:
    """Nanoseconds per event of each term; None for a term that no case has.

    Errors are relative to the recorded step's duration. The best choice of terms without a negative cost.
    """
    known = [term for term in TERMS if any(case.counts[term] for case in cases)]
    weight = np.array([1 / statistics.median(case.recorded_ns) for case in cases])
    counts = np.array([[case.counts[term] for term in known] for case in cases]) * weight[:, None]
    added = np.array([added_ns(case, bare_ns) for case in cases]) * weight
    best, least = np.zeros(len(known)), float("inf")
    for chosen in _subsets(len(known)):
        cost = np.zeros(len(known))
        cost[chosen] = np.linalg.lstsq(counts[:, chosen], added, rcond=None)[0]
        error = float(np.square(counts @ cost - added).sum())
        if (cost >= 0).all() and error < least:
            best, least = cost, error
    return {term: float(best[known.index(term)]) if term in known else None for term in TERMS}


def _subsets(count: int) -> Iterator[list[int]]:
    for size in range(1, count + 1):
        yield from map(list, itertools.combinations(range(count), size))


def bounds(cases: list[Measured], bare_ns: dict[str, list[float]]) -> dict[str, tuple[float, float] | None]:
    """Least and largest cost of each term when one workload is left out."""
    fits = [fit([one for one in cases if one.workload != name], bare_ns) for name in bare_ns]
    found: dict[str, tuple[float, float] | None] = {}
    for term in TERMS:
        values = [cost for one in fits if (cost := one[term]) is not None]
        found[term] = (min(values), max(values)) if values else None
    return found


def explain(
    cases: list[Measured], bare_ns: dict[str, list[float]], cost_ns: dict[str, float | None]
) -> list[dict[str, Any]]:
    """Each case with what the costs predict."""
    from opscope.analysis.timeline.host import RECORDED_EVENT_NS

    packaged = {
        "operator": RECORDED_EVENT_NS["operators"],
        "shaped_operator": RECORDED_EVENT_NS["operators with shapes"],
        "runtime_call": RECORDED_EVENT_NS["runtime calls"],
        "python_frame": RECORDED_EVENT_NS["Python frames"],
    }
    return [
        {
            "workload": case.workload,
            "recording": case.recording,
            "events_per_step": case.counts,
            "bare_ns": statistics.median(bare_ns[case.workload]),
            "recorded_ns": statistics.median(case.recorded_ns),
            "added_ns": added_ns(case, bare_ns),
            "predicted_ns": sum(case.counts[term] * (cost_ns[term] or 0) for term in TERMS),
            "predicted_by_packaged_ns": sum(case.counts[term] * packaged[term] for term in TERMS),
            "bare_samples_ns": bare_ns[case.workload],
            "recorded_samples_ns": case.recorded_ns,
        }
        for case in cases
    ]


def main() -> int:
    """Measure, fit, print a table, write the results."""
    parser = parser_of(__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--budget-s", type=float, default=40.0)
    arguments = parser.parse_args()
    bare_ns, cases = measure(arguments.device, arguments.budget_s)
    cost_ns, limits = fit(cases, bare_ns), bounds(cases, bare_ns)
    rows = explain(cases, bare_ns, cost_ns)
    document = {
        "environment": environment_facts(),
        "cost_ns": cost_ns,
        "bounds_ns": limits,
        "rounds": len(next(iter(bare_ns.values()))),
        "cases": rows,
    }
    write(arguments.output, document)
    for row in rows:
        events = " ".join(f"{row['events_per_step'][term]:7.0f}" for term in TERMS)
        print(
            f"{row['workload']:22} {row['recording']:7} bare {row['bare_ns'] / 1e3:8.0f} us recorded"
            f" {row['recorded_ns'] / 1e3:8.0f} us events {events} predicted/added"
            f" {row['predicted_ns'] / row['added_ns']:6.2f}"
            f" packaged {row['predicted_by_packaged_ns'] / row['added_ns']:6.2f}"
        )
    for term in TERMS:
        cost, limit = cost_ns[term], limits[term]
        text = (
            "not measured"
            if cost is None or limit is None
            else f"{cost:.0f} ns ({limit[0]:.0f} to {limit[1]:.0f})"
        )
        print(f"{term:16} {text}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
