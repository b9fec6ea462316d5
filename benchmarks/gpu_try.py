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
            f"{(one['error'] or '')[-100:]}",
            flush=True,
        )


def main() -> None:
    """Try all programs and write."""
    parser = parser_of(__doc__)
    parser.add_argument("--programs", nargs="+")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--budget", type=float, default=300.0, help="seconds for each program")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--unchanged", type=int, default=0, help="try so many changes that change nothing")
    given = parser.parse_args()
    results = json.loads(given.output.read_text())["programs"] if given.output.exists() else []
    environment = environment_facts()
    with contextlib.suppress(KeyboardInterrupt):
        for one in given.programs or ["bert", *programs(Size(given.device))]:
            name, _, budget_s = one.partition("=")
            results.append(tried(name, given, float(budget_s or given.budget)))
            write(given.output, {"environment": environment, "programs": results})


if __name__ == "__main__":
    main()
