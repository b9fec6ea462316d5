"""What an operator really launches (guide 002: add, matmul, cdist, softmax, gelu), with names decoded.

On a GPU each call is recorded with its kernels; without one the operators it calls are, and the kernels are
those of the trace that comes with opscope. Look at how many operators stand behind one cdist: it works by ‖x
− y‖² = ‖x‖² + ‖y‖² − 2 xᵀy (the guide has one ‖x − y‖² too many), hence pow, sum, cat and matmul.
"""

import torch

import opscope


def say_kernels(operator) -> None:
    for kernel in operator.kernels:
        fields = kernel.facts.fields if kernel.facts else {}
        known = {
            name: fields.get(name) for name in ("family", "operation", "variant", "operand_type", "tile")
        }
        what = ", ".join(f"{name} {value}" for name, value in known.items() if value)
        print(f"    {kernel.calls:3} × {kernel.name[:60]}\n          {what}")


def main() -> None:
    device, size = ("cuda", 2048) if torch.cuda.is_available() else ("cpu", 128)
    x, y = torch.randn(2, size, size, device=device)
    calls = {
        "add": lambda: x + y,
        "matmul": lambda: x @ y,
        "matmul of 128 rows": lambda: x[:128] @ y,  # another shape, and so perhaps another kernel
        "cdist": lambda: torch.cdist(x, y),
        "softmax": lambda: torch.softmax(x, dim=-1),
        "gelu": lambda: torch.nn.functional.gelu(x),
    }
    for name, call in calls.items():
        _, session = opscope.profile_call(call)
        with session:
            summary = opscope.summarize(session)
        operators = sorted(operator.name.removeprefix("aten::") for operator in summary.operators)
        print(f"{name}, operators: {', '.join(operators)}")
        for operator in summary.operators:
            say_kernels(operator)
    if device == "cpu":
        print("\nKernels recorded on an H200, in BERT:")
        with opscope.load(opscope.example_trace()) as session:
            recorded = opscope.summarize(session).operators
        for operator in recorded:
            if operator.name in {"aten::add", "aten::addmm", "aten::_softmax", "aten::gelu"}:
                print(f"  {operator.name}")
                say_kernels(operator)


if __name__ == "__main__":
    main()
