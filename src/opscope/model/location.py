"""A place in source code, and the grades of evidence that every derived fact carries."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from functools import lru_cache
from importlib import resources
from typing import NamedTuple

import msgspec

from opscope.text_enum import MeaningEnum


class Grade(MeaningEnum):
    """The evidence for a fact, strongest first. A closed set."""

    EXACT = "exact", "read from this build's own binary, yaml file or header"
    RELEASE_INDEX = "release_index", "from the packaged index of the same release"
    COMPILED = "compiled", "from line numbers compiled into this release's libraries"
    BRACKET = "bracket", "a range of lines, from the same"
    NEIGHBOR_VERSION = "neighbor_version", "from the index of another release (≈ before a line)"
    NAME_PATTERN = "name_pattern", "read from the name by a documented grammar"
    INFERRED = "inferred", "from an undocumented but observed pattern"


_ORDER = {grade: rank for rank, grade in enumerate(Grade)}


def weakest(grades: Iterable[Grade | None]) -> Grade | None:
    """The grade of a fact that needs all of these; None if there are none or one of them is unknown."""
    known = list(grades)
    if not known or None in known:
        return None
    return max((grade for grade in known if grade is not None), key=_ORDER.__getitem__)


class SourceLocation(msgspec.Struct, frozen=True):
    # Path in PyTorch's repository (`aten/src/ATen/native/cuda/SoftMax.cu`), or the path of a user's own file;
    # a bare name (`flash_fwd_hdim64.cu`) where only that is known
    file: str
    file_grade: Grade  # How the file is known
    line: int | None = None  # First line, from 1; None if unknown
    end_line: int | None = None  # Last line; of a bracket, the last on which it may begin
    line_grade: Grade | None = None  # How the lines are known; None exactly if `line` is
    # Permalink to the file, at the commit at which the line is right; None outside public repositories
    url: str | None = None

    @property
    def grade(self) -> Grade:
        """How the location as a whole is known: its weakest part."""
        known = self.file_grade if self.line is None else weakest((self.file_grade, self.line_grade))
        return known or self.file_grade

    def __str__(self) -> str:
        if self.line is None:
            return self.file
        if self.line_grade is Grade.BRACKET:
            return f"{self.file}:{self.line}–{self.end_line}"
        about = "≈" if self.line_grade is Grade.NEIGHBOR_VERSION else ""
        return f"{self.file}:{about}{self.line}"


# `file(line): function`: torch/csrc/profiler/collection.cpp, `ExtraFields<PyCall>::name`.
_FRAME = re.compile(r"(?P<file>.+)\((?P<line>\d+)\): (?P<function>.*)", re.DOTALL)
# The last alternative are the commands that packages install, such as torchrun.
_INSTALLED = re.compile(
    r"(?:^|/)(?:site-packages|dist-packages)/|/lib/python\d[\d.]*/|/Python\d+/Lib/|/(?:bin|Scripts)/[^/.]+$"
)
# What torch.compile and Triton load from text that they generated.
_GENERATED = re.compile(r"(?:^|/)(?:torchinductor_|torch_compile_debug/|\.triton/)")
_INTERACTIVE = re.compile(r"<(?:stdin|console|ipython-input|python-input)\b")


class FrameName(NamedTuple):
    """A recorded frame's name in its parts. `line` is where the function begins, or where it stood."""

    file: str
    line: int
    function: str


def parse_frame(name: str) -> FrameName | None:
    """The parts of `file(line): function`; None for a builtin, a module call, or anything else."""
    match = _FRAME.fullmatch(name)
    # A line of more digits than any file has is no line, and might not fit an integer column.
    if match is None or len(match["line"]) > 9:
        return None
    return FrameName(match["file"], int(match["line"]), match["function"])


def is_program_file(file: str) -> bool:
    """Whether a file, by its recorded name, is the user's own."""
    name = file.replace("\\", "/")
    if name.startswith("<"):
        return _INTERACTIVE.match(name) is not None
    if _INSTALLED.search(name) or _GENERATED.search(name):
        return False
    if name.startswith("/") or name[1:3] == ":/":
        return True
    top = name.partition("/")[0]
    return top.removesuffix(".py") not in sys.stdlib_module_names and top not in _installed_packages()


@lru_cache(maxsize=1)
def _installed_packages() -> frozenset[str]:
    text = resources.files(__package__).joinpath("library_packages.txt").read_text(encoding="utf-8")
    return frozenset(line for line in text.splitlines() if line and not line.startswith("#"))
