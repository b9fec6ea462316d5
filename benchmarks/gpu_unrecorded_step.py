"""Is the step that a recording calls unrecorded the program's, and what does timing it cost?

    python benchmarks/gpu_unrecorded_step.py --output FILE.json [--recordings 1]   # needs a CUDA device
    python benchmarks/gpu_unrecorded_step.py --output FILE.json --device cpu --programs mlp   # a rehearsal

Hosts wander by more than timing costs, so every figure is of short loops that take turns:
without the clock that times steps, and with it. Its cost is the time within its marks over that of the loop
(at most 0.005, in longer loops, for the first marks of a stretch are many), and what it tells of a step is
compared with the loop without it just before or behind (within 3 %: medians of the pairs' ratios, with
intervals). With `--recordings` each program is also recorded
by `opscope.profile`, in a process of its own, and its unrecorded steps are shown beside loops of the second
before, which the host's wandering decides as much as anything.
"""

from __future__ import annotations

import functools
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
PAIRS = 31
LOOP_S = 0.08
LONGER, LONG_LOOPS = 6, 7  # of the loops that tell what marks cost

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
    return step_ns, marks_ns / count - reading_ns(), math.nan if told is None else told.median


@functools.cache
def reading_ns() -> float:
    """What reading the host's clock takes: of no mark, but of measuring each."""
    pairs = [(time.perf_counter_ns(), time.perf_counter_ns()) for _ in range(1001)]
    return statistics.median(later - one for one, later in pairs)


def interleaved(name: str, device: str) -> dict[str, Any]:
    """One program in loops that take turns: without the clock and with it."""
    import torch

    from opscope.benchmarking.statistics import median_interval

    is_cuda = device.startswith("cuda")
    wait = torch.cuda.synchronize if is_cuda else lambda: None
    step = PROGRAMS[name](device)
    loop(step, WARMUP_STEPS, wait)
    count = min(400, max(20, round(LOOP_S * 1e9 / loop(step, WARMUP_STEPS, wait))))
    timed_loop(step, count, wait, is_cuda)  # makes the events
    bare_ns, timed = [], []
    for pair in range(PAIRS):
        for is_timed in (pair % 2 == 0, pair % 2 == 1):
            if is_timed:
                timed.append(timed_loop(step, count, wait, is_cuda))
            else:
                bare_ns.append(alone(step, count, wait))
    pairs = list(zip(timed, bare_ns, strict=True))
    long = [timed_loop(step, LONGER * count, wait, is_cuda) for _ in range(LONG_LOOPS)]

    def median(values: list[float]) -> dict[str, float]:
        found = median_interval([one for one in values if not math.isnan(one)])
        return {"median": found.median_ns, "low": found.low_ns, "high": found.high_ns}

    result: dict[str, Any] = {
        "program": name,
        "steps_of_a_loop": count,
        "reading_ns": reading_ns(),
        "bare_ns": statistics.median(typical_ns for _, typical_ns in bare_ns),
        "marks_over_step": median([marks_ns / step_ns for step_ns, marks_ns, _ in long]),
        "told_over_bare": median([told_ns / typical_ns for (*_, told_ns), (_, typical_ns) in pairs]),
        "timed_over_bare": median([step_ns / mean_ns for (step_ns, *_), (mean_ns, _) in pairs]),
    }
    result["is_cheap"] = result["marks_over_step"]["median"] <= MOST_COST
    result["is_right"] = abs(result["told_over_bare"]["median"] - 1) <= MOST_DIFFERENCE
    return result


def alone(step: Step, count: int, wait: Callable[[], object]) -> tuple[float, float]:
    """Nanoseconds of a step without the clock: the mean, and the median by the host's clock.

    Where the host runs ahead of the device the mean alone tells something.
    """
    wait()
    starts_ns = []
    for _ in range(count):
        starts_ns.append(time.perf_counter_ns())
        step()
    end_ns = time.perf_counter_ns()
    wait()
    done_ns = time.perf_counter_ns()
    mean_ns = (done_ns - starts_ns[0]) / count
    period_ns = statistics.median(later - one for one, later in itertools.pairwise(starts_ns))
    return mean_ns, period_ns if done_ns - end_ns < 2 * period_ns else mean_ns


def recorded(name: str, device: str) -> dict[str, Any]:
    """One program in this process: alone, then recorded."""
    import torch

    import opscope
    from opscope.analysis.measured_step import unrecorded_time
    from opscope.analysis.summary import Summary
    from opscope.model.sidecar import StepPlace

    is_cuda = device.startswith("cuda")
    wait = torch.cuda.synchronize if is_cuda else lambda: None
    step = PROGRAMS[name](device)
    loop(step, WARMUP_STEPS, wait)
    count = min(400, max(20, round(LOOP_S * 1e9 / loop(step, WARMUP_STEPS, wait))))
    alone_ns = [alone(step, count, wait)[1] for _ in range(9)]
    with opscope.profile(wait=2 * count, warmup=2, active=3) as profiler:
        for _ in range(profiler.total_steps + count):
            step()
            profiler.step()
    measured = Summary(profiler.session).measured_step
    before = unrecorded_time(
        [one for one in profiler.unrecorded_steps if one.place is StepPlace.BEFORE], has_device=is_cuda
    )
    assert measured.unrecorded_ns is not None
    return {
        "program": name,
        "alone_ns": alone_ns,
        "unrecorded_ns": measured.unrecorded_ns.median,
        "unrecorded_interval_ns": [measured.unrecorded_ns.low, measured.unrecorded_ns.high],
        "before_ns": None if before is None else before.median,
        "clock": str(measured.unrecorded_ns.clock),
        "samples": measured.unrecorded_ns.samples,
        "recorded_ns": measured.recorded_ns,
        "busy_fraction": measured.busy_fraction,
        "host_stretch": measured.host_stretch,
        "unrecorded_over_alone": measured.unrecorded_ns.median / statistics.median(alone_ns),
    }


def apart(name: str, device: str) -> dict[str, Any]:
    """A recording in a process of its own: what it leaves attached must not slow the next."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "run.json"
        command = [sys.executable, __file__, "--output", str(output), "--recorded", name, "--device", device]
        subprocess.run(command, check=True)
        found: dict[str, Any] = json.loads(output.read_text())
    return found


def main() -> int:
    """Run every program, print a table, write the results."""
    parser = parser_of(__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--recordings", type=int, default=0, help="so many of each program")
    parser.add_argument("--recorded", choices=PROGRAMS, help="this one, once, in this process")
    arguments = parser.parse_args()
    if arguments.recorded:
        write(arguments.output, recorded(arguments.recorded, arguments.device))
        return 0
    results: list[dict[str, Any]] = []
    recordings: list[dict[str, Any]] = []
    document = {"environment": environment_facts(), "programs": results, "recordings": recordings}
    for name in arguments.programs:
        results.append(interleaved(name, arguments.device))
        last = results[-1]
        figures = ", ".join(
            f"{one} {last[one]['median']:.4f} ({last[one]['low']:.4f} to {last[one]['high']:.4f})"
            for one in ("marks_over_step", "told_over_bare", "timed_over_bare")
        )
        print(
            f"{name:14} {last['bare_ns'] / 1e6:.3f} ms: {figures} {'cheap' if last['is_cheap'] else 'DEAR'} "
            f"{'right' if last['is_right'] else 'WRONG'}",
            flush=True,
        )
        write(arguments.output, document)
    for name in arguments.programs * arguments.recordings:
        recordings.append(apart(name, arguments.device))
        write(arguments.output, document)
        print(f"{name:14} recorded: unrecorded over alone {recordings[-1]['unrecorded_over_alone']:.4f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
