"""The examples of the help of every verb, the files that they name, and which of them need a GPU."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

from opscope.data import example_trace

READ = ("analyze", "compare", "devices", "doctor", "explain", "extract", "sql", "stats")
RUN = ("bench", "run", "try")  # programs, on a CPU too
NEED_GPU = ("ncu", "nvcc", "profile", "trace")

_FILES = {
    "train.py": """
import torch
device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Linear(8, 8).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(24 if device == "cuda" else 400):
    model(torch.ones(4, 8, device=device)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "infer.py": """
import sys, torch
device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4))).eval().to(device)
images = torch.ones(int(sys.argv[2]), 64, device=device)
for _ in range(400):
    with torch.inference_mode():
        model(images).sum().item()
""",
    "ops.py": """
import torch
def make_inputs():
    return (torch.ones(64),)
def fast(x):
    return x * 2
def slow(x):
    return x + x
""",
    "add.cu": """
#include <cstdio>
#include <cstdlib>
__global__ void add(int n, float *x) { for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] += 1; }
int main(int count, char **words) {
  int n = count > 1 ? atoi(words[1]) : 1;
  float *x;
  cudaMalloc(&x, n * sizeof(float));
  add<<<1, 256>>>(n, x);
  return cudaDeviceSynchronize() != cudaSuccess;
}
""",
}


def examples(help_text: str) -> list[list[str]]:
    """The words of each example of a help page, without `opscope`."""
    found = re.findall(r"Examples?: opscope (.+(?:\n.+)*)", help_text)
    return [shlex.split(one) for one in found]


def write_files(folder: Path) -> None:
    """What the examples read and run."""
    for name in ("trace", "before", "after"):
        shutil.copy(example_trace(), folder / f"{name}.json.gz")
    for name, text in _FILES.items():
        (folder / name).write_text(text, "utf-8")
