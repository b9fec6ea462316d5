"""The provenance tables as values, and the chain they tell for names of a release."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from opscope.analysis.provenance import NativeFunctionUse, Provenance, limited, read_provenance
from opscope.model.evidence import Grade
from opscope.model.location import SourceLocation
from opscope.model.session import Session
from opscope.provenance.resolution.annotate import session_of_names
from opscope.testing import TraceBuilder

from .conftest import FILL_KERNEL, GELU_KERNEL

NATIVE = "aten/src/ATen/native"


@pytest.fixture(scope="module")
def known() -> Provenance:
    names = [("aten::gelu", ""), ("aten::topk", ""), ("aten::_scaled_mm", "out"), ("aten::_softmax", "")]
    with session_of_names(names, [GELU_KERNEL, FILL_KERNEL], torch_version="2.6.0") as session:
        return read_provenance(session)


def function(known: Provenance, name: str) -> NativeFunctionUse:
    (use,) = known.functions[name]
    return use


def place(location: SourceLocation | None) -> str | None:
    return None if location is None else str(location)


def test_the_release_and_how_it_is_known(known: Provenance) -> None:
    assert (known.torch_version, known.torch_version_grade) == ("2.6.0", Grade.RELEASE_INDEX)
    assert known.torch_version_reason == "labeled 2.6.0"


def test_an_operator_down_to_its_device_code(known: Provenance) -> None:
    gelu = function(known, "aten::gelu")
    assert (gelu.schema or "").startswith("gelu(Tensor self")
    assert (gelu.structured_delegate, gelu.dispatch_key) == ("gelu.out", "CUDA")
    assert (gelu.cuda_function, place(gelu.location)) == ("gelu_out_cuda", f"{NATIVE}/cuda/Activation.cpp:96")
    assert gelu.stub is None
    assert place(gelu.stub_location) == f"{NATIVE}/cuda/ActivationGeluKernel.cu:21"
    assert gelu.details["launchers"] == ["GeluCUDAKernelImpl"]


def test_of_several_launchers_none_is_guessed(known: Provenance) -> None:
    topk = function(known, "aten::topk")
    assert topk.details["launchers"] == ["launch_gather_topk_kernel", "sortKeyValueInplace"]
    assert (topk.stub, topk.stub_location) == (None, None)


def test_a_matrix_product_may_be_a_librarys(known: Provenance) -> None:
    product = function(known, "aten::_scaled_mm")
    assert product.details["launchers"] == ["f8f8bf16_rowwise"]
    assert product.stub_location is None


def test_a_kernel(known: Provenance) -> None:
    facts = known.kernels[GELU_KERNEL]
    assert (facts.library, facts.family, facts.category) == ("aten", "activation", "activation")
    assert facts.fields["operation"] == "gelu"
    assert facts.grades["operation"] == "name_pattern"
    assert (facts.units, facts.unit_grade) == (
        (f"{NATIVE}/cuda/ActivationGeluKernel.cu",),
        Grade.RELEASE_INDEX,
    )
    assert place(facts.location) == f"{NATIVE}/cuda/ActivationGeluKernel.cu:21"
    assert place(facts.template) == f"{NATIVE}/cuda/CUDALoops.cuh:92"
    assert [name for name, _ in facts.template_arguments] == ["vec_size", "func_t", "array_t"]


def test_what_is_limited_is_known_no_better(known: Provenance) -> None:
    lower = limited(known, Grade.NEIGHBOR_VERSION)
    softmax, fill = function(lower, "aten::_softmax"), lower.kernels[FILL_KERNEL]
    assert softmax.overload_grade is Grade.NEIGHBOR_VERSION
    assert softmax.location is not None
    assert (softmax.location.file_grade, softmax.location.line_grade) == (Grade.NEIGHBOR_VERSION,) * 2
    assert place(softmax.location) == place(function(known, "aten::_softmax").location).replace(":", ":≈")
    assert (softmax.stub_location, fill.unit_grade) == (None, Grade.NEIGHBOR_VERSION)
    assert limited(known, Grade.EXACT) == known


def test_calls_are_counted_by_the_function_they_reached(load: Callable[..., Session]) -> None:
    def add(built: TraceBuilder, start: int, *types: str, kernel_us: int) -> None:
        built.operator("aten::add", start, 5, **{"Input type": [*types, "Scalar"]})
        built.launch(start + 1).kernel("k", 1_000 + start, kernel_us)

    built = TraceBuilder()
    add(built, 0, "float", "float", kernel_us=3)
    add(built, 10, "float", "Scalar", kernel_us=7)
    add(built, 20, "float", "float", kernel_us=2)
    uses: Sequence[NativeFunctionUse] = read_provenance(load(built)).functions["aten::add"]
    assert [(use.overload, use.calls, use.self_device_ns) for use in uses] == [
        ("Scalar", 1, 7_000),
        ("Tensor", 2, 5_000),
    ]
