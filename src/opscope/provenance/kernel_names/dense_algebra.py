"""Kernels that multiply matrices, and those around them: cuBLAS, CUTLASS, xmma, Tensile, MAGMA, cuSOLVER.

Patterns are in `grammars.toml`; each function gives a Reading, None if the name is not of it. CUTLASS is
documented.
Source: NVIDIA/cutlass, python/cutlass_library/gemm_operation.py and conv2d_operation.py (`procedural_name`,
`core_name`, `extended_name`), media/docs/cpp/profiler.md. NVIDIA's other names are not: what is read from
them is inferred, and agrees with recorded operand types.
"""

from __future__ import annotations

import re

from opscope.provenance.kernel_names.cxx_name import CxxName
from opscope.provenance.kernel_names.decoded_kernel import (
    Found,
    Reading,
    find_grammar,
    read_by_rules,
    read_grammar,
)
from opscope.provenance.kernel_names.vocabulary import (
    FLOATING,
    LETTERS,
    direction_of,
    element_type,
    family_by_rules,
)
from opscope.provenance.packaged import lazy_pattern


def read_hand_tuned(text: str) -> Reading | None:
    """What a hand-tuned kernel named after a generation of GPUs says."""
    if (found := find_grammar("tuned", text)) is None:
        return read_grammar("first_layer", text)
    accumulator = found.fields.get("accumulator_type")
    if found.groups["operand_type"] is None:  # integers are summed in wider ones
        found.fields.setdefault("output_type", accumulator)
        found.fields["operand_type"] = None if accumulator == "s32" else accumulator
    if found.fields["family"] == "convolution":
        found.fields.pop("epilogue", None)
    return found.reading()


_XMMA_ONE_TYPE = lazy_pattern(r"c?b?f\d+|tf32|ue\dm\d|e\dm\d|c?[isu]\d+")
_XMMA_PLAIN = lazy_pattern(r"(?:^|_)ff(?:ma)?(?:_|$)")


def read_xmma(text: str) -> Reading | None:
    found = find_grammar("xmma", text)
    if found is None:
        return None
    kind, rest = found.groups["kind"] or "gemm", found.groups["rest"] or ""
    family = "gemm" if kind.startswith("gemm") else family_by_rules("xmma", kind)
    if family is None:
        return None
    tensor_core = "_tensor" in rest or "_hmma" in rest
    tensor_core = tensor_core or ("warpgroupsize" in rest and found.fields["architecture"] == "sm90")
    return found.reading(
        family=family,
        direction=direction_of(kind),
        split_k="split_k" in rest or (None if "segment_k_on" in rest else False),
        tensor_core=False if _XMMA_PLAIN.search(rest) else tensor_core or None,
        **_xmma_types(found.groups["outer"], found.groups["inner"]),
    )


def _xmma_types(outer: str | None, inner: str | None) -> dict[str, str | None]:
    """Operand, multiplied, accumulated and output type from `<operands><output>_<operands><accumulator>`."""
    memory, compute = (list(map(element_type, _XMMA_ONE_TYPE.findall(text or ""))) for text in (outer, inner))
    operand = memory[0] if len(memory) == 2 else None
    multiplied = compute[0] if len(compute) == 2 else None
    return {
        "operand_type": operand,
        "output_type": memory[-1] if len(memory) >= 2 else None,
        "accumulator_type": compute[-1] if compute else None,
        "multiply_type": multiplied if operand is not None and multiplied != operand else None,
    }


# Instances of CUTLASS' kernel templates.
_TEMPLATE_ARCHITECTURE = lazy_pattern(
    r"(?:arch::|arch4|arch5|::)(Sm\d{2,3})|\b(SM\d{2,3})_|(?<=Mainloop)(Sm\d{2,3})|\d(Sm\d{2,3})E"
)
_DIRECTED = frozenset(("convolution", "depthwise_convolution", "attention"))


def read_cutlass(cxx: CxxName, text: str) -> Reading | None:
    """What a procedural name, or an instance of a template, says; None if it is neither."""
    found = find_grammar("cutlass", cxx.function or "")
    if found is None and cxx.template_arguments:
        found = find_grammar("cutlass", cxx.template_arguments[0].rpartition("::")[2])
    if found is None:
        return _cutlass_template(text)
    variant, rest = found.groups["variant"] or "", found.groups["rest"] or ""
    family = "grouped_gemm" if "_grouped" in variant + rest else found.fields["family"]
    return found.reading(variant=variant.strip("_") or None, family=family, **_cutlass_types(found))


def _cutlass_types(found: Found) -> dict[str, str | None]:
    """Types by `extended_name`: 2.x names only those unlike the accumulator's, 3.x names all five."""
    letters = found.groups["letters"] or ""
    accumulator = LETTERS.get(letters)
    named = [element_type(part) for part in (found.groups["types"] or "").split("_") if part]
    if found.groups["version"] and len(named) == 5:
        first, second, summed, _, result = named
        return {
            "operand_type": first if first == second else None,
            "accumulator_type": summed,
            "output_type": result,
            "multiply_type": None,
        }
    return {
        "operand_type": named[0] if named else (None if letters == "i" else accumulator),
        "accumulator_type": accumulator,
        "output_type": found.fields.get("output_type") if found.groups["output_type"] else accumulator,
    }


def _cutlass_template(name: str) -> Reading | None:
    text = name[:1000]  # what it is about stands first; the rest are layouts
    family = family_by_rules("cutlass_template", text)
    if family is None:
        return None
    architecture = _TEMPLATE_ARCHITECTURE.search(text)
    return Reading(
        {
            "library": "cutlass",
            "family": family,
            "direction": direction_of(text) if family in _DIRECTED else None,
            "architecture": architecture and architecture[architecture.lastindex or 0].lower(),
            "variant": "template",
        }
    )


_MIOPEN = lazy_pattern(r"miopen", re.IGNORECASE)


def read_rocm(function: str) -> Reading | None:
    """What a kernel of AMD's libraries says: Tensile, rocPRIM, MIOpen, Composable Kernel."""
    library = "rocprim" if "rocprim::" in function else "miopen" if _MIOPEN.match(function) else None
    return read_grammar("tensile", function) or read_by_rules("rocm", function, library)


# cuBLAS, cuBLASLt, cuSOLVER and MAGMA besides tensor-core multiplications. MAGMA is public source and BLAS
# and LAPACK names are documented (`sgetf2`: s is the type, getf2 the routine). Names that a program may well
# use itself (`copy_kernel`, `dot_kernel`) count only where a parameter type of cuBLAS stands beside them.
_LETTERED = lazy_pattern(
    r"^(?:magma_?)?(?P<letter>[sdcz])(?P<routine>getf2|getrf|gemm_batched_smallsq|laswp|lascl|laset|lacpy|lanhe"
    r"|lansy|larft?|scal_[sdcz]ger|swap_kernel|transpose|potf2|potrf|trsv_(?:no)?trans_kernel|trsm_|trmm_"
    r"|symv_kernel|hemv_kernel|geqr|geadd|pivcast|computecolumn|displace_pointers)"
)
_MAGMA = lazy_pattern(r"magma|_template_batched|_smallsq|_native_kernel|pivinfo|displace_pointers")


def read_dense_algebra(cxx: CxxName, text: str) -> Reading | None:
    function = cxx.function or ""
    if lettered := _LETTERED.match(function):
        family = family_by_rules("lapack_routine", lettered["routine"]) or "linear_algebra"
        stated = {"family": family, "operand_type": LETTERS.get(lettered["letter"])}
        return Reading(stated, {"library": "magma"})
    if function.endswith("kernel_blasl3"):
        return Reading(inferred={"family": family_by_rules("cublas_level_3", text)})
    names_cublas = "cublas" in text
    named = family_by_rules("dense_algebra", function)
    named = named or (family_by_rules("cublas", function) if names_cublas else None)
    if named is None:
        return None
    library = "cublas" if names_cublas else "magma" if _MAGMA.search(function) else None
    inferred = {"family": named, "library": "cublasLt" if "cublasLt" in function else library}
    if named in ("gemv", "gemm", "blas_vector"):
        inferred.update(_leading_types(cxx))
    return Reading(inferred=inferred)


def _leading_types(cxx: CxxName) -> dict[str, str | None]:
    """The floating types that lead the template arguments: operands first, the type of the sum last."""
    types = [kind for argument in cxx.template_arguments[:7] if (kind := element_type(argument)) in FLOATING]
    if not types:
        return {}
    has_sum = len(types) >= 4 or len(set(types)) == 1
    return {"operand_type": types[0], "accumulator_type": types[-1] if has_sum else None}
