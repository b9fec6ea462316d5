"""How one launch of a CUDA kernel is parallel: told from its name, geometry, operator call and device.

`account(facts)` gives graded sentences under fixed headings: what is independent, what a block computes,
whether the launched grid follows from the recorded shapes, waves on this device, memory, synchronization,
algorithm. What a sentence would need and is not known leaves the sentence out.
"""

from __future__ import annotations

from opscope.analysis.occupancy import Waves
from opscope.analysis.parallelism.account import (
    Expected,
    Heading,
    LaunchCheck,
    Note,
    ParallelismAccount,
    Statement,
    extent_text,
)
from opscope.analysis.parallelism.catalogue import families, rule_for
from opscope.analysis.parallelism.facts import DeviceFacts, LaunchFacts, OperatorCall, TensorArgument
from opscope.analysis.parallelism.filling import resource_statements, wave_statements, waves
from opscope.analysis.parallelism.generated import parse_compile_arguments

__all__ = [
    "DeviceFacts",
    "Expected",
    "Heading",
    "LaunchCheck",
    "LaunchFacts",
    "OperatorCall",
    "ParallelismAccount",
    "Statement",
    "TensorArgument",
    "Waves",
    "account",
    "families",
    "parse_compile_arguments",
]

_ORDER = {heading: rank for rank, heading in enumerate(Heading)}


def account(facts: LaunchFacts) -> ParallelismAccount | None:
    """The account of one launch; None if nothing can be said of it."""
    entry = rule_for(facts)
    notes: list[Note] = list(entry.rule(facts)) if entry is not None else []
    check = next((note for note in notes if isinstance(note, LaunchCheck)), None)
    filled = waves(facts)
    statements = [note for note in notes if isinstance(note, Statement)]
    if check is not None:
        statements.append(_launch_statement(facts, check))
    statements += [*wave_statements(facts, filled), *resource_statements(facts)]
    if not statements:
        return None
    statements.sort(key=lambda statement: _ORDER[statement.heading])  # stable: a rule's own order stays
    return ParallelismAccount(
        family=entry.family if entry is not None else None,
        statements=tuple(statements),
        launch_check=check,
        waves=filled,
    )


def _launch_statement(facts: LaunchFacts, check: LaunchCheck) -> Statement:
    launched = f"grid {extent_text(facts.grid)} of blocks of {extent_text(facts.block)} threads"
    if check.matched is not None:
        configuration = f" ({check.matched.configuration})" if check.matched.configuration else ""
        reason = f"{check.matched.formula}{configuration}"
        text = f"Launched as {launched}, explained by what was recorded: {reason}."
    else:
        expected = _launch_text(check.tried[0])
        text = f"Not explained: launched as {launched}, but what was recorded would give {expected}."
    return Statement(Heading.LAUNCH, text, check.grade)


def _launch_text(expected: Expected) -> str:
    parts = []
    if expected.grid is not None and expected.grid[0]:
        parts.append(f"grid {extent_text(expected.grid)}")
    if expected.block is not None:
        parts.append(f"blocks of {extent_text(expected.block)} threads")
    launch = " of ".join(parts)
    return f"{launch} ({expected.formula})" if launch else expected.formula
