"""How a kernel parallelizes, with the numbers of its own launches, as blocks of a report and as JSON."""

from __future__ import annotations

from typing import Any

from opscope.analysis.kernel_titles import kernel_title
from opscope.analysis.launch_accounts import LaunchAccount
from opscope.analysis.parallelism import Heading, Statement, Waves
from opscope.analysis.summary import Summary
from opscope.report.document import Block, Code, FactList, Inline, Paragraph, Text
from opscope.report.json_encoding import from_json_text

__all__ = ["account_blocks", "account_json", "account_records"]

_TITLES = {
    Heading.PARALLEL_OVER: "Parallel over",
    Heading.BLOCK_COMPUTES: "One thread block",
    Heading.LAUNCH: "Launch",
    Heading.WAVES: "Waves",
    Heading.MEMORY: "Memory",
    Heading.SYNCHRONIZATION: "Synchronization",
    Heading.ALGORITHM: "Algorithm",
}


def account_blocks(
    summary: Summary, operator: str | None, kernel: str, *, names_kernel: bool = False
) -> tuple[Block, ...]:
    """The account of a kernel's longest launch under an operator; nothing where nothing is known.

    Args:
        summary: Of the trace.
        operator: Name of the operator; None for whichever launched it.
        kernel: Its name.
        names_kernel: Say which kernel it is about.
    """
    accounts = _accounts(summary, operator, kernel)
    if not accounts:
        return ()
    first = accounts[0]
    opening: list[Inline] = ["How it parallelizes"]
    if names_kernel:
        opening += [", ", Code(_title(summary, kernel))]
    if first.shapes:
        opening += [", called with shapes ", Code(first.shapes)]
    return (Paragraph((*opening, ":")), FactList(_facts(first)))


def account_records(summary: Summary, operator: str | None, kernel: str) -> list[dict[str, Any]]:
    """The accounts of a kernel's longest launch configurations as JSON values; empty if nothing is known."""
    return [account_json(one) for one in _accounts(summary, operator, kernel)]


def account_json(account: LaunchAccount) -> dict[str, Any]:
    """An account as JSON values."""
    told = account.account
    return {
        "kernel": account.kernel,
        "shapes": None if account.shapes is None else from_json_text(account.shapes),
        "grid": account.geometry.grid,
        "block": account.geometry.block,
        "family": told.family,
        "launch_explained": None if told.launch_check is None else told.launch_check.is_explained,
        "waves": _waves(told.waves),
        "statements": [
            {"about": statement.heading, "text": statement.text, "grade": statement.grade}
            for statement in told.statements
        ],
    }


def _waves(waves: Waves | None) -> dict[str, Any] | None:
    if waves is None:
        return None
    return {
        "blocks": waves.blocks,
        "slots": waves.slots,
        "count": waves.count,
        "tail_fraction": waves.tail_fraction,
    }


def _accounts(summary: Summary, operator: str | None, kernel: str) -> tuple[LaunchAccount, ...]:
    return summary.accounts.get((operator, kernel)) or summary.accounts.get((None, kernel)) or ()


def _title(summary: Summary, kernel: str) -> str:
    facts = next((one.facts for one in summary.kernels if one.name == kernel), None)
    return kernel if facts is None else kernel_title(facts)


def _facts(account: LaunchAccount) -> tuple[tuple[str, Text], ...]:
    facts: list[tuple[str, Text]] = []
    for heading in Heading:
        statements = account.account.under(heading)
        if statements:
            facts.append((_TITLES[heading], _sentences(statements)))
    return tuple(facts)


def _sentences(statements: tuple[Statement, ...]) -> str:
    """The sentences with their grades; one that several in a row share is said once, after the last."""
    parts = []
    for statement, following in zip(statements, (*statements[1:], None), strict=True):
        is_last = following is None or following.grade is not statement.grade
        parts.append(f"{statement.text} ({statement.grade})" if is_last else statement.text)
    return " ".join(parts)
