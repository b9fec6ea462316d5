"""Room for improvement of an operator's longest kernel by topic, and the command that tells the rest."""

from __future__ import annotations

from typing import Any

from opscope.analysis.improvement import OperatorImprovement
from opscope.report.document import Block, Code, CodeBlock, FactList, Paragraph, Text

__all__ = ["improvement_blocks", "improvement_record"]

_OPEN = "the recording does not tell; hardware counters would"


def improvement_blocks(found: OperatorImprovement) -> list[Block]:
    """What is known by topic, and the ncu command for what is not."""
    facts: list[tuple[str, Text]] = [
        (str(one.topic).capitalize(), one.known) for one in found.topics if one.known is not None
    ]
    still_open = [str(one.topic) for one in found.topics if one.known is None and one.needs_counters]
    if still_open:
        facts.append((", ".join(still_open).capitalize(), _OPEN))
    blocks: list[Block] = [
        Paragraph(("Room for improvement, ", Code(found.kernel), ":")),
        FactList(tuple(facts)),
    ]
    if found.command is not None:
        blocks += [
            Paragraph(
                "What only counters can tell, of its longest launch (counted from the recording's start):"
            ),
            CodeBlock(found.command, "bash"),
        ]
    return blocks


def improvement_record(found: OperatorImprovement | None) -> dict[str, Any] | None:
    """The same as JSON values; None where nothing is known."""
    if found is None:
        return None
    return {
        "kernel": found.kernel,
        "topics": {
            str(one.topic): {"known": one.known, "needs_counters": one.needs_counters} for one in found.topics
        },
        "ncu_command": found.command,
    }
