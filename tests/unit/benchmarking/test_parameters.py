from __future__ import annotations

import pytest

from opscope.benchmarking.plan import parse_parameters, points, values_of
from opscope.errors import InputError


def test_values_are_integers_floats_or_words() -> None:
    assert parse_parameters(["n=1024,4096", "scale=0.5, 1e3", "mode=tanh,erf"]) == {
        "n": (1024, 4096),
        "scale": (0.5, 1000.0),
        "mode": ("tanh", "erf"),
    }


def test_a_value_given_twice_counts_once() -> None:
    assert parse_parameters(["n=4,4,8"]) == {"n": (4, 8)}


@pytest.mark.parametrize("text", ["n", "n=", "=3", "n=1,,2", "3n=1", "a b=1"])
def test_what_is_no_parameter_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(InputError, match="NAME=VALUE"):
        parse_parameters([text])


def test_a_parameter_given_twice_is_refused() -> None:
    with pytest.raises(InputError, match="twice"):
        parse_parameters(["n=1", "n=2"])


def test_points_are_the_cross_product_with_the_last_fastest() -> None:
    assert list(points({"n": (1, 2), "m": ("a", "b")})) == [
        {"n": 1, "m": "a"},
        {"n": 1, "m": "b"},
        {"n": 2, "m": "a"},
        {"n": 2, "m": "b"},
    ]
    assert list(points({})) == [{}]


def test_one_value_in_python_is_a_list_of_one() -> None:
    assert values_of({"n": 3, "mode": "tanh", "m": [1, 2]}) == {"n": (3,), "mode": ("tanh",), "m": (1, 2)}
    with pytest.raises(InputError, match="no values"):
        values_of({"n": []})
