"""Where the kernels of one recording come from, as its sidecar keeps it; places in source code, and grades.

It is read in the process that ran them. Everything is optional: what the process could not tell is absent,
and why is a Gap. Every derived fact carries the grade of its evidence.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from functools import lru_cache
from importlib import resources
from typing import Any, NamedTuple

import msgspec

from opscope.text_enum import MeaningEnum, TextEnum


class SourceKind(TextEnum):
    """Who wrote a kernel. A closed set."""

    INDUCTOR = "inductor"
    TRITON = "triton"
    CUDA = "cuda"


class SourceEvidence(TextEnum):
    """How a source was tied to a kernel's name. A closed set.

    `launch`: the trace's record of a launch names the file. `process`: the recording process held exactly
    this definition under the kernel's name, or, of several, this one belongs to a graph that ran.
    """

    LAUNCH = "launch"
    PROCESS = "process"


class RecordedUnit(msgspec.Struct, frozen=True):
    """One translation unit: its `.cu` file's name, nvcc's id of it, and its path where the binary says it."""

    name: str
    module_id: str | None = None
    source_path: str | None = None


class RecordedKernel(msgspec.Struct, frozen=True):
    """One kernel name of the trace, and the shared library of the process that registered it."""

    name: str  # As in the trace
    # File name without folders; None if no library registered it (or that is not known)
    library: str | None = None
    build_id: str | None = None  # Of the library
    # Translation units of the library that hold the kernel; one where it is certain
    units: tuple[RecordedUnit, ...] = ()


class SourceFrame(msgspec.Struct, frozen=True):
    """One line of a Python program that a compiled kernel stands for."""

    file: str
    line: int
    function: str
    code: str | None = None


# Frames of one call of an operator in the program, innermost last.
Stack = tuple[SourceFrame, ...]


class RecordedSource(msgspec.Struct, frozen=True, omit_defaults=True):
    """Source code of one kernel that the process itself compiled: Triton's or a CUDA extension's.

    A kernel generated for several compiled graphs has one entry for each.
    """

    kernel: str  # Name as in the trace
    kind: SourceKind  # Who wrote it
    evidence: SourceEvidence  # How it was tied to the name
    file: str | None = None  # Path on the recording machine; None if inductor noted none
    line: int | None = None  # Of its `def` or `__global__`
    end_line: int | None = None  # Its last
    hash: str | None = None  # Of the generated source, as inductor computes it
    copy: str | None = None  # The copied file, relative to the sidecar
    user_file: str | None = None  # File of the user's own Triton kernel that inductor generated this one from
    user_line: int | None = None  # Its line there
    heuristic: str | None = None  # Kind of the generated kernel, e.g. `persistent_reduction`
    graph: str | None = None  # Compiled graph it belongs to, e.g. `0_forward`
    graph_key: str | None = None  # Cache key of that graph, which the trace's annotations name
    original_aten: tuple[str, ...] = ()  # ATen operators it computes
    source_nodes: tuple[str, ...] = ()  # Nodes of the program's graph it computes
    # Modules of the program's model whose code these nodes are of, by qualified name
    modules: tuple[str, ...] = ()
    # Nodes of the graph as inductor lowered it; only with provenance tracking
    post_grad_nodes: tuple[str, ...] = ()
    stacks: tuple[Stack, ...] = ()  # Lines of the program it computes; only with provenance tracking
    meta: dict[str, Any] = {}  # What the generated code states of itself, e.g. `num_load`


class Gap(msgspec.Struct, frozen=True):
    """A part of the sidecar that could not be collected, and why."""

    part: str
    reason: str


class RegistrationKind(MeaningEnum):
    """How an operator's code came to the dispatcher. A closed set."""

    CUSTOM_OP = "custom_op", "torch.library.custom_op"
    TRITON_OP = "triton_op", "torch.library.triton_op"
    LIBRARY = "library", "Python, through a torch.library.Library"
    CXX = "cxx", "C++, through TORCH_LIBRARY"


class OperatorRegistration(msgspec.Struct, frozen=True):
    """One operator that no native_functions.yaml describes, or one of `aten` whose code was replaced.

    Places are `FILE:LINE`; files of PyTorch itself are relative to its repository, those under `build/` are
    generated. For code that was registered in C++ the place is that of the registration, as the compiler was
    told it. For a `Library` it is where the library object was made: its functions are not known.
    """

    name: str  # With namespace and overload, e.g. `mylib::scale`, `aten::mul.Tensor`
    kind: RegistrationKind  # How it was registered
    schema: str | None = None  # As the dispatcher prints it
    definition: str | None = None  # Where the schema was registered; None for operators of `aten`
    # Dispatch key → place of the code in force; None where the dispatcher names none. Of an `aten` operator
    # only the keys whose code is not PyTorch's compiled one
    kernels: dict[str, str | None] = {}
    python_file: str | None = None  # File of the user's Python function
    python_line: int | None = None  # Its first line, decorators included
    end_line: int | None = None  # Its last line
    # Dispatch key → place of the code that was replaced, None where there was none. Only for operators of
    # `aten`
    overrides: dict[str, str | None] = {}


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
_GENERATED = re.compile(r"(?:^|/)(?:torchinductor_|torch_compile_debug/|\.triton/|torch_geometric\.)")
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
