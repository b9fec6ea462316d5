"""The error of outputs against a reference, element by element."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from opscope.benchmarking import check as error_metric  # noqa: E402
from opscope.benchmarking.check import difference  # noqa: E402


def of(output, reference, tolerance=1e-3):
    return difference(torch.as_tensor(output), torch.as_tensor(reference, dtype=torch.float64), tolerance)


def test_large_elements_have_a_relative_error_and_small_ones_one_of_the_rms():
    rms = math.sqrt((100**2 + 1e-6**2) / 2)
    assert of([101.0, 1e-6], [100.0, 1e-6]).max_relative_error == pytest.approx(0.01)
    assert of([100.0, 1e-6 + 0.5], [100.0, 1e-6]).max_relative_error == pytest.approx(0.5 / rms)


def test_squares_add_up():
    one = of([3.0, 4.0], [1.0, 1.0])
    assert (one.squared_error, one.squared_reference, one.element_count) == (13.0, 2.0, 2)


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1e30, 1e300])
def test_scale_does_not_matter(scale):
    reference = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) * scale
    assert difference(reference * 1.5, reference, 0.1).max_relative_error == pytest.approx(0.5)


def test_chunks_do_not_matter(monkeypatch):
    reference = torch.randn(1000, dtype=torch.float64)
    output = reference + torch.randn(1000).double() * 1e-3
    output[3], reference[5] = math.nan, math.inf
    whole = difference(output, reference, 1e-3)
    monkeypatch.setattr(error_metric, "_CHUNK_ELEMENTS", 7)
    parts = difference(output, reference, 1e-3)
    assert (parts.missing_count, parts.unexpected_count) == (1, 1)
    assert parts.max_relative_error == pytest.approx(whole.max_relative_error, rel=1e-12)
    assert parts.squared_error == pytest.approx(whole.squared_error, rel=1e-12)


@pytest.mark.parametrize(
    ("output", "reference", "missing", "unexpected"),
    [
        (math.nan, math.nan, 0, 0),
        (math.inf, math.inf, 0, 0),
        (math.inf, -math.inf, 0, 1),
        (math.nan, math.inf, 0, 1),
        (1.0, math.nan, 0, 1),
        (math.nan, 1.0, 1, 0),
        (math.inf, 1.0, 1, 0),
    ],
)
def test_elements_that_are_not_finite(output, reference, missing, unexpected):
    one = of([output, 1.0], [reference, 1.0])
    assert (one.missing_count, one.unexpected_count) == (missing, unexpected)
    assert one.max_relative_error == 0.0


@pytest.mark.parametrize(
    ("output", "reference", "missing"),
    [
        (math.inf, 70_000.0, 0),
        (-math.inf, -1e30, 0),
        (math.inf, 65_500.0, 0),  # within the tolerance of the largest number, 65504
        (math.inf, 65_000.0, 1),
        (math.inf, -70_000.0, 1),
    ],
)
def test_infinity_is_right_beyond_the_range_of_the_dtype(output, reference, missing):
    assert of(torch.tensor([output]).half(), [reference]).missing_count == missing


def test_references_that_are_nan_everywhere():
    one = of([math.nan, 2.0], [math.nan, math.nan])
    assert (one.missing_count, one.unexpected_count, one.max_relative_error) == (0, 1, 0.0)
