"""The operator table: each operator once, none that torch does not have."""

from collections import Counter

import pytest

from opscope.operators.arguments import CallArguments
from opscope.operators.operator_table import FAMILIES, OPERATORS

# How many operations a Fourier transform takes depends on the algorithm.
UNCOUNTED = {"_fft_r2c", "_fft_c2r", "_fft_c2c"}


def test_an_operator_is_in_one_family_and_what_has_results_has_operations():
    counts = Counter(name for family in FAMILIES for name in family.OPERATORS)
    assert not [name for name, count in counts.items() if count > 1]
    uncounted = {name for name, one in OPERATORS.items() if one.operations is None}
    assert uncounted == UNCOUNTED


@pytest.mark.torch
def test_operators_are_those_that_torch_has(recorder):
    names = (name.partition(".")[0] for name in recorder.torch._C._dispatch_get_all_op_names())
    assert set(OPERATORS) <= {CallArguments(name).stem for name in names}
