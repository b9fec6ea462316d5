"""A place in source code, with how well its file and its line are known."""

from __future__ import annotations

from dataclasses import dataclass

from opscope.model.evidence import Grade, weakest

__all__ = ["SourceLocation"]


@dataclass(frozen=True)
class SourceLocation:
    """Where something is defined.

    Args:
        file: Path in PyTorch's repository (`aten/src/ATen/native/cuda/SoftMax.cu`), or the path of a user's
            own file; a bare name (`flash_fwd_hdim64.cu`) where only that is known.
        file_grade: How the file is known.
        line: First line, from 1; None if unknown.
        end_line: Last line.
        line_grade: How the lines are known; None exactly if `line` is.
        url: Permalink to the file, at the commit at which the line is right; None outside public
            repositories.
    """

    file: str
    file_grade: Grade
    line: int | None = None
    end_line: int | None = None
    line_grade: Grade | None = None
    url: str | None = None

    @property
    def grade(self) -> Grade:
        """How the location as a whole is known: its weakest part."""
        known = self.file_grade if self.line is None else weakest((self.file_grade, self.line_grade))
        return known or self.file_grade

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"
