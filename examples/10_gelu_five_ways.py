"""GELU five ways: composed, torch, CUDA C++, Triton, torch.compile (guide 002: why is the first so slow?).

Each is checked against float64, timed in turn with the others, and on a GPU profiled. Look at the naive one:
it launches a kernel for each operation, and each of them reads and writes whole tensors; the others launch
one. What this machine cannot time says why. More: `opscope bench gelu --show kernels`.
"""

import torch

import opscope

FIVE = ["torch", "naive", "cuda", "triton", "compile"]


def main() -> None:
    on_gpu = torch.cuda.is_available()
    how = {"time_budget_s": 0.3, "ceilings": on_gpu}  # the ceiling here is what a copy reaches
    result = opscope.bench("gelu", implementations=FIVE, options={"approximate": "tanh"}, **how)
    print(f"gelu of {result.shape}, {result.dtype}, on {result.device}")
    for row in result.rows:
        if row.median_ns is None:
            print(f"{row.name:8} {row.status}: {row.reason}")
            continue
        verdict = f"{row.ratio:.2f} × torch: {row.verdict}" if row.verdict else "reference"
        share = f"{row.ceiling_fraction:.0%} of a copy, " if row.ceiling_fraction else ""
        rate = row.bytes_per_s / 1e9
        print(f"{row.name:8} {row.median_ns / 1e6:8.3f} ms, {rate:.1f} GB/s, {share}{verdict}")
    if on_gpu:
        for row in result.rows:
            for kernel in row.profile.kernels if row.profile else ():
                time_us = kernel.device_ns / 1e3
                print(f"{row.name:8} {kernel.launches:3.0f} × {time_us:7.1f} µs  {kernel.title[:80]}")


if __name__ == "__main__":
    main()
