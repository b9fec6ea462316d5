"""How far numbers of a variant may be from the baseline's."""

import pytest

from case_tables import cases
from opscope.model.trial import Correctness
from opscope.trials.catalog import CATALOG
from opscope.trials.replay import compare

BASE = {"losses": [2.0, 1.5], "outputs": [[1.0, -2.0, 3.0]]}


def seen(**changed):
    return {**BASE, **changed}


def compared(base, again, variant, rounding):
    return compare(variant, base, again, again, rounding)


def test_the_same_or_scattering_numbers_are_identical_or_rounding():
    assert compared(seen(), seen(), seen(), 0.0)[0] is Correctness.IDENTICAL
    again, variant = seen(losses=[2.0, 1.503]), seen(losses=[2.0, 1.506])
    assert compared(seen(), again, variant, 0.0)[0] is Correctness.WITHIN_ROUNDING
    assert compared(seen(), seen(), variant, 0.0)[0] is Correctness.CHANGED
    assert compared({}, {}, {}, 0.1)[0] is Correctness.UNKNOWN


@pytest.mark.parametrize("rounding", sorted({one.rounding for one in CATALOG}))
@cases("changed")
def test_wrong_numbers_are_never_taken_for_rounding(rounding, changed):
    assert compared(seen(), seen(), seen(**changed), rounding)[0] is Correctness.CHANGED


@pytest.mark.parametrize(
    ("rounding", "apart", "correctness"),
    [
        (2.0**-8, 0.007, Correctness.WITHIN_ROUNDING),
        (2.0**-11, 0.0009, Correctness.WITHIN_ROUNDING),
        (2.0**-11, 0.0011, Correctness.CHANGED),
        (0.0, 1e-12, Correctness.WITHIN_ROUNDING),
        (0.0, 1e-6, Correctness.CHANGED),
    ],
)
def test_rounding_is_that_of_the_type(rounding, apart, correctness):
    variant = seen(losses=[2.0 * (1 + apart), 1.5 * (1 + apart)])
    assert compared(seen(), seen(), variant, rounding)[0] is correctness
