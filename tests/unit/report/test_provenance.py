"""The chain from an operator to its source in words: each link with its grade, and what is not known."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from opscope.analysis.accuracy import Accuracy
from opscope.analysis.provenance import NativeFunctionUse
from opscope.analysis.summary import Summary
from opscope.model.evidence import Grade
from opscope.model.location import SourceLocation
from opscope.report.analysis import recording_document
from opscope.report.document import Link, inlines, plain
from opscope.report.markdown import render_markdown
from opscope.report.provenance import (
    accuracy_blocks,
    function_facts,
    location_text,
    operator_chain_facts,
    release_text,
)

from .conftest import said

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


class TestFunction:
    def test_every_link_of_the_chain(self) -> None:
        function = replace(ADDMM, stub="gelu_stub", stub_location=KERNEL)
        assert said(function_facts(function)) == {
            "Native function": "addmm(Tensor self) -> Tensor in native_functions.yaml:7270 (exact)",
            "Dispatch": "structured, by addmm.out; CUDA → addmm_out_cuda",
            "Implemented in": "aten/src/ATen/native/cuda/Blas.cpp:≈589"
            " (file: release_index, line: neighbor_version)",
            "Launches through": "gelu_stub → Gelu.cu:21 (exact)",
        }
        assert Link("native_functions.yaml:7270", "https://yaml") in inlines(function_facts(function)[0][1])

    def test_a_launcher_without_a_stub_is_named(self) -> None:
        function = replace(ADDMM, stub_location=KERNEL, details={"launchers": ["GeluCUDAKernelImpl"]})
        assert (
            said(function_facts(function))["Launches through"] == "GeluCUDAKernelImpl in Gelu.cu:21 (exact)"
        )

    def test_of_several_launchers_all_are_named(self) -> None:
        function = replace(ADDMM, details={"launchers": ["gather_topk", "sort"]})
        facts = said(function_facts(function))
        assert facts["May launch through"] == "gather_topk, sort"
        assert "Launches through" not in facts

    def test_an_overload_the_trace_does_not_tell(self) -> None:
        function = replace(ADDMM, schema=None, overload=None, details={"candidates": ["", "Scalar"]})
        assert said(function_facts(function))["Native function"] == (
            "aten::addmm; the trace does not tell which overload: the default one, Scalar (exact)"
        )

    @pytest.mark.parametrize(
        ("kind", "words"),
        [("triton", "a Triton kernel"), ("custom", "a custom operator"), ("range", "not a dispatcher"),
         ("native", "no entry in the native_functions.yaml at hand")],
    )  # fmt: skip
    def test_what_no_yaml_entry_describes(self, kind: str, words: str) -> None:
        outside = replace(
            ADDMM, kind=kind, schema=None, structured_delegate=None, dispatch_key=None, location=None
        )
        assert words in said(function_facts(outside))["Native function"]

    def test_generated_code_has_no_file(self) -> None:
        facts = said(function_facts(replace(ADDMM, kind="generated", location=None)))
        assert facts["Implemented in"] == "code that is generated when PyTorch is built"

    def test_a_node_of_autograd(self) -> None:
        details = {
            "forward": ["aten::gelu", "aten::gelu_"],
            "formulas": {"self": "gelu_backward(grad, self)"},
            "derivatives_line": 12,
            "yaml_url": "https://yaml",
        }
        assert said(function_facts(replace(ADDMM, kind="backward", details=details))) == {
            "Backward of": "aten::gelu, aten::gelu_ (exact)",
            "Gradient of self": "gelu_backward(grad, self)",
            "Defined in": "derivatives.yaml:12",
        }
        unknown = said(function_facts(replace(ADDMM, kind="backward", details={})))
        assert "its forward operator is unknown" in unknown["Native function"]


class TestOperator:
    def test_one_place_is_said_once(self, summary: Summary) -> None:
        operator = replace(summary.operators[0], native_functions=(ADDMM,), source=BLAS)
        facts = said(operator_chain_facts(operator, has_device=True))
        assert "Implemented in" not in facts
        assert facts["CUDA source file"].startswith("aten/src/ATen/native/cuda/Blas.cpp:≈589")

    def test_of_a_stub_at_that_place_the_name_remains(self, summary: Summary) -> None:
        function = replace(ADDMM, stub="gelu_stub", stub_location=KERNEL)
        operator = replace(summary.operators[0], native_functions=(function,), source=KERNEL)
        facts = said(operator_chain_facts(operator, has_device=True))
        assert (facts["Launches through"], facts["CUDA source file"]) == ("gelu_stub", "Gelu.cu:21 (exact)")

    def test_other_overloads_and_called_operators(self, summary: Summary) -> None:
        overloads = ("", "out", "", None)
        functions = tuple(replace(ADDMM, overload=overload) for overload in overloads)
        called = tuple((f"aten::o{index}", 1_000, 5) for index in range(6))
        operator = replace(summary.operators[0], native_functions=functions, called_operators=called)
        facts = said(operator_chain_facts(operator, has_device=True))
        assert facts["Other overloads"] == "out, the default overload, some that the trace does not tell"
        assert facts["Called operators"].startswith("aten::o0 ×1,000, aten::o1 ×1,000")
        assert facts["Called operators"].endswith(" and 2 more")
        assert facts["CUDA source file"] == "unknown"

    def test_without_a_device_the_file_is_no_cuda_file(self, cpu_summary: Summary) -> None:
        facts = said(operator_chain_facts(cpu_summary.operators[0], has_device=False))
        assert facts == {"Native function": "unknown", "Source file": "unknown"}


def test_a_file_without_a_line_has_one_grade() -> None:
    assert plain(location_text(SourceLocation("a.cu", Grade.INFERRED))) == "a.cu (inferred)"


def test_the_release_says_how_it_is_known() -> None:
    assert release_text("2.6.0", Grade.EXACT, "labeled 2.6.0") == "2.6.0 (exact: labeled 2.6.0)"
    assert release_text("2.6.0", None, None) == "2.6.0"
    assert release_text(None, None, "no names") == "not recognized: no names"


class TestAccuracy:
    MEASURED = Accuracy(0.9, 0.8, 1.0, 0.7, 0.6, 0.5, 0.4, None, {"kernel_unit": {"exact": 1.0}, "line": {}})

    def test_figures_and_their_grades(self, summary: Summary) -> None:
        measured = summary.having(accuracy=self.MEASURED, torch_version="2.6.0")
        text = render_markdown(recording_document(measured, is_full=True)).split("## Accuracy")[1]
        for line in (
            "- PyTorch release: 2.6.0",
            "- Attributed to an operator: 90.0 %",
            "- ATen operators with a yaml entry: 100.0 %",
            "- … with the file of their function: 70.0 %",
            "- … and the line: 60.0 %",
            "- PyTorch's kernels with a translation unit: 50.0 %",
            "- … with exactly one: 40.0 %",
            "- Kernel names with a family: –",
            "| Kernel unit | 100.0 % | – | – | – | – | – |",
        ):
            assert line in text
        assert "| Line |" not in text

    def test_nothing_is_said_where_nothing_was_measured(self, summary: Summary) -> None:
        assert accuracy_blocks(summary) == ()


def test_code_that_replaced_pytorchs_is_named() -> None:
    registration = {
        "kernels": {"CUDA": "/home/me/ops.py:12"},
        "overrides": {"CUDA": "build/aten/src/ATen/RegisterCUDA_0.cpp:10"},
    }
    replaced = replace(ADDMM, details={**ADDMM.details, "registration": registration})
    facts = said(function_facts(replaced))
    assert facts["Overridden by"] == "CUDA → /home/me/ops.py:12 (exact)"
    assert "Overridden by" not in said(function_facts(ADDMM))
