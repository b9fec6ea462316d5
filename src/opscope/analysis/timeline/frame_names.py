"""What the names of recorded Python frames tell: the program's own functions, waiting for data, sleeping."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from opscope.model.program_files import is_program_file, parse_frame
from opscope.model.session import Session

__all__ = ["FrameNames", "read_frame_names"]

_LOADING = re.compile(r"(?:^|/)torch/utils/data/dataloader\.py\(\d+\): __next__$")
# Python functions that give the processor away until something happens elsewhere.
_SLEEPING = re.compile(
    r"<built-in (?:function (?:sleep|select)|method (?:acquire|poll|select|recv|accept) of .*)>$"
)


@dataclass(frozen=True)
class FrameNames:
    """Names of frames by what they are; all empty where stacks were not recorded.

    Attributes:
        loading: A DataLoader's wait for its next batch.
        asleep: Functions in which the thread sleeps.
        program: The program's own functions, each with its title `file:line function`.
    """

    loading: tuple[str, ...] = ()
    asleep: tuple[str, ...] = ()
    program: Mapping[str, str] = field(default_factory=dict)


def read_frame_names(session: Session) -> FrameNames:
    """The names of a Session's frames."""
    names = [name for (name,) in session.query("SELECT DISTINCT name FROM frames WHERE name IS NOT NULL")]
    program = {}
    for name in names:
        frame = parse_frame(name)
        if frame is not None and is_program_file(frame.file):
            program[name] = f"{frame.file}:{frame.line} {frame.function}"
    return FrameNames(
        loading=tuple(name for name in names if _LOADING.search(name)),
        asleep=tuple(name for name in names if _SLEEPING.match(name)),
        program=program,
    )
