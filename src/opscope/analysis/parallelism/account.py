"""The account of one kernel's parallelism: graded sentences under fixed headings, a launch held to a rule.

Rules are generators of Statements and LaunchChecks. A sentence is a fact of this launch; one whose numbers
are missing is not made. A launch that its rule does not predict is said to be unexplained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from opscope.analysis.occupancy import Waves
from opscope.analysis.parallelism.facts import Extent, LaunchFacts
from opscope.model.evidence import Grade
from opscope.text_enum import TextEnum

__all__ = [
    "Expected",
    "Heading",
    "LaunchCheck",
    "Note",
    "ParallelismAccount",
    "Rule",
    "Statement",
    "check_launch",
    "checked",
    "extent_text",
]


class Heading(TextEnum):
    """What a statement is about; also the order of an account."""

    PARALLEL_OVER = "parallel_over"
    BLOCK_COMPUTES = "block_computes"
    LAUNCH = "launch"
    WAVES = "waves"
    MEMORY = "memory"
    SYNCHRONIZATION = "synchronization"
    ALGORITHM = "algorithm"


@dataclass(frozen=True)
class Statement:
    """One sentence, with the grade of its evidence."""

    heading: Heading
    text: str
    grade: Grade


@dataclass(frozen=True)
class Expected:
    """The launch one documented configuration gives for the recorded arguments; None: left open."""

    formula: str
    grid: Extent | None = None
    block: Extent | None = None
    configuration: str = ""

    def matches(self, grid: Extent, block: Extent | None) -> bool:
        """The recorded launch is this one."""
        return (self.grid is None or self.grid == grid) and (
            self.block is None or block is None or self.block == block
        )


@dataclass(frozen=True)
class LaunchCheck:
    """A recorded launch held against a rule: `matched` is what explains it, None if nothing does."""

    tried: tuple[Expected, ...]
    matched: Expected | None
    grade: Grade

    @property
    def is_explained(self) -> bool:
        """A documented configuration gives the recorded launch."""
        return self.matched is not None


Note = Statement | LaunchCheck
Rule = Callable[[LaunchFacts], Iterator[Note]]


@dataclass(frozen=True)
class ParallelismAccount:
    """How one launch of a kernel is parallel.

    Attributes:
        family: The rule's family; None if no rule knows the kernel: then only its geometry is told.
        statements: By heading, in the order of Heading.
        launch_check: None if the rule had not the numbers to predict a launch.
        waves: None without device limits.
    """

    family: str | None
    statements: tuple[Statement, ...]
    launch_check: LaunchCheck | None = None
    waves: Waves | None = field(default=None, compare=False)

    def under(self, heading: Heading) -> tuple[Statement, ...]:
        """Statements of one heading."""
        return tuple(statement for statement in self.statements if statement.heading is heading)


def check_launch(
    launch: LaunchFacts, expected: Iterable[Expected | None], grade: Grade = Grade.NAME_PATTERN
) -> LaunchCheck | None:
    """The recorded grid and block held against what is expected; None if either side is unknown."""
    tried = tuple(one for one in expected if one is not None)
    grid = launch.grid
    if grid is None or not tried:
        return None
    matched = next((one for one in tried if one.matches(grid, launch.block)), None)
    return LaunchCheck(tried, matched, grade)


def checked(
    launch: LaunchFacts, expected: Iterable[Expected | None], grade: Grade = Grade.NAME_PATTERN
) -> Iterator[LaunchCheck]:
    """The check of `check_launch`, or nothing: for rules to yield from."""
    check = check_launch(launch, expected, grade)
    if check is not None:
        yield check


def extent_text(extent: Extent | None) -> str:
    """`132×2` for (132, 2, 1): trailing ones are left out."""
    if extent is None:
        return "unknown"
    sizes = list(extent)
    while len(sizes) > 1 and sizes[-1] == 1:
        sizes.pop()
    return "×".join(f"{size:,}" for size in sizes)
