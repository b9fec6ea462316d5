"""What does `opscope try` find without help, and how near is advice? Needs a CUDA device.

    python benchmarks/gpu_try.py --output FILE.json [--programs NAME[=BUDGET] …] [--budget 5m] [--options …]
    python benchmarks/gpu_try.py --output FILE.json --device cpu --programs "mlp zeros=40s"      # a rehearsal

Each program of `gpu_programs.py` is written to a script that calls its step for ever, and `opscope try
--allow-precision` gets that script and a budget; `bert` is opscope's own workload, batch 8, 128 tokens. Kept
are the time it took, the best set, and for every change what advice said of it and what it brought. Results
are added to those in the file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gpu_programs import Size, programs
from gpu_setup import environment_facts, parser_of, write

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


def target(name: str, device: str, folder: Path) -> list[str]:
    """What is tried, for the command line."""
    if name == "bert":
        small = [] if device.startswith("cuda") else ["--layers", "2", "--hidden", "64", "--device", device]
        return ["bert", "--batch-sizes", "8", "--seq-lens", "128", *small]
    script = folder / "program.py"
    script.write_text(SCRIPT.format(folder=str(Path(__file__).parent), device=device, name=name))
    return ["--steps", "one", "--", str(script)]


def tried(name: str, device: str, budget: str, options: list[str]) -> dict[str, Any]:
    """What is found of a program."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "result.json"
        command = [sys.executable, "-m", "opscope", "try", "--budget", budget, "--allow-precision", "--json"]
        command += ["--save", str(output), *options, *target(name, device, Path(folder))]
        began = time.perf_counter()
        environment = {**os.environ, "XDG_DATA_HOME": folder}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        seconds = time.perf_counter() - began
        if not output.exists():
            print(f"{name}: FAILED {done.stderr[-500:]}", flush=True)
            return {"program": name, "error": done.stderr[-3000:]}
        result: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    tell(name, result, seconds, done.stderr)
    return {**result, "program": name, "seconds": seconds}


def tell(name: str, result: dict[str, Any], seconds: float, said: str) -> None:
    """Print what was found, as it is found."""
    best, noise, base_ns = result["best"], result["noise"], result["baseline"]["step_ns"]
    found = "nothing" if best is None else f"{base_ns / best['step_ns']:.2f}x by {' + '.join(best['names'])}"
    if "no predictions" in said:
        print(said)
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
    parser.add_argument("--budget", default="5m")
    parser.add_argument("--options", default="", help="more options of opscope try")
    options = parser.parse_args()
    results = json.loads(options.output.read_text())["programs"] if options.output.exists() else []
    environment = environment_facts()
    for given in options.programs or ["bert", *programs(Size(options.device))]:
        name, _, budget = given.partition("=")
        results.append(tried(name, options.device, budget or options.budget, options.options.split()))
        write(options.output, {"environment": environment, "programs": results})


if __name__ == "__main__":
    main()
