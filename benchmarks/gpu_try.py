"""What does `opscope try` find without help, and how near is advice? Needs a CUDA device.

    python benchmarks/gpu_try.py --output FILE.json [--programs NAME[=SECONDS] …] [--budget SECONDS]
    python benchmarks/gpu_try.py --output FILE.json --device cpu --programs "mlp zeros=40"      # a rehearsal
    python benchmarks/gpu_try.py --output FILE.json --unchanged 20 --programs "gpt2 train=120"

Each program of `gpu_programs.py` is written to a script that calls its step for ever, and `try_changes` gets
that script and a budget, with changes of the type allowed; `bert` is opscope's own workload, batch 8, 128
tokens. Kept are the time it took and when each run began, the best set, and for every change what advice said
of it and what it brought. With `--unchanged` changes are tried that change nothing: equal programs must be
called the same. Results are added to those in the file.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from gpu_gains import LEAST_GAIN, could_be, is_right
from gpu_programs import Size, programs
from gpu_setup import environment_facts, parser_of, write
from opscope import try_changes
from opscope.errors import OpscopeError
from opscope.report.trial import trial_json
from opscope.trials.predictions import append_history
from opscope.workloads.spec import WorkloadOptions

SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
from gpu_programs import Size, programs
step = programs(Size({device!r}))[{name!r}].build()

def one():
    return step()

while True:
    one()
"""


def target(name: str, device: str, folder: Path) -> tuple[str, dict[str, Any]]:
    """What is tried, and how."""
    if name == "bert":
        small = {} if device.startswith("cuda") else {"layers": 2, "hidden": 64, "device": device}
        return "bert", {"sizes": (8, 128), "options": WorkloadOptions(**small)}
    script = folder / "program.py"
    script.write_text(SCRIPT.format(folder=str(Path(__file__).parent), device=device, name=name))
    return str(script), {"steps": "one"}


def unchanged(count: int, folder: Path) -> dict[str, Any]:
    """Changes that change nothing."""
    files = [folder / f"unchanged_{number}.py" for number in range(1, count + 1)]
    for file in files:
        file.write_text("def change(hooks):\n    pass\n")
    return {"only": [], "change": files, "predict": False} if files else {}


def tried(name: str, given: Any, budget_s: float) -> dict[str, Any]:
    """What is found of a program."""
    began, timeline = time.perf_counter(), []

    def on_run(what: str, done: int, total: int) -> None:
        timeline.append((round(time.perf_counter() - began, 1), what))

    with tempfile.TemporaryDirectory() as folder:
        path, options = target(name, given.device, Path(folder))
        options |= {"rounds": given.rounds, "seconds": given.seconds, "allow_precision": True}
        options |= {"budget_s": budget_s, "note": print} | unchanged(given.unchanged, Path(folder))
        try:
            result = try_changes(path, on_run=on_run, **options)
        except OpscopeError as error:
            print(f"{name}: FAILED {error}", flush=True)
            return {"program": name, "error": str(error)}
        append_history(given.output.with_suffix(".jsonl"), result, {"name": name, "device": result.device})
    print("  " + " · ".join(f"{at_s:.1f} {what}" for at_s, what in timeline))
    seconds, document = time.perf_counter() - began, trial_json(result)
    for one in document["variants"]:  # the lines before name folders of this machine
        one["error"] = one["error"] and one["error"].rpartition("\n")[2]
    tell(name, document, seconds)
    return {**document, "program": name, "seconds": seconds, "timeline": timeline}


def tell(name: str, result: dict[str, Any], seconds: float) -> None:
    """Print what was found, as it is found."""
    best, noise, base_ns = result["best"], result["noise"], result["baseline"]["step_ns"]
    found = "nothing" if best is None else f"{base_ns / best['step_ns']:.2f}x by {' + '.join(best['names'])}"
    again = "–" if noise is None else f"{noise['ratio']:.4f}"
    print(
        f"{name}: {base_ns / 1e6:.3f} ms, {found}, {result['runs']} runs in {seconds:.0f} s, itself {again}, "
        f"{'all tried' if result['is_complete'] else 'budget spent'}"
    )
    for one in result["variants"]:
        gain_said, ratio = one["predicted_gain_ns"], one["ratio"]
        print(
            f"  {one['name']:24} {one['verdict']:12} {one['correctness']:15} "
            f"measured {(1 - ratio) * base_ns / 1e6 if ratio else 0.0:8.3f} ms, "
            f"said {'–' if gain_said is None else format(gain_said / 1e6, '.3f')} "
            f"{(one['error'] or '')[:100]}",
            flush=True,
        )


def tables(results: list[dict[str, Any]]) -> str:
    """What was found of each program, and what advice said of each change beside what it brought, in ms."""
    found, pairs = [], []
    for one in results:
        if "error" in one:
            continue
        base_ns, best, noise = one["baseline"]["step_ns"], one["best"], one["noise"]
        again = "–" if noise is None else f"{noise['ratio']:.3f}"
        names = "nothing" if best is None else " + ".join(f"`{name}`" for name in best["names"])
        step_ns, factor = (base_ns, 1.0) if best is None else (best["step_ns"], 1 / best["ratio"])
        found.append((one["program"], ms(base_ns), again, names, ms(step_ns), f"{factor:.2f}",
                      str(one["runs"]), f"{one['seconds']:.0f}"))  # fmt: skip
        pairs += [pair(one, variant) for variant in one["variants"] if is_pair(variant)]
    head = ("program", "step", "against itself", "best found", "step", "times as fast", "runs", "seconds")
    of_pairs = ("program", "change", "step", "gained", "interval", "said", "interval", "right")
    return grid(head, found) + "\n\n" + grid(of_pairs, pairs)


def is_pair(variant: dict[str, Any]) -> bool:
    """Whether advice said something of a change whose numbers are right and that was timed."""
    is_timed = variant["ratio"] is not None and variant["correctness"] != "changed"
    return is_timed and variant["predicted_gain_ns"] is not None


def pair(result: dict[str, Any], variant: dict[str, Any]) -> tuple[str, ...]:
    """A row of what was gained and said, and whether that is right, as `gpu_gains.py` judges."""
    base_ns, said_ns = result["baseline"]["step_ns"], variant["predicted_gain_ns"]
    low_ns, gained_ns, high_ns = (
        (1 - ratio) * base_ns
        for ratio in (variant["ratio_interval"][1], variant["ratio"], variant["ratio_interval"][0])
    )
    edges_ns = variant.get("predicted_interval_ns") or (said_ns, said_ns)
    known = (said_ns, edges_ns)
    is_told = could_be(*known, (low_ns, high_ns), LEAST_GAIN * base_ns)
    is_near = is_right(*known, gained_ns, LEAST_GAIN * base_ns)
    right = ("yes" if is_near else "no") + ("" if len(is_told) == 1 else " (undecided)")
    return (result["program"], f"`{variant['name']}`", ms(base_ns), ms(gained_ns), ms(low_ns, high_ns),
            ms(said_ns), ms(*edges_ns), right)  # fmt: skip


def ms(*edges_ns: float) -> str:
    """Milliseconds."""
    return " to ".join(format(edge_ns / 1e6, ".3g") for edge_ns in edges_ns)


def grid(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows))


def main() -> None:
    """Try all programs and write."""
    parser = parser_of(__doc__)
    parser.add_argument("--programs", nargs="+")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--budget", type=float, default=300.0, help="seconds for each program")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--table", action="store_true", help="print the tables of what the file holds")
    parser.add_argument("--unchanged", type=int, default=0, help="try so many changes that change nothing")
    given = parser.parse_args()
    results = json.loads(given.output.read_text())["programs"] if given.output.exists() else []
    if given.table:
        print(tables(results))
        return
    environment = environment_facts()
    with contextlib.suppress(KeyboardInterrupt):
        for one in given.programs or ["bert", *programs(Size(given.device))]:
            name, _, budget_s = one.partition("=")
            results.append(tried(name, given, float(budget_s or given.budget)))
            write(given.output, {"environment": environment, "programs": results})


if __name__ == "__main__":
    main()
