"""Extracted calls on a device: starts compute the call, generated kernels run from their source."""

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from case_tables import tables  # noqa: E402
from opscope.extraction.call_file import call_file  # noqa: E402
from opscope.extraction.starts import StartKind  # noqa: E402
from opscope.operators.arguments import parse_arguments  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.torch]

CASES = tables(Path(__file__).parents[1] / "unit/extraction/test_starts.toml")
COMPILED = """
import torch
f = torch.compile(lambda x: torch.nn.functional.gelu(x) + 1)
x = torch.randn(1024, 1024, device="cuda")
for _ in range(20):
    f(x)
torch.cuda.synchronize()
"""


def files(folder, rows, kind):
    found = []
    for number, (name, *columns) in enumerate(rows):
        keys = ("shapes", "types", "strides", "concrete")
        call = parse_arguments(f"aten::{name}", **dict(zip(keys, columns, strict=True)))
        found.append(folder / f"{number}_{name}.py")
        found[-1].write_text(call_file(call, what="A call.", name="call.py", start=kind).text)
    return found


def run_all(paths):
    runs = "import runpy, sys\nfor file in sys.argv[1:]: runpy.run_path(file, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", runs, *paths], capture_output=True, text=True, check=False)
    said = done.stdout.count("mine computes what the reference does")
    assert said == len(paths), f"{paths[said].name}: {done.stderr}"


def extract(folder, program, *words):
    """Record a program and extract calls of it."""
    script, opscope = folder / "program.py", (sys.executable, "-m", "opscope")
    script.write_text(program)
    subprocess.run([*opscope, "run", "--output-dir", folder / "rec", script], check=True)
    (trace,) = (folder / "rec").glob("trace.json*")
    subprocess.run([*opscope, "extract", trace, *words], check=True)


def test_triton_starts_compute_the_call(tmp_path):
    pytest.importorskip("triton")
    rows = [given for (given,) in CASES["a_start_computes_the_call"]]
    run_all(files(tmp_path, rows, StartKind.TRITON))


def test_a_cuda_start_computes_the_call(tmp_path):
    ((given,), *_) = CASES["cuda_compiles"]
    run_all(files(tmp_path, [given], StartKind.CUDA))


def test_a_kernel_of_torch_compile_runs_from_its_source(tmp_path):
    extract(tmp_path, COMPILED, "triton_", "-o", call := tmp_path / "call.py")
    run_all([call])


def test_what_the_program_gave_is_in_the_files(tmp_path):
    own = Path(__file__).with_name("extracted.py.txt").read_text()
    extract(tmp_path, own, "--all", calls := tmp_path / "calls", "--top", "all")
    text = "".join(file.read_text() for file in calls.glob("*.py"))
    assert "torch.randperm(204, device=device)[:30]" in text
    assert "    doubled[(256, 1, 1)](x=x, out=out, n=262144, BLOCK=1024)\n" in text
    assert "condition = torch.rand((4096, 1), device=device) >= 0." in text
    assert "with torch.autocast(DEVICE, dtype=torch.bfloat16):\n        return torch.ops.aten.cross" in text
    assert "weight = torch.randn((256, 64), device=device, dtype=torch.float32).requires_grad_()\n" in text
    run_all(sorted(calls.glob("*.py")))
