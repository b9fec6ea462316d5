"""Totals by operator, kernel and category."""

import pytest

from case_tables import cases
from fakes import TraceBuilder
from opscope.analysis.summary import Summary
from opscope.provenance.categories import category_of


def one(summary, name):
    return next(operator for operator in summary.operators if operator.name == name)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["misc_ops_fp32", "bert_compile_bf16", "bert_train_bf16"])
def test_category_times_are_the_operators_times_to_the_nanosecond(load, shared, name):
    summary = Summary(load(shared / "traces" / "h200" / f"{name}.json.gz"))
    own_ns = sum(operator.self_device_ns for operator in summary.operators)
    of_operators = [category for category in summary.categories if not category.without_operator]
    assert sum(category.device_ns for category in of_operators) == own_ns > 0
    assert sum(category.device_ns for category in summary.categories) == summary.device_time_ns
    assert sum(category.cpu_ns for category in summary.categories) == summary.cpu_time_ns
    assert sum(category.calls for category in of_operators) == summary.operator_calls


def test_a_unit_of_which_no_line_is_known_is_linked_as_a_whole(load):
    """The template of the scan lies in a header, its unit is one `.cu` file."""
    scan = "void at::native::tensor_kernel_scan_outer_dim<float, unsigned int, std::plus<float> >(float*, float const*, unsigned int, unsigned int, unsigned int, float, std::plus<float>)"  # noqa: E501
    built = TraceBuilder().operator("aten::cumsum", 0, 10).launch(1).kernel(scan, 20, 5)
    source = one(Summary(load(built)), "aten::cumsum").source
    assert (source.file, source.line) == ("aten/src/ATen/native/cuda/CumsumKernel.cu", None)
    assert (source.url or "").endswith("/aten/src/ATen/native/cuda/CumsumKernel.cu")


@cases("category", "operators")
def test_the_categories_of_operators(category, operators):
    assert {name: category_of(name) for name in operators} == dict.fromkeys(operators, category)
