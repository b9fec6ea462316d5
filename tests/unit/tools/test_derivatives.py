from __future__ import annotations

import pytest

from opscope.errors import InputError
from torch_tables.derivatives import called_functions

FUNCTIONS = """\
- func: mul.Tensor(Tensor self, Tensor other) -> Tensor
  dispatch:
    CUDA: mul_cuda
- func: mul_.Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)
  dispatch:
    CUDA: mul_cuda_
- func: mul.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)
  dispatch:
    CUDA: mul_out_cuda
- func: mul.Scalar(Tensor self, Scalar other) -> Tensor
  dispatch:
    CUDA: mul_scalar
- func: view(Tensor(a) self, SymInt[] size) -> Tensor(a)
  dispatch:
    CUDA: view
- func: view_copy(Tensor self, SymInt[] size) -> Tensor
  dispatch:
    CompositeExplicitAutogradNonFunctional: view_copy_symint
- func: _foreach_mul.List(Tensor[] self, Tensor[] other) -> Tensor[]
  dispatch:
    CUDA: foreach_mul
- func: _foreach_mul_.List(Tensor(a!)[] self, Tensor[] other) -> ()
  dispatch:
    CUDA: foreach_mul_
- func: log_forward(Tensor self) -> Tensor
  dispatch:
    CUDA: log
- func: size(Tensor self) -> int
  manual_cpp_binding: True
"""
DERIVATIVES = """\
- name: mul.Tensor(Tensor self, Tensor other) -> Tensor
  self: mul_tensor_backward(grad, other, self.scalar_type())
  other: at::mul(grad, self)
  result: auto_linear

- name: mul.Scalar(Tensor self, Scalar other) -> Tensor
  self: "grad *
    other.conj()"

- name: view(Tensor(a) self, SymInt[] size) -> Tensor(a)
  dispatch:
    Default:
      self: grad.reshape_symint(self.sym_sizes()).view(1)
    AutogradNestedTensor:
      self: grad.mul(self).size()

- name: log_forward(Tensor self) -> Tensor
  self: non_differentiable
"""


@pytest.fixture
def small(make_table):
    """Two products, a view, a logarithm without a gradient."""
    return make_table(FUNCTIONS, DERIVATIVES)


def test_nodes_are_numbered_by_name(small):
    assert [derivative.node for derivative in small.derivatives] == [
        "MulBackward0",
        "MulBackward1",
        "ViewBackward0",
        "ViewBackwardAutogradNestedTensor0",
        "ViewBackward0_copy",
        "ViewBackwardAutogradNestedTensor0_copy",
        "ForeachMulBackward0List",
    ]


def test_formulas_and_what_they_call(small):
    node = small.derivative("autograd::engine::evaluate_function: MulBackward0")
    assert node.formulas == {
        "self": "mul_tensor_backward(grad, other, self.scalar_type())",
        "other": "at::mul(grad, self)",
    }
    assert node.functions == ("aten::mul",)
    assert node.helpers == ("mul_tensor_backward",)
    assert node.yaml_line == 1
    assert [len(small.overloads(name)) for name in node.functions] == [3]


def test_functions_that_record_a_node(small):
    assert small.derivative("MulBackward0").forward == (
        "aten::mul.Tensor",
        "aten::mul_.Tensor",
        "aten::_foreach_mul_.List",  # once per tensor
    )
    assert small.derivative("ViewBackward0_copy").forward == ("aten::view_copy",)
    assert small.derivative("ForeachMulBackward0List").reference == "aten::mul.Tensor"


def test_nodes_without_formulas_say_what_they_do(small):
    node = small.derivative("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad")
    assert node.formulas == {}
    assert ".grad" in node.description
    assert small.derivative("torch::autograd::CopyBackwards").forward == ("aten::copy_",)


@pytest.mark.parametrize(
    ("formula", "operators", "helpers"),
    [
        ("at::mul(grad, self)", ("mul",), ()),
        ("grad.mul(self).mul(mul(x))", ("mul",), ()),
        ("std::max(a, b) + c10::mul(x) + native::mul(x)", (), ()),
        ("grad.defined() ? f(grad) : Tensor()", (), ("f",)),
        ("std::get<0>(mul_symint(grad)), f<double>(x), at::size(x)", ("mul",), ("f",)),
        ('not_implemented("mul(x)")', (), ()),
    ],
)
def test_calls_in_formulas(formula, operators, helpers):
    assert called_functions(formula, {"mul"}, {"mul", "size"}) == (operators, helpers)


def test_a_derivative_of_no_function_is_refused(make_table):
    with pytest.raises(InputError, match="line 1: no native function has the schema 'f"):
        make_table(FUNCTIONS, "- name: f(Tensor self) -> Tensor\n  self: grad\n")
    with pytest.raises(InputError, match="'dispatch' is not a mapping"):
        make_table(FUNCTIONS, "- name: mul.Scalar(Tensor self, Scalar other) -> Tensor\n  dispatch: grad\n")


def test_softmax_of_a_release(table):
    node = table.derivative("SoftmaxBackward0")
    assert node.forward == ("aten::_softmax",)
    assert node.formulas == {"self": "_softmax_backward_data(grad, result, dim, self.scalar_type())"}
    assert [entry.qualified_name for entry in table.overloads("aten::_softmax_backward_data")] == [
        "aten::_softmax_backward_data",
        "aten::_softmax_backward_data.out",
    ]
