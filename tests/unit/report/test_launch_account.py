from __future__ import annotations

import pytest
from msgspec.structs import replace

from opscope.analysis.launch_accounts import LaunchAccount
from opscope.analysis.parallelism import Heading, ParallelismAccount, Statement
from opscope.analysis.provenance import KernelFacts
from opscope.analysis.summary import Summary
from opscope.analysis.totals import LaunchGeometry
from opscope.model.evidence import Grade
from opscope.report.document import FactList, Paragraph, plain
from opscope.report.launch_account import account_blocks, account_records

GEOMETRY = LaunchGeometry((4, 2, 1), (128, 1, 1), 32, 0, 0.5, 3, 9_000)
STATEMENTS = (
    Statement(Heading.PARALLEL_OVER, "Rows are independent.", Grade.NAME_PATTERN),
    Statement(Heading.MEMORY, "Loads are coalesced.", Grade.INFERRED),
    Statement(Heading.MEMORY, "Stores too.", Grade.INFERRED),
    Statement(Heading.MEMORY, "32 registers.", Grade.EXACT),
)
ACCOUNT = LaunchAccount("void f<int>()", GEOMETRY, ParallelismAccount("softmax", STATEMENTS), "[[8,4]]")


@pytest.fixture
def told(summary: Summary) -> Summary:
    kernel = replace(
        summary.kernels[0], name=ACCOUNT.kernel, facts=KernelFacts(ACCOUNT.kernel, "x", function="f")
    )
    return summary.having(kernels=(kernel,), accounts={("aten::a", ACCOUNT.kernel): (ACCOUNT,)})


def test_sentences_stand_by_heading_and_a_shared_grade_is_said_once(told: Summary) -> None:
    opening, facts = account_blocks(told, "aten::a", ACCOUNT.kernel)
    assert isinstance(opening, Paragraph)
    assert isinstance(facts, FactList)
    assert plain(opening.text) == "How it parallelizes, called with shapes [[8,4]]:"
    assert [(label, plain(text)) for label, text in facts.facts] == [
        ("Parallel over", "Rows are independent. (name_pattern)"),
        ("Memory", "Loads are coalesced. Stores too. (inferred) 32 registers. (exact)"),
    ]


def test_among_several_kernels_it_is_named_in_short(told: Summary) -> None:
    opening, _ = account_blocks(told, "aten::a", ACCOUNT.kernel, names_kernel=True)
    assert isinstance(opening, Paragraph)
    assert plain(opening.text).startswith("How it parallelizes, f, called")


def test_under_an_operator_without_an_account_the_kernels_own_stands_in(told: Summary) -> None:
    alone = told.having(accounts={(None, ACCOUNT.kernel): (ACCOUNT,)})
    assert account_blocks(alone, "aten::b", ACCOUNT.kernel) != ()
    assert len(account_records(alone, "aten::b", ACCOUNT.kernel)) == 1


def test_of_what_is_not_known_nothing_is_said(told: Summary) -> None:
    assert account_blocks(told, None, ACCOUNT.kernel) == ()
    assert account_records(told, "aten::a", "other") == []


def test_as_json_unknown_is_null(told: Summary) -> None:
    assert account_records(told, "aten::a", ACCOUNT.kernel) == [
        {
            "kernel": ACCOUNT.kernel,
            "shapes": [[8, 4]],
            "grid": (4, 2, 1),
            "block": (128, 1, 1),
            "family": "softmax",
            "launch_explained": None,
            "waves": None,
            "statements": [
                {"about": one.heading, "text": one.text, "grade": one.grade} for one in STATEMENTS
            ],
        }
    ]
