"""Do gains come true? Records programs, reads advice, makes each change and times it. Needs a CUDA device.

    python benchmarks/gpu_gains.py --output FILE.json [--programs NAME …] [--traces FOLDER]
    python benchmarks/gpu_gains.py --output FILE.json --device cpu      # a rehearsal: small, no advice
    python benchmarks/gpu_gains.py --output FILE.json --again FOLDER    # today's advice on the traces of a
    run

Every change that this file knows how to make is made and both steps are timed in turns, in a process that
never loads the profiler: the true gain is the difference of medians, with the interval of the differences by
turn. Then the program is recorded with `opscope.profile`, as a user would, in another process. A change that
advice says nothing of counts as a gain of 0 said; it is right where the true gain is below 2 % of a step.
A true gain whose own interval holds both what would be right and what would not is `undecided`.
Programs of `gpu_programs.py` and `gpu_once_held_out.py` were looked at while cost models were made; those of
`gpu_held_out.py` are the proof.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpu_held_out import held_out_programs
from gpu_once_held_out import once_held_out
from gpu_programs import Program, Size, programs
from gpu_setup import Step, environment_facts, in_turns, loop_ns, parser_of, steps_of_a_sample, write

ACTIVE = 3
ROUNDS = 9  # so many that the median has an interval
MOST_ROUNDS = 31  # hosts shared with others wander, so short samples take many turns
LEAST_S = 0.05  # of steps in one sample
ROUNDS_S = 4.0  # of steps for one change
AROUND_S = 0.5  # of steps before the recording, and after it
MOST_S = 120  # for one program
TOLERANCE = 0.3
LEAST_GAIN = 0.02  # of a step: rules say nothing of less


def timed(program: Program) -> dict[str, Any]:
    """The step and what each change of it brings, in a process that never loads the profiler.

    Its library stays attached after a recording and slows every later launch down.
    """
    from opscope.benchmarking.statistics import median_interval

    before = program.build()
    entries: list[dict[str, Any]] = []
    for remedy in program.remedies:
        entry: dict[str, Any] = {"code": remedy.code}
        entries.append(entry)
        try:
            after = before if remedy.build is None else remedy.build()
            samples = in_turns(before, after, remedy.settings, rounds=rounds_of(before), least_s=LEAST_S)
        except Exception as error:  # noqa: BLE001 - one change that fails must not cost the others
            entry["error"] = traceback.format_exc()[-3000:]
            print(f"  {remedy.code}: FAILED {type(error).__name__}: {str(error)[:200]}")
            continue
        before_ns, after_ns = map(statistics.median, samples)
        by_turn = median_interval([one - other for one, other in zip(*samples, strict=True)])
        entry |= {
            "before_ns": before_ns,
            "after_ns": after_ns,
            "gain_ns": before_ns - after_ns,
            "true_interval_ns": [by_turn.low_ns, by_turn.high_ns],
        }
        del after
        release()
    return {"step_ns": steady_ns(before), "changes": entries}


def rounds_of(step: Step) -> int:
    """So many turns of a sample of this step and one of another as the time for a change allows."""
    count = steps_of_a_sample(step, LEAST_S)
    return max(ROUNDS, min(MOST_ROUNDS, round(ROUNDS_S * 1e9 / (2 * count * loop_ns(step, count)))))


def promised(program: Program, result: dict[str, Any], folder: Path) -> None:
    """What advice on a recording says of the step and of its changes, beside what was timed."""
    step = program.build()
    summary = advised(step, folder)
    result["after_recording_ns"] = steady_ns(step)
    described(result, summary)
    for entry in result["changes"]:
        if "gain_ns" in entry:
            compared(entry, summary)


def compared(entry: dict[str, Any], summary: Any) -> None:
    """What was said of a change beside what it brought.

    A host's speed wanders by up to a half between minutes, so a gain is said of the step as it was beside the
    change: the share of the simulated step that it takes away.
    """
    said = [one for one in summary.advice or () if one.code == entry["code"]]
    step_ns = summary.typical_step.step_ns if summary.typical_step is not None else 0.0
    scale = entry["before_ns"] / step_ns if step_ns else 1.0
    gain_ns, least_ns = entry["gain_ns"], LEAST_GAIN * entry["before_ns"]
    said_ns = scale * max((one.estimated_gain_ns_per_step or 0.0 for one in said), default=0.0)
    found = next((one.gain_interval_ns_per_step for one in said if one.gain_interval_ns_per_step), None)
    interval = None if found is None else [scale * edge for edge in found]
    within = is_right(said_ns, interval, gain_ns, least_ns)
    edges_ns = entry.get("true_interval_ns") or [gain_ns, gain_ns]
    is_undecided = len(could_be(said_ns, interval, edges_ns, least_ns)) > 1
    entry |= {"said_ns": said_ns, "interval_ns": interval, "within": within, "undecided": is_undecided}
    shown, true = (
        "–" if one is None else f"{one[0] / 1e6:.3f} to {one[1] / 1e6:.3f}"
        for one in (interval, entry.get("true_interval_ns"))
    )
    code = entry["code"].removeprefix("advice.")
    print(
        f"  {code:22} true {gain_ns / 1e6:8.3f} ({true}), said {said_ns / 1e6:8.3f} ({shown}) "
        f"{'ok' if within else 'OFF'}"
    )


def is_right(said_ns: float, interval: Sequence[float] | None, gain_ns: float, least_ns: float) -> bool:
    """Whether what was said of a change is within 30 % of its gain, or its interval holds the gain."""
    is_close = gain_ns > 0 and abs(said_ns / gain_ns - 1) <= TOLERANCE
    is_inside = interval is not None and interval[0] <= gain_ns <= interval[1]
    return is_close or is_inside if gain_ns >= least_ns else said_ns <= 2 * least_ns or is_inside


def could_be(
    said_ns: float, interval: Sequence[float] | None, edges_ns: Sequence[float], least_ns: float
) -> set[bool]:
    """Whether what was said is right, for every gain that the measurement leaves open."""
    return {is_right(said_ns, interval, one, least_ns) for one in np.linspace(*edges_ns, 101)}


def described(result: dict[str, Any], summary: Any) -> None:
    """The step that the recording tells of, and all advice."""
    step, timed = summary.typical_step, summary.measured_step.unrecorded_ns
    result["timed_ns"] = None if timed is None else timed.median
    if step is not None:
        result["recorded_ns"], result["simulated_ns"] = step.recorded_ns, step.step_ns
        result["unrecorded_error"] = step.unrecorded_error
        result["timed_over_true"] = None if timed is None else timed.median / result["step_ns"]
    result["best_set"] = None if summary.best_set is None else summary.best_set.estimated_gain_ns_per_step
    result["ranked"] = [
        [one.code, one.estimated_gain_ns_per_step, one.gain_interval_ns_per_step]
        for one in summary.advice or ()
    ]
    print(
        f"{result['program']}: "
        f"{', '.join(f'{name} {(result.get(name) or 0) / 1e6:.3f} ms' for name in _SHOWN)}"
    )


_SHOWN = ("step_ns", "timed_ns", "simulated_ns", "recorded_ns", "after_recording_ns")


def again(folder: Path) -> list[dict[str, Any]]:
    """The results of a run with today's advice on its traces; what was timed stays."""
    import opscope
    from opscope.advice import assess

    results = []
    kept_aside = held_out_programs(Size("cuda:0"))
    for path in sorted(folder.glob("*/result.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        result["held_out"] = result["program"] in kept_aside
        trace = next(one for one in sorted((path.parent / "recording").glob("trace.json*")) if one.is_file())
        with opscope.load(str(trace)) as session:
            summary = assess(session)
        described(result, summary)
        for entry in result["changes"]:
            if "gain_ns" in entry:
                compared(entry, summary)
        results.append(result)
    return results


def advised(step: Step, folder: Path) -> Any:
    """The Summary of a recording of some steps with its advice."""
    import opscope
    from opscope.advice import assess

    around = min(60, max(12, steps_of_a_sample(step, AROUND_S)))
    with opscope.profile(str(folder), wait=around, warmup=2, active=ACTIVE, with_stack=False) as profiler:
        for _ in range(profiler.total_steps + around):
            step()
            profiler.step()
    with profiler.session as session:
        return assess(session)


def steady_ns(step: Step) -> float:
    """Median time of a step, without a profiler."""
    count = steps_of_a_sample(step, LEAST_S)
    return statistics.median(loop_ns(step, count) for _ in range(ROUNDS))


def release() -> None:
    """Give cached memory back."""
    from opscope.workloads.runtime import release_memory

    gc.collect()
    release_memory()


def table(results: Sequence[dict[str, Any]]) -> str:
    """The results as a Markdown table, in ms per step; * marks programs that were looked at."""

    def ms(*edges_ns: float) -> str:
        return " to ".join(format(edge_ns / 1e6, ".3g") for edge_ns in edges_ns)

    def interval(edges_ns: Sequence[float] | None) -> str:
        return "–" if edges_ns is None else ms(*edges_ns)

    rows = [
        (
            result["program"] + ("" if result["held_out"] else " *"),
            f"`{one['code'].removeprefix('advice.')}`",
            ms(one["before_ns"]),
            ms(one["gain_ns"]),
            interval(one.get("true_interval_ns")),
            ms(one["said_ns"]),
            interval(one["interval_ns"]),
            ("yes" if one["within"] else "no") + (" (undecided)" if one["undecided"] else ""),
        )
        for result in results
        for one in result.get("changes", ())
        if "gain_ns" in one
    ]
    head = ("program", "change", "step", "gained", "interval", "said", "interval", "right")
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows))


def summed_up(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How many gains came true, of the held-out programs and of all."""
    summary = {}
    for title, chosen in (("held_out", [one for one in results if one.get("held_out")]), ("all", results)):
        known = [one for result in chosen for one in result.get("changes", ()) if "gain_ns" in one]
        told = [one for one in known if one["said_ns"] > 0 and one["gain_ns"] > LEAST_GAIN * one["before_ns"]]
        errors = [abs(one["timed_over_true"] - 1) for one in chosen if one.get("timed_over_true")]
        summary[title] = {
            "programs": len(chosen),
            "gains": len(known),
            "within": sum(one["within"] for one in known),
            "within_of_decided": [
                sum(one["within"] for one in known if not one["undecided"]),
                sum(not one["undecided"] for one in known),
            ],
            "beyond_twice": sum(not 0.5 <= one["said_ns"] / one["gain_ns"] <= 2 for one in told),
            "wrong_sign": sum(
                one["said_ns"] > 0 > one["gain_ns"] + LEAST_GAIN * one["before_ns"] for one in known
            ),
            "median_timed_error": statistics.median(errors) if errors else None,
            "most_timed_error": max(errors, default=None),
        }
    return summary


def all_programs(size: Size) -> dict[str, Program]:
    """Every program by name, those that nothing was fitted on last."""
    return programs(size) | once_held_out(size) | held_out_programs(size)


def measured_apart(name: str, size: Size, folder: Path) -> dict[str, Any]:
    """A program timed, then recorded, each in a process of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    kept_aside, began = held_out_programs(size), time.perf_counter()
    program = all_programs(size)[name]
    result: dict[str, Any] = {"program": name, "held_out": name in kept_aside, "changes": []}

    def recorded() -> dict[str, Any]:
        promised(program, result, folder / "recording")
        return result

    for task in (lambda: timed(program), recorded):
        result |= in_process(task, folder / "result.json")
    return result | {"seconds": time.perf_counter() - began}


def in_process(task: Callable[[], dict[str, Any]], output: Path) -> dict[str, Any]:
    """What a task returns, from a process of its own: one that loses the device must not cost the others."""
    output.unlink(missing_ok=True)
    process = multiprocessing.get_context("fork").Process(target=lambda: write(output, task()))
    process.start()
    process.join(MOST_S)
    if process.is_alive():
        process.kill()
    if not output.exists():
        print(f"{output.parent.name}: FAILED with {process.exitcode}")
        return {"error": f"exit code {process.exitcode}"}
    found: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    return found


def preload() -> None:
    """Import what the forked processes need; none of it touches the device."""
    import timm
    import torch
    import transformers

    import opscope.advice

    del timm, torch, transformers, opscope


def main() -> None:
    """Measure and write."""
    parser = parser_of(__doc__)
    parser.add_argument("--programs", nargs="+")
    parser.add_argument("--held-out", action="store_true", help="these programs alone")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--again", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    size = Size(options.device)
    if options.again:
        environment = json.loads((options.again / "environment.json").read_text(encoding="utf-8"))
        results = again(options.again)
        write(
            options.output, {"environment": environment, "summary": summed_up(results), "programs": results}
        )
        print(table(results), summed_up(results), sep="\n")
        return
    preload()
    with tempfile.TemporaryDirectory() as work:
        folder, all_names = options.traces or Path(work), list(all_programs(size))
        results = [
            measured_apart(name, size, folder / f"{number:02}_{name.replace(' ', '_')}")
            for number, name in enumerate(all_names)
            if name in (options.programs or (held_out_programs(size) if options.held_out else all_names))
        ]
        write(folder / "environment.json", environment_facts())
    document = {"environment": environment_facts(), "summary": summed_up(results), "programs": results}
    write(options.output, document)
    print(table(results), document["summary"], sep="\n")


if __name__ == "__main__":
    main()
