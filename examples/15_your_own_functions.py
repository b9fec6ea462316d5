"""Compare functions of your own over a range of sizes (guide 002: benchmarking, for your own question).

The first function is the reference. `opscope bench FILE:by_torch FILE:by_hand --param columns=512,4096`, with
this file, shows the same as tables, and the power of the size that each time grows with. Look at the
ratios: do they change as rows get longer?
"""

import torch

import opscope

SIZES = [1024, 4096, 8192] if torch.cuda.is_available() else [128, 512]


def make_inputs(columns: int, device: str, seed: int) -> torch.Tensor:
    """Whichever of its parameters, `device`, `dtype` and `seed` it names, it is given."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(1024, columns, device=device, generator=generator)


def by_torch(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, dim=-1)


def by_hand(x: torch.Tensor) -> torch.Tensor:
    exponentials = torch.exp(x - x.amax(dim=-1, keepdim=True))
    return exponentials / exponentials.sum(dim=-1, keepdim=True)


def unsafe(x: torch.Tensor) -> torch.Tensor:
    """Without the maximum: right for these inputs, infinite for large ones."""
    exponentials = torch.exp(x)
    return exponentials / exponentials.sum(dim=-1, keepdim=True)


def main() -> None:
    functions, swept = (by_torch, by_hand, unsafe), {"columns": SIZES}
    how = {"time_budget_s": 0.2, "ceilings": False}
    for result in opscope.bench(*functions, inputs=make_inputs, params=swept, **how):
        print(f"columns = {result.parameters['columns']}")
        for row in result.rows:
            verdict = f"{row.ratio:5.2f} × {result.reference}: {row.verdict}" if row.verdict else "reference"
            print(f"  {row.name:9} {row.median_ns / 1e3:9.1f} µs  {verdict}")


if __name__ == "__main__":
    main()
