"""The time of a product in another type: against measured kernels of an H200, and by its laws."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from case_tables import cases
from opscope.advice.kernel_times import Rates, product_ns
from opscope.advice.profiled_run import product_of
from opscope.hardware.devices import DataType
from opscope.hardware.limits import LimitEvidence
from opscope.operators.arguments import parse_arguments
from opscope.operators.products import MatrixProduct, matrix_product

from .conftest import call, limits

RATES = Rates(limits(), 132)
SIZES = st.integers(min_value=1, max_value=8192)
PRODUCTS = st.builds(MatrixProduct, st.integers(min_value=1, max_value=64), SIZES, SIZES, SIZES)


@cases("product", "measured_ns")
def test_bf16_products_of_an_h200_are_met_within_a_sixth(product, measured_ns):
    found_ns = product_ns(MatrixProduct(*product), DataType.BF16, RATES)
    assert found_ns == pytest.approx(measured_ns, rel=0.17)


def test_a_data_sheet_is_not_taken_at_its_word_and_nothing_is_said_without_a_rate():
    published = Rates(limits(LimitEvidence.DATASHEET), 132)
    assert published.flop_per_s(DataType.BF16) == pytest.approx(0.8 * 810e12)
    assert published.bytes_per_s == pytest.approx(0.89 * 4.28e12)
    assert Rates().flop_per_s(DataType.BF16) is None
    assert Rates().half_type is None
    assert product_ns(MatrixProduct(1, 64, 64, 64), DataType.TF32, Rates(None, 132)) is None
    assert product_ns(MatrixProduct(1, 64, 64, 64), DataType.TF32, Rates(limits(), None)) is None


@given(PRODUCTS)
def test_no_product_beats_the_rate_or_the_memory(product):
    time_ns = product_ns(product, DataType.BF16, RATES)
    assert time_ns >= product.flop_count / 810e12 * 1e9
    assert time_ns >= product.bytes(2) / 4.28e12 * 1e9


@given(PRODUCTS)
def test_a_faster_type_is_never_slower(product):
    times = [product_ns(product, one, RATES) for one in (DataType.FP32, DataType.TF32, DataType.BF16)]
    known = [one for one in times if one is not None]
    assert known == sorted(known, reverse=True)


def test_sizes_come_from_the_recorded_shapes():
    linear = call("aten::addmm", 1, shapes=[[768], [1024, 3072], [3072, 768], [], []])
    assert product_of(linear) == MatrixProduct(1, 1024, 768, 3072, "float")
    batched = call("aten::bmm", 1, shapes=[[96, 128, 64], [96, 64, 128]])
    assert product_of(batched) == MatrixProduct(96, 128, 128, 64, "float")


@cases("operator", "shapes")
def test_contradicting_or_missing_shapes_give_nothing(operator, shapes):
    recorded = parse_arguments(operator, shapes=shapes, types='["float","float"]')
    assert matrix_product(recorded) is None
