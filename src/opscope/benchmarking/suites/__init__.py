"""The suites `opscope bench NAME` knows: operators of the guides, each solved in several ways.

The registry is data, and a suite's module is imported when it is asked for; none imports torch by itself.
"""

from __future__ import annotations

import importlib
from dataclasses import replace

from opscope.benchmarking.suite import Parameter, Suite, SuiteOptions
from opscope.errors import InputError

__all__ = ["SUITES", "Parameter", "Suite", "SuiteOptions", "suite"]

# Name → what it compares. Each is the module of that name here, which holds it as SUITE.
SUITES: dict[str, str] = {
    "gelu": "GELU: a composition of operators, torch's, CUDA C++, Triton, torch.compile",
    "square": "x²: torch.square, x * x, x ** 2, CUDA C++, Triton",
    "add": "x + y: torch, CUDA C++, Triton",
    "softmax": "softmax of rows: a composition of operators, torch's, CUDA C++, Triton, torch.compile",
    "layer_norm": "layer norm of rows: a composition of operators, torch's, CUDA C++, Triton, torch.compile",
    "matmul": "matrix product: torch, Triton, one element per thread; TF32 beside float32",
    "cdist": "distances of all pairs of points: torch.cdist, by a matrix product, by broadcasting",
    "attention": "attention: written out, and each backend of scaled_dot_product_attention",
}


def suite(name: str) -> Suite:
    """The suite of that name."""
    if name not in SUITES:
        raise InputError(f"'{name}' is not a suite", hint=f"Use {', '.join(SUITES)}, or FILE.py:function")
    found: Suite = importlib.import_module(f"{__name__}.{name}").SUITE
    return replace(found, summary=SUITES[name])
