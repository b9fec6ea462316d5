from __future__ import annotations

from typing import Any

import pytest

from opscope.analysis.provenance import KernelFacts
from opscope.analysis.session_comparison import describe_replacement, pair_kernels


def facts(name: str, function: str | None = None, family: str | None = None, **fields: Any) -> KernelFacts:
    return KernelFacts(name, "other", function=function, family=family, fields=fields)


def names(
    removed: list[tuple[KernelFacts, int]], added: list[tuple[KernelFacts, int]]
) -> list[tuple[str, str]]:
    known = {one.name: one for one, _ in (*removed, *added)}
    times = [{one.name: time_ns for one, time_ns in side} for side in (removed, added)]
    return pair_kernels(times[0], times[1], known.__getitem__)


def test_the_same_functor_comes_before_the_same_function() -> None:
    assert names(
        [
            (facts("add<4>", "elementwise", functor="Add"), 10),
            (facts("mul<4>", "elementwise", functor="Mul"), 99),
        ],
        [
            (facts("mul<2>", "elementwise", functor="Mul"), 10),
            (facts("add<2>", "elementwise", functor="Add"), 99),
        ],
    ) == [("mul<4>", "mul<2>"), ("add<4>", "add<2>")]


def test_among_equals_the_longest_are_paired() -> None:
    gemms = [(facts(f"old{time_ns}", family="gemm"), time_ns) for time_ns in (5, 50)]
    others = [(facts(f"new{time_ns}", family="gemm"), time_ns) for time_ns in (7, 3, 70)]
    assert names(gemms, others) == [("old50", "new70"), ("old5", "new7")]


def test_a_direction_is_not_paired_with_the_other() -> None:
    forward = facts("f", family="attention_flash", direction="forward")
    assert names([(forward, 1)], [(facts("b", family="attention_flash", direction="backward"), 1)]) == []


def test_nothing_known_is_nothing_paired() -> None:
    assert names([(facts("a"), 1)], [(facts("b"), 1)]) == []


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            facts("a", family="gemm", tile="64x64", operand_type="f32", split_k=False),
            facts("b", family="gemm", tile="128x64", operand_type="bf16", split_k=True),
            "operands f32 → bf16, tile 64x64 → 128x64, split K no → yes",
        ),
        (
            facts("k<1>", "k", template_arguments=[["width", "1"], [None, "float"]]),
            facts("k<2>", "k", template_arguments=[["width", "2"], [None, "double"]]),
            "width 1 → 2, argument float → double",
        ),
        (
            facts("triton_poi_fused_a_1", fused_operators=["a"], variant="pointwise"),
            facts("triton_poi_fused_a_2", fused_operators=["a"], variant="pointwise"),
            "renumbered",
        ),
        (facts("a", family="gemm"), facts("b", family="gemm"), "another kernel of the family gemm"),
    ],
)
def test_what_changed_is_told(old: KernelFacts, new: KernelFacts, words: str) -> None:
    assert describe_replacement(old, new) == words
