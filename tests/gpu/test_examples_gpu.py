"""Every example on a device: what only a GPU shows in its output."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

pytestmark = [pytest.mark.gpu, pytest.mark.torch]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = sorted(path.name for path in EXAMPLES.glob("[0-9]*.py"))
# Extensions and kernels are compiled on the first run.
LIMIT_S = 600

# What the output has to match, in this order.
EXPECTED = {
    "01": [r"profiling_stats_bs8_seq128\.json", r"Total cuda time: \d", r"1\. aten::addmm: ", r"Blas\.cpp"],
    "02": ["before_window", "12,288 rows of 128 elements"],
    "03": ["wrong: only the launch", r"warm call, CUDA events +[\d.]+ ms", "95 % interval"],
    "04": ["aten::square", "opscope, engine autograd:", r"aten::pow +self CPU .* kernels 1, [\d.]+ µs"],
    "05": [r"cycle 0: recorded steps \[2, 3\]", "Device busy", r"cycle 1: recorded steps \[6, 7\]"],
    "06": [r"torch .*reference\ninline .* error \d.*  (faster|slower|same|ambiguous)\n$"],
    "07": [r"torch .*reference\ntriton +[\d.]+ µs  \w+\n", r"\.version", r"ld\.global", r"st\.global"],
    "08": [
        r"add, operators: add\n +1 × .*vectorized_elementwise_kernel.*\n +family elementwise, operation add",
        r"matmul, operators: .*mm.*\n +1 × .*\n +family gemm",
        r"cdist, operators: (.*\n)*? +1 × .*\n +family gemm",
        r"softmax, operators: .*\n +1 × .*softmax.*\n +family softmax",
        r"gelu, operators: gelu\n +1 × .*\n +family activation, operation gelu",
    ],
    "09": ["no tensor cores, operands f32", r"\nfloat32 .*False", r"\nTF32 .*True", r"\nbfloat16 .*True"],
    "10": [
        "float32, on cuda:0",
        "torch .*reference",
        r"naive .* \d+% of a copy, .* × torch: slower",
        r"torch +1 × +[\d.]+ µs  .*Gelu",
        r"(naive +\d+ × +[\d.]+ µs  .*\n){3}",
    ],
    "11": [
        r"torch +operators: aten::pow, aten::square.*\n +kernel: ",
        r"multiply .*aten::mul\n +kernel: ",
        "; ",
    ],
    "12": [
        r"bare: 1 of [\d.]+ µs each on the host, the launch [\d.]+ µs; kernels of [\d.]+–[\d.]+ µs\n",
        r"by a schedule: 7 of [\d.]+ µs .*; kernels of [\d.]+–[\d.]+ µs\n",
        r"add_kernel\(.*\): 7 launches, source .*add\.cu",
    ],
    "13": [
        "off, then only CUDA +no operators; 7 kernels, 0 of them with an operator",
        "warning: Operators were not recorded",
        "1: off +no operators; 0 kernels",
        "2: off, then only CPU +7 × vector_add::add; 0 kernels",
        "warning: Device activities were not recorded",
        "3: off, then both +7 × vector_add::add; 7 kernels, 7 of them",
        r"4: both +14 × aten::randn, 7 × vector_add::add; 21 kernels, 21 of them",
    ],
    "14": ["exit code 0\n", r"step 2: [\d.]+ ms, of the GPU (?!0\.00)[\d.]+ ms\n", r"aten::\w+: \d+ calls"],
    "15": ["columns = 1024", "columns = 4096", r"columns = 8192\n.*reference\n  by_hand .*slower"],
    "16": ["in Python: mine is slower", "exit code of compare --fail-on slower: 3\n"],
}


@pytest.mark.parametrize("name", NAMES)
def test_an_example_says_what_only_a_gpu_shows(name, tmp_path):
    if name.startswith("07"):
        pytest.importorskip("triton")
    takes_folder = "sys.argv[1]" in (EXAMPLES / name).read_text("utf-8")
    ended = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *([str(tmp_path)] if takes_folder else [])],
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", "COLUMNS": "120"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=LIMIT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    position = 0
    for pattern in EXPECTED[name[:2]]:
        found = re.compile(pattern).search(ended.stdout, position)
        assert found, f"after character {position} nothing matches {pattern!r} in:\n{ended.stdout}"
        position = found.start()
