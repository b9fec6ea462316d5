"""Whose source file a Python frame is in: the user's program, or a library.

Decided by the name a recorder writes, which is an absolute path, or one relative to the module search path.
What no rule knows as a library belongs to the program: too much shown can be seen, too little cannot.
Imports nothing of opscope.
"""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from importlib import resources
from typing import NamedTuple

__all__ = ["FrameName", "is_program_file", "parse_frame"]

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
