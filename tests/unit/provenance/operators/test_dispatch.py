from __future__ import annotations

import pytest

from opscope.provenance.operators import Resolved, dispatch, dispatch_chain, shared_dispatch


def served(table, name, backend="CUDA"):
    found = dispatch(table, table.named(name), backend)
    return found and (found.key, found.function, found.entry.qualified_name, found.kind)


@pytest.mark.parametrize(
    ("name", "backend", "expected"),
    [
        ("aten::_softmax", "CUDA", ("CUDA", "softmax_cuda_out", "aten::_softmax.out", "native")),
        ("aten::_softmax", "CPU", ("CPU", "softmax_cpu_out", "aten::_softmax.out", "native")),
        (
            "aten::_softmax",
            "NestedTensorCUDA",
            ("NestedTensorCUDA", "softmax_nested", "aten::_softmax", "native"),
        ),
        ("aten::native_layer_norm", "CUDA", ("CUDA", "layer_norm_cuda", "aten::native_layer_norm", "native")),
        ("aten::add.Tensor", "CUDA", ("CUDA", "ufunc_add_CUDA", "aten::add.out", "ufunc")),
        ("aten::add.Tensor", "SparseCUDA", ("SparseCUDA", "add_sparse", "aten::add.Tensor", "native")),
        (
            "aten::linear",
            "CUDA",
            ("CompositeImplicitAutograd", "linear", "aten::linear", "composite_implicit"),
        ),
        (
            "aten::matmul",
            "NestedTensorCUDA",
            ("NestedTensorCUDA", "matmul_nested", "aten::matmul", "native"),
        ),
        (
            "aten::reshape",
            "NestedTensorCUDA",
            (
                "CompositeImplicitAutogradNestedTensor",
                "reshape_nested_symint",
                "aten::reshape",
                "composite_implicit",
            ),
        ),
        (
            "aten::empty_like",
            "CUDA",
            ("CompositeExplicitAutograd", "empty_like", "aten::empty_like", "composite_explicit"),
        ),
        (
            "aten::select_backward",
            "CUDA",
            (
                "CompositeExplicitAutogradNonFunctional",
                "select_backward_symint",
                "aten::select_backward",
                "composite_explicit",
            ),
        ),
        (
            "aten::view_copy",
            "CUDA",
            ("CompositeExplicitAutogradNonFunctional", "view_copy_symint", "aten::view_copy", "generated"),
        ),
        (
            "aten::narrow_copy",
            "CUDA",
            (
                "CompositeExplicitAutogradNonFunctional",
                "narrow_copy_dense_symint",
                "aten::narrow_copy",
                "generated",
            ),
        ),
        ("aten::view_copy", "SparseCUDA", None),
        (
            "aten::_cudnn_rnn.out",
            "CUDA",
            ("CompositeExplicitAutograd", "_cudnn_rnn_out_symint", "aten::_cudnn_rnn.out", "generated"),
        ),
        (
            "aten::sin",
            "QuantizedCUDA",
            ("CompositeExplicitAutogradNonFunctional", None, "aten::sin", "generated"),
        ),
        ("aten::sin.out", "QuantizedCUDA", None),
        ("aten::mkldnn_linear", "CUDA", None),
    ],
)
def test_what_the_dispatcher_calls(table, name, backend, expected):
    assert served(table, name, backend) == expected


def test_a_ufunc_names_its_unit_and_header(table):
    found = dispatch(table, table.named("aten::add_.Tensor"))
    assert found.unit == "UfuncCUDA_add.cu"
    assert found.header == "aten/src/ATen/native/ufunc/add.h"
    assert dispatch(table, table.named("aten::add.out"), "CPU").unit == "UfuncCPU_add.cpp"


def test_parameters_are_those_of_the_function(table):
    view = table.named("aten::view")
    assert dispatch(table, view).parameter_types == ("const at::Tensor &", "at::IntArrayRef")
    reshape = table.named("aten::reshape")
    assert dispatch(table, reshape).parameter_types == ("const at::Tensor &", "c10::SymIntArrayRef")


def test_facts_that_hold_for_all_candidates(table):
    def shared(*names):
        return shared_dispatch(table, Resolved(None, None, tuple(map(table.named, names))))

    assert shared("aten::mm", "aten::mm.out").function == "mm_out_cuda"
    assert shared("aten::mm", "aten::mm.dtype") is None
    assert shared("aten::mm", "aten::mkldnn_linear") is None
    assert shared() is None


@pytest.mark.parametrize(
    ("name", "links"),
    [
        (
            "aten::_softmax",
            [
                "aten::_softmax (native_functions.yaml:{_softmax})",
                "structured_delegate _softmax.out (native_functions.yaml:{_softmax.out})",
                "CUDA softmax_cuda_out",
            ],
        ),
        (
            "aten::add_.Tensor",
            [
                "aten::add_.Tensor (native_functions.yaml:{add_.Tensor})",
                "structured_delegate add.out (native_functions.yaml:{add.out})",
                "CUDA ufunc_add_CUDA, generated from a scalar function (add.h)",
            ],
        ),
        (
            "aten::linear",
            [
                "aten::linear (native_functions.yaml:{linear})",
                "CompositeImplicitAutograd linear, made of other operators",
            ],
        ),
        ("aten::mkldnn_linear", ["aten::mkldnn_linear (native_functions.yaml:{mkldnn_linear})"]),
    ],
)
def test_the_chain_of_an_operator(table, name, links):
    lines = {entry.qualified_name.removeprefix("aten::"): entry.yaml_line for entry in table.functions}
    for known, line in lines.items():
        links = [link.replace(f"{{{known}}}", str(line)) for link in links]
    assert [str(link) for link in dispatch_chain(table, table.named(name))] == links
    assert dispatch_chain(table, table.named(name))[0].file == "aten/src/ATen/native/native_functions.yaml"
