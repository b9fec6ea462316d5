"""The chain from an operator to its source in words: each link with its grade, and what is not known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from opscope.analysis.provenance import Accuracy, NativeFunctionUse
from opscope.analysis.summary import Summary
from opscope.model.evidence import Grade
from opscope.model.location import SourceLocation
from opscope.report import provenance

from .conftest import markdown_of

BLAS = SourceLocation(
    "aten/src/ATen/native/cuda/Blas.cpp", Grade.RELEASE_INDEX, 589, 592, Grade.NEIGHBOR_VERSION, "https://x"
)
KERNEL = SourceLocation("Gelu.cu", Grade.EXACT, 21, 30, Grade.EXACT)
ADDMM = NativeFunctionUse(
    name="aten::addmm", overload="", kind="native", category="matrix", schema="addmm(Tensor self) -> Tensor",
    overload_grade=Grade.EXACT, structured_delegate="addmm.out", dispatch_key="CUDA",
    cuda_function="addmm_out_cuda", stub=None, tags=("core",), yaml_line=7270,
    details={"yaml_url": "https://yaml"}, location=BLAS, stub_location=None, calls=6, self_device_ns=6_000,
)  # fmt: skip


OUTSIDE = {"schema": None, "structured_delegate": None, "dispatch_key": None, "location": None}
NODE = {
    "forward": ["aten::gelu", "aten::gelu_"], "formulas": {"self": "gelu_backward(grad, self)"},
    "derivatives_line": 12, "yaml_url": "https://yaml",
}  # fmt: skip
REPLACED = {
    "kernels": {"CUDA": "/home/me/ops.py:12"},
    "overrides": {"CUDA": "build/aten/src/ATen/RegisterCUDA_0.cpp:10"},
}
FUNCTIONS: dict[str, dict[str, Any]] = {
    "every link of the chain": {"stub": "gelu_stub", "stub_location": KERNEL},
    "a launcher without a stub": {"stub_location": KERNEL, "details": {"launchers": ["GeluCUDAKernelImpl"]}},
    "several launchers": {"details": {"launchers": ["gather_topk", "sort"]}},
    "an overload that the trace does not tell": {
        "schema": None, "overload": None, "details": {"candidates": ["", "Scalar"]},
    },
    **{f"no yaml entry: {one}": {"kind": one, **OUTSIDE} for one in ("triton", "custom", "range", "native")},
    "generated code": {"kind": "generated", "location": None},
    "a node of autograd": {"kind": "backward", "details": NODE},
    "a node of an unknown operator": {"kind": "backward", "details": {}},
    "code that replaced PyTorch's": {"details": {**ADDMM.details, "registration": REPLACED}},
}  # fmt: skip
STUB = replace(ADDMM, stub="gelu_stub", stub_location=KERNEL)
OPERATORS: dict[str, dict[str, Any]] = {
    "one place is said once": {"native_functions": (ADDMM,), "source": BLAS},
    "of a stub at that place the name remains": {"native_functions": (STUB,), "source": KERNEL},
    "other overloads and called operators": {
        "native_functions": tuple(replace(ADDMM, overload=one) for one in ("", "out", "", None)),
        "called_operators": tuple((f"aten::o{index}", 1_000, 5) for index in range(6)),
    },
}
MEASURED = Accuracy(0.9, 0.8, 1.0, 0.7, 0.6, 0.5, 0.4, None, {"kernel_unit": {"exact": 1.0}, "line": {}})


def test_what_is_said(summary: Summary, cpu_summary: Summary, expect: Callable[[str, str], None]) -> None:
    told = {name: provenance.function_facts(replace(ADDMM, **fields)) for name, fields in FUNCTIONS.items()}
    for name, fields in OPERATORS.items():
        operator = replace(summary.operators[0], **fields)
        told[name] = provenance.operator_chain_facts(operator, has_device=True)
    told["without a device"] = provenance.operator_chain_facts(cpu_summary.operators[0], has_device=False)
    told["places and releases"] = [
        ("a file without a line", provenance.location_text(SourceLocation("a.cu", Grade.INFERRED))),
        ("labeled", provenance.release_text("2.6.0", Grade.EXACT, "labeled 2.6.0")),
        ("given", provenance.release_text("2.6.0", None, None)),
        ("unknown", provenance.release_text(None, None, "no names")),
    ]
    measured = summary.having(accuracy=MEASURED, torch_version="2.6.0")
    blocks = {
        name: provenance.accuracy_blocks(measured, is_full=is_full)
        for name, is_full in {"accuracy": True, "accuracy in short": False}.items()
    }
    expect("provenance.txt", markdown_of(told, blocks))
    assert provenance.accuracy_blocks(summary, is_full=True) == ()
