"""Is the step that a recording calls unrecorded the program's, and what does timing it cost?

    python benchmarks/gpu_unrecorded_step.py --output FILE.json [--repeats 3]     # needs a CUDA device
    python benchmarks/gpu_unrecorded_step.py --output FILE.json --device cpu      # a rehearsal

Each program runs in processes of its own. First it runs alone, in a loop with one wait at its end: without
and with the clock that times steps, in turns. Hosts wander by more than timing costs, so its cost is the time
within the clock's marks over that of the loop (at most 0.005), and what the clock tells of a loop is compared
with what that loop took (within 3 %). Then it is recorded by `opscope.profile`, and the median of its
unrecorded steps is compared with the median step alone in the second before (within 3 %), for the steps
before and after the recording apart too. The step alone is measured after the recording once more: the host
itself may have changed, which the figures then show.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_setup import environment_facts, parser_of, write

MOST_COST = 0.005
MOST_DIFFERENCE = 0.03
WARMUP_STEPS = 30
ROUNDS = 8
ROUND_S = 0.25

Step = Callable[[], object]


def mlp(device: str) -> Step:
    """Inference of a small network; the loop never waits, the host is the limit."""
    import torch
    from torch import nn

    layers = [layer for _ in range(8) for layer in (nn.Linear(256, 256), nn.ReLU())]
    model = nn.Sequential(*layers).to(device)
    x = torch.randn(64, 256, device=device)

    def step() -> None:
        with torch.no_grad():
            model(x)

    return step


def blocks(device: str) -> Step:
    """Forward of transformer blocks with one sequence, as GPT-2's; the host is the limit."""
    return _blocks(device, batch=1)


def large_blocks(device: str) -> Step:
    """The same with so much work that the device is the limit and the loop runs ahead."""
    return _blocks(device, batch=32)


def _blocks(device: str, batch: int) -> Step:
    import torch
    from torch import nn

    layer = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).to(device).eval()
    tokens = torch.randn(batch, 128, 768, device=device)

    def step() -> None:
        with torch.inference_mode():
            # Not the fused path, which launches one kernel where GPT-2 launches many.
            torch.backends.mha.set_fastpath_enabled(False)
            model(tokens)

    return step


def training(device: str) -> Step:
    """A training step that reads its loss, so that every step waits for the device."""
    import torch
    from torch import nn

    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(12))).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.randn(256, 512, device=device)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


PROGRAMS = {one.__name__: one for one in (mlp, blocks, large_blocks, training)}


def loop(step: Step, count: int, wait: Callable[[], object]) -> float:
    """Nanoseconds of a step in a loop that waits once, at its end."""
    wait()
    start_ns = time.perf_counter_ns()
    for _ in range(count):
        step()
    wait()
    return (time.perf_counter_ns() - start_ns) / count


def timed_loop(
    step: Step, count: int, wait: Callable[[], object], has_device: bool
) -> tuple[float, float, float]:
    """With the clock: nanoseconds of a step, those in its marks, and a step as the clock tells it."""
    from opscope.analysis.measured_step import unrecorded_time
    from opscope.capture.step_clock import StepClock
    from opscope.model.sidecar import StepPlace

    clock, marks_ns = StepClock(StepPlace.BEFORE), 0
    clock.start()
    wait()
    start_ns = time.perf_counter_ns()
    for number in range(count):
        began_ns = time.perf_counter_ns()
        clock.mark(number)
        marks_ns += time.perf_counter_ns() - began_ns
        step()
    clock.mark(count)
    wait()
    step_ns = (time.perf_counter_ns() - start_ns) / count
    clock.stop()
    told = unrecorded_time(clock.read(), has_device=has_device)
    return step_ns, marks_ns / count, math.nan if told is None else told.median


def alone(step: Step, count: int, wait: Callable[[], object]) -> float:
    """The median step of a loop by the host's clock; the mean where it runs ahead of the device."""
    wait()
    starts_ns = []
    for _ in range(count):
        starts_ns.append(time.perf_counter_ns())
        step()
    end_ns = time.perf_counter_ns()
    wait()
    waited_ns = time.perf_counter_ns() - end_ns
    period_ns = statistics.median(later - one for one, later in itertools.pairwise(starts_ns))
    if waited_ns < 2 * period_ns:
        return period_ns
    return (time.perf_counter_ns() - starts_ns[0]) / count


def measure(name: str, device: str) -> dict[str, Any]:
    """One program in this process: alone, timed, recorded."""
    import torch

    import opscope
    from opscope.analysis.measured_step import unrecorded_time
    from opscope.analysis.summary import Summary
    from opscope.benchmarking.statistics import ratio_interval
    from opscope.model.sidecar import StepPlace

    is_cuda = device.startswith("cuda")
    wait = torch.cuda.synchronize if is_cuda else lambda: None
    step = PROGRAMS[name](device)
    loop(step, WARMUP_STEPS, wait)
    count = min(100, max(20, round(ROUND_S * 1e9 / loop(step, WARMUP_STEPS, wait))))
    bare_ns, timed = [], []
    for one in range(ROUNDS):
        for is_timed in (one % 2 == 0, one % 2 == 1):
            if is_timed:
                timed.append(timed_loop(step, count, wait, is_cuda))
            else:
                bare_ns.append(loop(step, count, wait))
    timed_ns = [step_ns for step_ns, *_ in timed]
    alone_ns = statistics.median(alone(step, count, wait) for _ in range(ROUNDS // 2))
    with opscope.profile(wait=2 * count, warmup=2, active=3) as profiler:
        for _ in range(profiler.total_steps + count):
            step()
            profiler.step()
    recorded = Summary(profiler.session).measured_step
    later_ns = [alone(step, count, wait) for _ in range(ROUNDS)]
    ratio = ratio_interval(timed_ns, bare_ns, seed=0)
    places = {
        str(place): unrecorded_time(
            [one for one in profiler.unrecorded_steps if one.place is place], has_device=is_cuda
        )
        for place in (StepPlace.BEFORE, StepPlace.AFTER)
    }
    assert recorded.unrecorded_ns is not None
    return {
        "program": name,
        "alone_ns": alone_ns,
        "alone_after_recording_ns": statistics.median(later_ns),
        "marks_over_step": statistics.median(marks_ns / step_ns for step_ns, marks_ns, _ in timed),
        "told_over_loop": statistics.median(told_ns / step_ns for step_ns, _, told_ns in timed),
        "timed_over_bare": {"ratio": ratio.ratio, "low": ratio.low, "high": ratio.high},
        "unrecorded_ns": recorded.unrecorded_ns.median,
        "unrecorded_interval_ns": [recorded.unrecorded_ns.low, recorded.unrecorded_ns.high],
        "clock": str(recorded.unrecorded_ns.clock),
        "samples": recorded.unrecorded_ns.samples,
        "recorded_ns": recorded.recorded_ns,
        "busy_fraction": recorded.busy_fraction,
        "host_stretch": recorded.host_stretch,
        "unrecorded_over_alone": recorded.unrecorded_ns.median / alone_ns,
        "before_over_alone": None if places["before"] is None else places["before"].median / alone_ns,
        "after_over_alone": None if places["after"] is None else places["after"].median / alone_ns,
        "bare_samples_ns": bare_ns,
        "timed_samples_ns": timed_ns,
    }


def judged(name: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """A program's runs, and what is asked of it."""
    names = ("marks_over_step", "told_over_loop", "unrecorded_over_alone")
    figures = {one: statistics.median(run[one] for run in runs) for one in names}
    return {
        "program": name,
        **figures,
        "is_cheap": figures["marks_over_step"] <= MOST_COST,
        "is_right": all(abs(figures[one] - 1) <= MOST_DIFFERENCE for one in names[1:]),
        "runs": runs,
    }


def main() -> int:
    """Run every program some times, print a table, write the results."""
    parser = parser_of(__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--program", choices=PROGRAMS, help="this one, once, in this process")
    arguments = parser.parse_args()
    if arguments.program:
        write(arguments.output, measure(arguments.program, arguments.device))
        return 0
    results = []
    for name in PROGRAMS:
        runs = []
        for _ in range(arguments.repeats):
            with tempfile.TemporaryDirectory() as folder:
                output = Path(folder) / "run.json"
                command = [sys.executable, __file__, "--output", str(output), "--program", name]
                subprocess.run([*command, "--device", arguments.device], check=True)
                runs.append(json.loads(output.read_text()))
        results.append(judged(name, runs))
        for run in runs:
            print(
                f"{name:14} alone {run['alone_ns'] / 1e6:7.3f} ms"
                f" unrecorded {run['unrecorded_ns'] / 1e6:7.3f}"
                f" ({run['clock']}, before {run['before_over_alone'] or 0:.3f} after"
                f" {run['after_over_alone'] or 0:.3f}) recorded {run['recorded_ns'] / 1e6:7.3f}"
                f" busy {run['busy_fraction']} timed over bare {run['timed_over_bare']['ratio']:.4f}"
            )
        last = results[-1]
        print(
            f"{name:14} cost {last['marks_over_step']:.4f} {'ok' if last['is_cheap'] else 'TOO MUCH'}, told "
            f"over loop {last['told_over_loop']:.4f}, over alone {last['unrecorded_over_alone']:.4f} "
            f"{'ok' if last['is_right'] else 'WRONG'}"
        )
    write(arguments.output, {"environment": environment_facts(), "programs": results})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
