"""Kernels of cuBLAS, cuBLASLt, cuSOLVER and MAGMA besides their tensor-core multiplications.

MAGMA is public source and BLAS and LAPACK names are documented (`sgetf2`: s is the type, getf2 the routine);
the templates of NVIDIA's libraries are not, so what is read from them is inferred. Names that a program may
well use itself (`copy_kernel`, `dot_kernel`) count only where a parameter type of cuBLAS stands beside them.
"""

from __future__ import annotations

import re
from typing import Any

from opscope.provenance.kernel_names.cxx_name import CxxName
from opscope.provenance.kernel_names.decoded_kernel import Reading
from opscope.provenance.kernel_names.element_types import FLOATING, element_type, letter_type
from opscope.provenance.kernel_names.words import FamilyRules

__all__ = ["read_dense_algebra"]

# MAGMA's own kernels: a type letter and a LAPACK or BLAS routine.
_LETTERED = re.compile(
    r"^(?:magma_?)?(?P<letter>[sdcz])(?P<routine>getf2|getrf|gemm_batched_smallsq|laswp|lascl|laset|lacpy|lanhe"
    r"|lansy|larft?|scal_[sdcz]ger|swap_kernel|transpose|potf2|potrf|trsv_(?:no)?trans_kernel|trsm_|trmm_"
    r"|symv_kernel|hemv_kernel|geqr|geadd|pivcast|computecolumn|displace_pointers)"
)
_LETTERED_FAMILIES = {
    "getf2": "factorization",
    "getrf": "factorization",
    "potf2": "factorization",
    "potrf": "factorization",
    "geqr": "factorization",
    "larf": "factorization",
    "larft": "factorization",
    "scal_sger": "factorization",
    "gemm_batched_smallsq": "gemm",
    "trsv_trans_kernel": "triangular_solve",
    "trsv_notrans_kernel": "triangular_solve",
    "trsm_": "triangular_solve",
    "trmm_": "triangular_multiply",
    "symv_kernel": "symmetric_multiply",
    "hemv_kernel": "symmetric_multiply",
    "transpose": "transpose",
    "lascl": "matrix_copy",
    "laset": "matrix_copy",
    "lacpy": "matrix_copy",
    "geadd": "matrix_copy",
}
_FUNCTIONS = FamilyRules("dense_algebra")
_BESIDE_CUBLAS = FamilyRules("cublas")
_MAGMA = re.compile(r"magma|_template_batched|_smallsq|_native_kernel|pivinfo|displace_pointers")
_TRIANGULAR = (
    ("triangular_multiply", "Kernel_triangular_input"),
    ("rank_update", "Kernel_triangular_output"),
)


def read_dense_algebra(cxx: CxxName, text: str) -> Reading | None:
    """What a kernel of a dense algebra library says; None if the name is not one.

    Args:
        cxx: The name, taken apart; its function is not None.
        text: The name as recorded.
    """
    function = cxx.function or ""
    lettered = _LETTERED.match(function)
    if lettered is not None:
        return _lettered(lettered)
    if function.endswith("kernel_blasl3"):
        family = next((name for name, word in _TRIANGULAR if word in text), "symmetric_multiply")
        return Reading(inferred={"family": family})
    names_cublas = "cublas" in text
    named = _FUNCTIONS.find(function) or (_BESIDE_CUBLAS.find(function) if names_cublas else None)
    if named is None:
        return None
    inferred: dict[str, Any] = {"family": named, "library": _library(function, names_cublas)}
    if named in ("gemv", "gemm", "blas_vector"):
        inferred.update(_types(cxx))
    return Reading(inferred=inferred)


def _lettered(match: re.Match[str]) -> Reading:
    routine = match.group("routine")
    family = _LETTERED_FAMILIES.get("scal_sger" if routine.startswith("scal_") else routine, "linear_algebra")
    return Reading(
        {"family": family, "operand_type": letter_type(match.group("letter"))}, {"library": "magma"}
    )


def _library(function: str, names_cublas: bool) -> str | None:
    if "cublasLt" in function:
        return "cublasLt"
    if _MAGMA.search(function) and not names_cublas:
        return "magma"
    return "cublas" if names_cublas else None


def _types(cxx: CxxName) -> dict[str, str | None]:
    """The floating types that lead the template arguments: operands first, the type of the sum last."""
    types = [kind for argument in cxx.template_arguments[:7] if (kind := element_type(argument)) in FLOATING]
    if not types:
        return {}
    is_uniform = len(set(types)) == 1
    return {
        "operand_type": types[0],
        "accumulator_type": types[-1] if len(types) >= 4 or is_uniform else None,
    }
