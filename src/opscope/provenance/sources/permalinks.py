"""Paths and addresses of PyTorch's files: where a shipped header lies in the repository, and permalinks."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from urllib.parse import quote

__all__ = ["include_path", "permalink", "repository_path"]

_ADDRESS = "https://github.com/pytorch/pytorch/blob"
_COMMIT = re.compile(r"[0-9a-f]{40}")
# Folders of the include folder → those of the repository; other folders belong to third parties.
_MOVED = {"ATen": "aten/src/ATen", "THC": "aten/src/THC"}
_KEPT = frozenset(("c10", "torch", "caffe2"))
_REPOSITORY_FOLDERS = ("aten/", "c10/", "torch/", "caffe2/", "functorch/", "torchgen/", "tools/", "test/")
# Headers that the build writes: no such file is in the repository.
_GENERATED = re.compile(
    r"ATen/ops/.*"
    r"|ATen/(?:\w*Functions(?:_inl)?|MethodOperators|Operators|RegistrationDeclarations|VmapGeneratedPlumbing"
    r"|Config)\.h"
    r"|ATen/core/(?:TensorBody|aten_interned_strings|enum_tag)\.h"
    r"|ATen/cuda/CUDAConfig\.h"
    r"|c10/(?:.*/)?\w*cmake_macros\.h"
    r"|torch/csrc/autograd/generated/.*"
    r"|torch/csrc/api/include/torch/version\.h"
    r"|torch/(?:headeronly/)?version\.h"
)


def repository_path(header: str) -> str | None:
    """Path in the repository of a header in `torch/include`; None for generated and third-party ones."""
    if not is_plain_path(header) or _GENERATED.fullmatch(header):
        return None
    top, _, rest = header.partition("/")
    if top in _MOVED and rest:
        return f"{_MOVED[top]}/{rest}"
    return header if top in _KEPT and rest else None


def include_path(file: str) -> str | None:
    """Path in `torch/include` of a file of the repository, the inverse of `repository_path`."""
    for top, folder in _MOVED.items():
        if file.startswith(f"{folder}/"):
            return f"{top}{file.removeprefix(folder)}"
    return file if file.partition("/")[0] in _KEPT else None


def permalink(
    git_version: str | None, file: str, line: int | None = None, end_line: int | None = None
) -> str | None:
    """Address of lines of a file at a commit of pytorch/pytorch.

    Args:
        git_version: The commit, 40 hexadecimal digits; other values have no permalink.
        file: Path in the repository, or of a header in `torch/include`.
        line: First line, from 1; the whole file if None.
        end_line: Last line.

    Returns:
        None for what that repository does not hold: submodules, generated files, an unknown commit.
    """
    path = file if file.startswith(_REPOSITORY_FOLDERS) else repository_path(file)
    if path is None or git_version is None or not _COMMIT.fullmatch(git_version) or not is_plain_path(path):
        return None
    if repository_path(include_path(path) or path) is None and include_path(path) is not None:
        return None
    address = f"{_ADDRESS}/{git_version}/{quote(path)}"
    if line is None or line < 1:
        return address
    return (
        f"{address}#L{line}-L{end_line}" if end_line is not None and end_line > line else f"{address}#L{line}"
    )


def is_plain_path(path: str) -> bool:
    """Whether a path is relative and goes nowhere but down."""
    parts = PurePosixPath(path).parts
    return (
        bool(parts)
        and not path.startswith("/")
        and ".." not in parts
        and "\\" not in path
        and "\0" not in path
    )
