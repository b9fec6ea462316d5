"""Record some steps of a loop, and handle each recorded cycle (guides 001, 003: schedule, on_trace_ready).

With wait=1, warmup=1, active=2, repeat=2 the first two of every four steps are not recorded. Handlers run
when a cycle's files are whole: here the top operators, a copy for chrome://tracing, one for TensorBoard
(`tensorboard --logdir FOLDER/tensorboard`), and a function of our own. A folder for the copies can be given.
Look at which steps were recorded; unlike in torch's table, no kernel of a warm-up step is among them.
"""

import sys
import tempfile
from pathlib import Path

import torch

import opscope


def say_steps(cycle) -> None:
    with opscope.load(cycle.trace_path) as session:
        steps = [step.step for step in opscope.summarize(session).steps]
    print(f"cycle {cycle.index}: recorded steps {steps}")


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="opscope-example-"))
    device, size = ("cuda", 8192) if torch.cuda.is_available() else ("cpu", 512)
    handlers = [
        say_steps,
        opscope.print_table(top=3),
        opscope.export_chrome_trace(folder / "chrome", "cycle{index}.json", overwrite=True),
        opscope.tensorboard_trace(folder / "tensorboard"),
    ]
    with opscope.profile(wait=1, warmup=1, active=2, repeat=2, on_cycle=handlers) as profiler:
        for _ in range(10):
            torch.square(torch.randn(size, size, device=device))
            profiler.step()
    for file in sorted(folder.rglob("*.json")):
        print(f"Wrote {file.relative_to(folder)}")


if __name__ == "__main__":
    main()
