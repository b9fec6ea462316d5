"""A kernel of your own in Triton, and Triton's interpreter (guide 001: Triton debugger; guide 002: PTX).

On a GPU the kernel is compiled, timed beside torch, and lines of its PTX are shown. Without one the
interpreter runs it in Python, where `print` and `breakpoint()` work inside the kernel. What the guide writes
as `@triton.jit(interpret=True)` is TRITON_INTERPRET=1 today, set before triton is imported. Look at which
elements each program computes, and at the masked ones of the last.
"""

import os
import sys

import torch

import opscope

# ruff: noqa: N803 - constants of a Triton kernel are upper-case
ON_GPU = torch.cuda.is_available()
if not ON_GPU:
    os.environ["TRITON_INTERPRET"] = "1"
try:
    import triton
    import triton.language as tl
except ImportError:
    sys.exit("Left out: Triton is not installed here (pip install 'opscope[triton]')")

BLOCK = 1024 if ON_GPU else 4


@triton.jit
def square_kernel(x_ptr, out_ptr, size, INTERPRETED: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < size
    x = tl.load(x_ptr + offsets, mask=inside)
    tl.store(out_ptr + offsets, x * x, mask=inside)
    if INTERPRETED:
        print("program", tl.program_id(0), "elements", offsets, "inside", inside)


def square(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    square_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, out, x.numel(), not ON_GPU, BLOCK)
    return out


def main() -> None:
    if not ON_GPU:
        x = torch.arange(10.0)
        print(f"right: {torch.equal(square(x), x * x)}")
        return
    x = torch.randn(8192, 8192, device="cuda")
    for row in opscope.bench({"torch": torch.square, "triton": square}, inputs=x, ceilings=False).rows:
        print(f"{row.name:8} {row.median_ns / 1e3:8.1f} µs  {row.verdict or 'reference'}")
    compiled = square_kernel[(8,)](x, torch.empty_like(x), 8192, False, BLOCK)
    for line in compiled.asm["ptx"].splitlines():
        if any(word in line for word in (".version", ".target", "ld.global", "st.global")):
            print(line.strip())


if __name__ == "__main__":
    main()
