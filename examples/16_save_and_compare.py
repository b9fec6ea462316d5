"""Save a result, change the code, and compare (guide 000, Q3: how do two runs compare?).

`mine.py` is benchmarked, changed and benchmarked again. `opscope compare` matches what has the same name and
shape; with `--fail-on slower` it exits with 3 if something got slower, for a CI job. It compares two traces
just so. A folder for the files can be given. Look at the ratio's interval, and at the exit code.
"""

import io
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

import torch

import opscope
from opscope.cli import main as command_line

CODE = """
import torch

def make_inputs(device):
    return torch.randn({rows}, 1024, device=device)

def mine(x):
    return {expression}
"""
BEFORE = "torch.nn.functional.gelu(x, approximate='tanh')"
AFTER = "0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x * x * x)))"


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="opscope-example-"))
    folder.mkdir(parents=True, exist_ok=True)
    rows = 8192 if torch.cuda.is_available() else 128
    for name, expression in (("before", BEFORE), ("after", AFTER)):
        (folder / "mine.py").write_text(CODE.format(rows=rows, expression=expression), encoding="utf-8")
        target, file = f"{folder / 'mine.py'}:mine", folder / f"{name}.json"
        with redirect_stdout(io.StringIO()):  # its report; `opscope compare` shows what counts here
            options = ["--time-budget", "0.3", "--skip", "ceilings", "--save", str(file), "--force"]
            command_line(["bench", target, *options])
        print(f"Wrote {file.name}, measured with {expression}")
    files = [str(folder / "before.json"), str(folder / "after.json")]
    ((_, change),) = opscope.compare(*files).rows
    print(f"in Python: {change.name} is {change.time.verdict}, {change.time.ratio:.2f} times the time before")
    code = command_line(["compare", *files, "--fail-on", "slower"])
    print(f"exit code of compare --fail-on slower: {code}", flush=True)


if __name__ == "__main__":
    main()
