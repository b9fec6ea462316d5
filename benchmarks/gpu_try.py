"""What does `opscope try` find without help, and how near is advice? Needs a CUDA device.

    python benchmarks/gpu_try.py --output FILE.json [--programs NAME …] [--budget 5m]
    python benchmarks/gpu_try.py --output FILE.json --device cpu --programs "mlp zeros"      # a rehearsal

Each program of `gpu_programs.py` is written to a script that calls its step for ever, and `opscope try
--predict --allow-precision` gets that script and a budget. Kept are the time it took, the best set, and for
every change what advice said of it and what it brought.
"""

from __future__ import annotations

import json
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
    step()

while True:
    one()
"""


def tried(name: str, device: str, budget: str) -> dict[str, Any]:
    """What is found of a program."""
    with tempfile.TemporaryDirectory() as folder:
        script, output = Path(folder) / "program.py", Path(folder) / "result.json"
        script.write_text(SCRIPT.format(folder=str(Path(__file__).parent), device=device, name=name))
        command = [sys.executable, "-m", "opscope", "try", "--steps", "one", "--budget", budget]
        command += ["--predict", "--allow-precision", "--json", "--save", str(output), "--", str(script)]
        began = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - began
        if not output.exists():
            print(f"{name}: FAILED {done.stderr[-500:]}")
            return {"program": name, "error": done.stderr[-3000:]}
        result: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    best, base_ns = result["best"], result["baseline"]["step_ns"]
    found = "nothing" if best is None else f"{base_ns / best['step_ns']:.2f}x by {' + '.join(best['names'])}"
    for line in done.stderr.splitlines():
        if "no predictions" in line:
            print(line)
    print(f"{name}: {base_ns / 1e6:.3f} ms, {found}, {result['runs']} runs in {seconds:.0f} s")
    for one in result["variants"]:
        said, ratio = one["predicted_gain_ns"], one["ratio"]
        print(
            f"  {one['name']:24} {one['verdict']:12} {one['correctness']:15} "
            f"measured {(1 - ratio) * base_ns / 1e6 if ratio else 0.0:8.3f} ms, "
            f"said {'–' if said is None else format(said / 1e6, '.3f')} {(one['error'] or '')[-100:]}"
        )
    return {"program": name, "seconds": seconds, **result}


def main() -> None:
    """Try all programs and write."""
    parser = parser_of(__doc__)
    parser.add_argument("--programs", nargs="+")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--budget", default="5m")
    options = parser.parse_args()
    names = options.programs or list(programs(Size(options.device)))
    environment, results = environment_facts(), []
    for name in names:
        results.append(tried(name, options.device, options.budget))
        write(options.output, {"environment": environment, "programs": results})


if __name__ == "__main__":
    main()
