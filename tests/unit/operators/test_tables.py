"""The tables of rules and definitions: each operator once, none that torch does not have."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from opscope.operators.effects import operator_stem
from opscope.operators.operator_table import DEFINITIONS, FAMILIES, RULES

# How many operations a Fourier transform takes depends on the algorithm; of some gradients nothing is stated.
UNCOUNTED = """
    _fft_r2c _fft_c2r _fft_c2c upsample_bilinear2d_backward smooth_l1_loss_backward huber_loss_backward
"""


@pytest.mark.parametrize("table", ["RULES", "DEFINITIONS"])
def test_an_operator_is_in_one_family(table: str) -> None:
    counts = Counter(name for family in FAMILIES for name in getattr(family, table))
    assert not [name for name, count in counts.items() if count > 1]


def test_what_has_a_rule_has_a_definition() -> None:
    stems = {operator_stem(f"aten::{name}") for name in RULES}
    assert stems - set(DEFINITIONS) == set(UNCOUNTED.split())


@pytest.mark.torch
def test_rules_are_of_operators_that_torch_has(recorder: Any) -> None:
    names = recorder.torch._C._dispatch_get_all_op_names()
    known = {name.partition("::")[2].partition(".")[0] for name in names}
    assert {operator_stem(f"aten::{name}") for name in RULES} <= known | {
        stem for name in known if (stem := operator_stem(f"aten::{name}"))
    }


@pytest.mark.torch
def test_definitions_are_of_operators_that_torch_has_or_had(recorder: Any) -> None:
    former = {"cudnn_convolution_backward_input", "cudnn_convolution_backward_weight"}
    names = recorder.torch._C._dispatch_get_all_op_names()
    known = {name.partition("::")[2].partition(".")[0] for name in names}
    assert {stem for stem in DEFINITIONS if not {stem, f"{stem}_"} & known} == former
