"""What is edited in each script so that its changes can be switched (`switches`), and which are tried.

A new program is two files of one name in `programs`: NAME.py, which runs by itself as a user wrote it, and
NAME.toml. That file has one `[[trial]]` for the changes that are switched within one process, and another for
each group of changes that needs a process of its own (a compiled model, workers of a loader). A trial has the
fields of `Trial`, and an `[[trial.edit]]` for each text of the script that something else takes the place of:
`old` stands in the script exactly once. Edited scripts call STEP() where a step begins, or take batches
from ENDLESS(loader), and ask ON("change") whether a change is on. Nothing asks of tf32, bf16 and fused, which
`switches` applies to the whole process.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import tomli

PROGRAMS = Path(__file__).parent / "programs"


class Trial(NamedTuple):
    """Changes of one script, switched within one process.

    Attributes:
        changes: Each is switched on alone.
        edits: Texts of the script and what comes in their place; each stands in the script once.
        block: Steps of a block.
        lead_in: How many of them do not count.
        per_step: Calls of STEP in a step of the recording; below 1 a call is several such steps.
    """

    changes: Sequence[str]
    edits: Sequence[tuple[str, str]]
    block: int = 10
    lead_in: int = 3
    per_step: float = 1


def trials_of(script: Path) -> list[Trial]:
    """The trials of a script, found by its name; a script may lie in another folder."""
    described = tomli.loads((PROGRAMS / f"{script.stem}.toml").read_text(encoding="utf-8"))
    return [
        Trial(edits=[(one["old"], one["new"]) for one in trial.pop("edit")], **trial)
        for trial in described["trial"]
    ]
