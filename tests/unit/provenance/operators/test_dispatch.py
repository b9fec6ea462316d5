from __future__ import annotations

import pytest

from opscope.provenance.operators import dispatch


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


def test_a_ufunc_names_its_header(table):
    found = dispatch(table, table.named("aten::add_.Tensor"))
    assert found.header == "aten/src/ATen/native/ufunc/add.h"


def test_parameters_are_those_of_the_function(table):
    view = table.named("aten::view")
    assert dispatch(table, view).parameter_types == ("Tensor", "SymInt[]")
    reshape = table.named("aten::reshape")
    assert dispatch(table, reshape).parameter_types == ("Tensor", "SymInt[]")
