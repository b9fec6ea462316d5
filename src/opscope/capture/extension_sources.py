"""Kernels of CUDA extensions built on this machine → their `.cu` file and the line of `__global__`.

`torch.utils.cpp_extension` leaves `build.ninja`, which names the sources, beside the library it loads. A
library without one, such as torch's own, has no sources here. Imports nothing of torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from opscope.model.origin import RecordedKernel, RecordedSource, SourceEvidence, SourceKind

__all__ = ["base_name", "extension_sources", "global_function_lines", "mapped_files"]

_MAPS = Path("/proc/self/maps")
# torch/utils/cpp_extension.py, `_write_ninja_file`; ninja escapes blanks, colons and dollars with a dollar.
_CUDA_SOURCE = re.compile(r"^build \S+: cuda_compile ((?:[^\s$]|\$.)+)", re.MULTILINE)
_NINJA_ESCAPE = re.compile(r"\$(.)")
# Comments, literals and preprocessor lines: a macro's `__global__` is nobody's definition.
_NO_CODE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])'|^[ \t]*\#(?:\\.|[^\\\n])*""",
    re.DOTALL | re.MULTILINE,
)
_GLOBAL = re.compile(r"\b__global__\b")
_TEMPLATE_ARGUMENTS = re.compile(r"<[^<>]*>")


def extension_sources(kernels: Iterable[RecordedKernel], maps: Path = _MAPS) -> list[RecordedSource]:
    """Sources of the kernels that come from a library built by `torch.utils.cpp_extension`.

    Args:
        kernels: Kernels with the library that registered them.
        maps: What the kernel says of this process's mappings.
    """
    files = mapped_files(maps)
    sources = []
    for kernel in kernels:
        paths = [] if kernel.library is None else files.get(kernel.library, [])
        if len(paths) == 1 and (source := _source(kernel, _cuda_sources(paths[0].parent))) is not None:
            sources.append(source)
    return sources


def mapped_files(maps: Path = _MAPS) -> dict[str, list[Path]]:
    """Paths of the files mapped into this process, by their name; empty where the system does not say."""
    try:
        text = maps.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return {}
    files: dict[str, list[Path]] = {}
    for path in dict.fromkeys(re.findall(r"(/[^\n]+)$", text, re.MULTILINE)):
        files.setdefault(path.rpartition("/")[2], []).append(Path(path))
    return files


def base_name(kernel: str) -> str | None:
    """Name of the function in a demangled kernel name, without scope, arguments and parameters."""
    text = kernel.replace("(anonymous namespace)", "")
    while (shorter := _TEMPLATE_ARGUMENTS.sub("", text)) != text:
        text = shorter
    found = re.search(r"(\w+)\s*(?:\(|$)", text)
    return None if found is None else found[1]


def global_function_lines(text: str, name: str) -> tuple[int, int] | None:
    """First and last line of the one `__global__` function of that name; None if there is not exactly one."""
    code = _NO_CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    wanted = re.compile(rf"\b{re.escape(name)}\s*\(")
    found = []
    for marker in _GLOBAL.finditer(code):
        end = re.search(r"[{;]", code[marker.end() :])
        if end is None or end[0] == ";":  # A declaration, or an explicit instantiation.
            continue
        opening = marker.end() + end.start()
        if wanted.search(code, marker.end(), opening):
            found.append((marker.start(), _closing_brace(code, opening)))
    if len(found) != 1:
        return None
    first, last = found[0]
    return code.count("\n", 0, first) + 1, code.count("\n", 0, last) + 1


def _closing_brace(code: str, opening: int) -> int:
    depth = 0
    for brace in re.finditer(r"[{}]", code[opening:]):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return opening + brace.start()
    return len(code)


def _cuda_sources(folder: Path) -> list[Path]:
    """CUDA sources that a build folder's libraries were made from."""
    try:
        text = (folder / "build.ninja").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return []
    return [folder / _NINJA_ESCAPE.sub(r"\1", path) for path in _CUDA_SOURCE.findall(text)]


def _source(kernel: RecordedKernel, files: list[Path]) -> RecordedSource | None:
    """The source of a kernel among the files of its library; None unless exactly one defines it."""
    name = base_name(kernel.name)
    units = {unit.name for unit in kernel.units}
    found = []
    for file in files:
        if name is None or (units and file.name not in units):
            continue
        try:
            lines = global_function_lines(file.read_text(encoding="utf-8", errors="replace"), name)
        except OSError:
            continue
        if lines is not None:
            found.append((file, lines))
    if len(found) != 1:
        return None
    file, (line, end_line) = found[0]
    return RecordedSource(
        kernel=kernel.name,
        kind=SourceKind.CUDA,
        evidence=SourceEvidence.PROCESS,
        file=str(file),
        line=line,
        end_line=end_line,
    )
