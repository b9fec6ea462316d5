"""torch.square, a * a and a ** 2 side by side (guide 003: which of them is slow, and why?).

The guide saw pow take 3 % longer than mul, in single runs. Here each is recorded, so that its operators and
kernels are seen, and timed often enough for a verdict. Look at both: square calls pow, and pow has a case of
its own for the exponent 2, which multiplies. So on a GPU the three are the same today.
"""

import torch

import opscope

SQUARES = {"torch": torch.square, "multiply": lambda a: a * a, "power": lambda a: a**2}


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    a = torch.randn(1024, 1024, device=device)
    for name, square in SQUARES.items():
        _, session = opscope.profile_call(square, a)
        with session:
            summary = opscope.summarize(session)
        print(f"{name:9} operators: {', '.join(operator.name for operator in summary.operators)}")
        for kernel in summary.kernels:
            print(f"{'':9} kernel: {kernel.name[:100]}")

    result = opscope.bench("square", implementations=list(SQUARES), time_budget_s=0.5, ceilings=False)
    for row in result.rows:
        verdict = f"{row.verdict}; {row.verdict_reason}" if row.verdict else "reference"
        print(f"{row.name:9} {row.median_ns / 1e6:.3f} ms, {verdict}")


if __name__ == "__main__":
    main()
