"""The demo of `make demo`: profile BERT on this machine, analyze a trace recorded on an H200, name the page.

Runs the installed `opscope` as a user would and shows each command. On a machine without a GPU the same
commands run on the CPU, with one small configuration. Standard library only.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OPSCOPE = (sys.executable, "-m", "opscope")
OUTPUT = Path("opscope_output/demo")
TRACE = Path("src/opscope/data/bert_h200.json.gz")


class DemoError(Exception):
    """A command of the demo failed; its own words are above."""


def main() -> int:
    """Run the demo; the exit code of the first command that fails."""
    on_gpu = has_gpu()
    batch_sizes = ["1", "8"] if on_gpu else ["1"]
    profiled, page = OUTPUT / "bert", OUTPUT / "h200/report.html"
    try:
        heading(f"BERT on this machine's {'GPU' if on_gpu else 'CPU (no GPU found)'}")
        sizes = ["--batch-sizes", *batch_sizes, "--seq-lens", "128"]
        opscope("profile", "bert", *sizes, "--output-dir", str(profiled), "--force")
        heading("a trace recorded on an NVIDIA H200")
        opscope("analyze", str(TRACE), "--top", "10", "--output", str(page), "--force")
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    heading("files")
    for file in sorted(path for path in (ROOT / OUTPUT).rglob("*") if path.is_file()):
        print(f"{file.relative_to(ROOT)}  ({file.stat().st_size / 1e3:,.0f} kB)")
    print("\nThe traces (bert_trace_*.json) open at https://ui.perfetto.dev; the page, in a browser:")
    print(ROOT / page)
    return 0


def has_gpu() -> bool:
    """Whether torch sees a GPU; asked in a process of its own, so that the demo holds none."""
    script = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", script], check=False, capture_output=True).returncode == 0


def heading(text: str) -> None:
    """Print a heading."""
    print(f"\n== {text}", flush=True)


def opscope(*words: str) -> None:
    """Show and run one command.

    Raises:
        DemoError: It exits with another code than 0.
    """
    print(f"$ opscope {shlex.join(words)}", flush=True)
    code = subprocess.run([*OPSCOPE, *words], cwd=ROOT, check=False, stdin=subprocess.DEVNULL).returncode
    if code != 0:
        raise DemoError(f"`opscope {words[0]}` exited with {code}")


if __name__ == "__main__":
    sys.exit(main())
