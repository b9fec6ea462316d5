"""What nvcc compiles at once, and the two ways in which a binary names it.

The symbol table names the host side (`tmpxft_00005e13_00000000-6_SoftMax.compute_120.cudafe1.cpp`); names
of internal things, in device code too, contain the module (`_GLOBAL__N__f71e7945_10_SoftMax_cu_9f978f63`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["InternalName", "TranslationUnit", "UnitKernels", "host_stem", "internal_names", "named_unit"]


@dataclass(frozen=True)
class TranslationUnit:
    """A source file as nvcc compiled it.

    Args:
        name: File name (`SoftMax.cu`). Where only device code names it and the path is unknown, `_` may stand
            for what is no letter or digit.
        module_id: The eight hexadecimal digits nvcc writes into the unit's internal names: a checksum of the
            absolute path it was compiled from, so they tell units of one name apart. None if unknown.
        source_path: Path of the file, relative to PyTorch's repository where it lies in one
            (`aten/src/ATen/native/cuda/SoftMax.cu`), else as the compiler was given it. None if unknown.
    """

    name: str
    module_id: str | None = None
    source_path: str | None = None


@dataclass(frozen=True)
class UnitKernels:
    """Kernels one unit brings into a library.

    Args:
        unit: None where the library holds the kernels but does not tell whose they are.
        kernels: Mangled names.
        is_name_exact: False where only device code names the unit, which writes `-` and others as `_`.
    """

    unit: TranslationUnit | None
    kernels: frozenset[str]
    is_name_exact: bool = True


@dataclass(frozen=True)
class InternalName:
    """The part of an internal name that identifies its unit: module id and `SoftMax_cu`."""

    module_id: str
    file: str


_HOST_FILE = re.compile(
    r"(?:tmpxft_[0-9a-f]+_[0-9a-f]+-\d+_)?(?P<stem>.+?)(?:\.compute_\w+)?\.cudafe1\.(?:stub\.c|cpp|gpu)"
)
_INTERNAL = re.compile(
    rb"_(?:GLOBAL__N_|INTERNAL|nv_static_\d+_)_(?P<module>[0-9a-f]{8})_(?P<length>[1-9]\d{0,2})_"
)
_EXTENSIONS = ("cu", "cpp", "cc", "cxx", "c")


def host_stem(file_symbol: str) -> str | None:
    """`SoftMax` of the file symbol of a unit's host code; None if nvcc did not write it."""
    match = _HOST_FILE.fullmatch(file_symbol)
    return match["stem"] if match else None


def internal_names(names: bytes) -> set[InternalName]:
    """Every unit that internal names in a text belong to."""
    ends = {(match["module"], int(match["length"])): match.end() for match in _INTERNAL.finditer(names)}
    files = {(module, length): names[end : end + length] for (module, length), end in ends.items()}
    return {
        InternalName(module.decode(), file.decode("utf-8", "replace"))
        for (module, length), file in files.items()
        if len(file) == length
    }


def named_unit(internal: InternalName, stem: str | None = None) -> TranslationUnit:
    """The unit of an internal name.

    Args:
        internal: It writes every character that cannot be in an identifier as `_`: `my-kernel.cu` is
            `my_kernel_cu`.
        stem: The file's name without extension as the host side has it; without it `_` is taken for itself.
    """
    written, _, extension = internal.file.rpartition("_")
    if extension not in _EXTENSIONS:
        written, extension = internal.file, "cu"
    return TranslationUnit(f"{stem or written}.{extension}", internal.module_id)
