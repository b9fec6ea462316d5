"""Code that PyTorch generates at build time: it has no line in the repository; this is what stands for it."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Generated", "Ufunc", "generated_function", "generated_unit", "ufunc_of"]

_UFUNC_FOLDER = "aten/src/ATen/native/ufunc"
_TEMPLATE_FOLDER = "aten/src/ATen/templates"
_UFUNC_REASON = "generated at build time from the inner loop of a universal function"
_UFUNC_NAMES = (
    re.compile(r"(?:at::native::)?(?:\(anonymous namespace\)::)?CUDAFunctor(?:OnSelf|OnOther)?_(\w+)"),
    re.compile(r"(?:at::native::)?ufunc_(\w+)_(?:CUDA|CPU)"),
    re.compile(r"Ufunc(?:CUDA|CPU|CPUKernel)_(\w+)\.(?:cu|cpp)"),
)
_REGISTER_UNIT = re.compile(r"Register\w+?(?:_\d+)?\.cpp")
_VIEW_COPY = re.compile(r"\w+_copy(?:_symint)?(?:_out)?")


@dataclass(frozen=True)
class Ufunc:
    """The hand-written inner loop of a generated universal function."""

    name: str
    file: str


@dataclass(frozen=True)
class Generated:
    """Why something has no place in the repository.

    Attributes:
        reason: For people, without a trailing period.
        file: The hand-written file it is generated from, if there is one.
    """

    reason: str
    file: str | None = None


def ufunc_of(name: str) -> Ufunc | None:
    """The inner loop behind a generated functor, function or unit.

    Args:
        name: `CUDAFunctor_add`, `ufunc_add_CUDA` or `UfuncCUDA_add.cu`, qualified or not.
    """
    basename = name.rpartition("/")[2]
    matches = (pattern.fullmatch(basename) for pattern in _UFUNC_NAMES)
    base = next((match.group(1) for match in matches if match), None)
    return None if base is None else Ufunc(base, f"{_UFUNC_FOLDER}/{base}.h")


def generated_unit(unit: str) -> Generated | None:
    """Why a translation unit is in no source tree; None if it may be in one."""
    basename = unit.rpartition("/")[2]
    ufunc = ufunc_of(basename)
    if ufunc is not None:
        return Generated(_UFUNC_REASON, ufunc.file)
    if not _REGISTER_UNIT.fullmatch(basename):
        return None
    template = basename if basename == "RegisterSchema.cpp" else "RegisterDispatchKey.cpp"
    return Generated(
        "registrations generated at build time from native_functions.yaml", f"{_TEMPLATE_FOLDER}/{template}"
    )


def generated_function(name: str, *, is_generated_entry: bool = False) -> Generated | None:
    """Why the function of a dispatch entry, of which the index knows no definition, has none.

    Args:
        name: The function of the entry.
        is_generated_entry: The entry itself was generated, as `autogen` does for out variants.

    Returns:
        None if it should have one.
    """
    ufunc = ufunc_of(name)
    if ufunc is not None:
        return Generated(_UFUNC_REASON, ufunc.file)
    if is_generated_entry:
        return Generated("an out or functional variant generated at build time from its base operator")
    if _VIEW_COPY.fullmatch(name):
        return Generated("a view copy generated at build time: it calls the view and copies its result")
    return None
