from __future__ import annotations

import pytest

from opscope.provenance.indexer.lexer import evaluate


@pytest.mark.parametrize(
    ("condition", "value"),
    [
        ("0", False),
        ("1", True),
        ("42L", True),
        ("true", True),
        ("defined(USE_ROCM)", False),
        ("defined USE_ROCM", False),
        ("!defined(USE_ROCM) && AT_CUDNN_ENABLED()", True),
        ("AT_ROCM_ENABLED() || !AT_CUDNN_ENABLED()", False),
        ("defined(USE_ROCM) || defined(UNKNOWN)", None),
        ("defined(USE_ROCM) && defined(UNKNOWN)", False),
        ("!defined(USE_ROCM) || UNKNOWN > 3", True),
        ("(((1)))", True),
        ("0 && AT_USE_JITERATOR()", False),
        ("CUDA_VERSION >= 12000", None),
        ("1 == 1", None),
        ("CUB_SUPPORTS(1, (2))", None),
        ("defined(AT_CUDNN_ENABLED)", None),
        ("", None),
        ("(1", None),
        ("1 1", None),
        ("defined(", None),
        ("!" * 100 + "1", None),
        ("(" * 5000, None),
    ],
)
def test_a_condition_is_true_false_or_undecided(condition: str, value: bool | None) -> None:
    assert evaluate(condition) is value
