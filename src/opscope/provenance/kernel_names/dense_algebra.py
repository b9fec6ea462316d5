"""Kernels that multiply matrices, and those around them: cuBLAS, CUTLASS, xmma, Tensile, MAGMA, cuSOLVER.

Each grammar is a function from the name to a Reading; None if the name is not of it. CUTLASS is documented.
Source: NVIDIA/cutlass, python/cutlass_library/gemm_operation.py and conv2d_operation.py (`procedural_name`,
`core_name`, `extended_name`), media/docs/cpp/profiler.md. NVIDIA's other names are not: what is read from
them is inferred, and agrees with recorded operand types.
"""

from __future__ import annotations

import re
from typing import Any

from opscope.provenance.kernel_names.cxx_name import CxxName
from opscope.provenance.kernel_names.decoded_kernel import Reading, fields_found, integer
from opscope.provenance.kernel_names.families import direction_of, family_by_rules
from opscope.provenance.kernel_names.vocabulary import FLOATING, element_type, letter_type
from opscope.provenance.packaged import lazy_pattern

# One matrix instruction as it is written without separators: M, N, K.
_MMA_SHAPES = {
    "884": "8x8x4", "1688": "16x8x8", "16816": "16x8x16", "16832": "16x8x32", "8816": "8x8x16",
    "8832": "8x8x32", "161616": "16x16x16",
}  # fmt: skip


# cuBLASLt's run-time built multiplications, `nvjet_sm90_tst_128x160_64x5_2x4_h_bz_NTT`. The order of the
# fields is certain (libcublasLt 13 holds the format strings `nvjet_sm%d_%s_%dx%d_%dx%d_%dx%d%s_%c_…`).
# Releases before cuBLAS 13 leave the architecture out.
_NVJET = lazy_pattern(
    r"nvjet_(?:(?P<architecture>sm\d+)_)?(?P<types>[a-z]+)_(?:mma_)?(?P<m>\d+)x(?P<n>\d+)"
    r"(?:_(?P<k>\d+)x(?P<stages>\d+)(?:_(?P<cluster>\d+x\d+))?|x(?P<k3>\d+)(?:_(?P<stages3>\d+))?(?:_\d+x\d+x\d+)?)?"
    r"(?P<words>(?:_[A-Za-z0-9]+)*?)(?:_(?P<layout>[NTC]{3,4}))?"
)
# t was checked against recorded operand types; the others go by likeness.
_NVJET_LETTERS = {"h": "f16", "t": "bf16", "s": "f32", "d": "f64", "q": "e4m3", "r": "e5m2"}
_NVJET_EPILOGUE = lazy_pattern(
    r"(?:d?relu|d?gelu)?bias|(?:re|ge)lu(?:aux)?|d(?:re|ge)lu|bgrad[ab]?|(?:re|ge)lu_?aux"
)


def read_nvjet(text: str) -> Reading | None:
    """What a multiplication that cuBLASLt built at run time says."""
    match = _NVJET.fullmatch(text)
    if match is None:
        return None
    words = match["words"].split("_")
    inferred: dict[str, Any] = {
        "library": "cublasLt",
        "tile": "x".join(filter(None, (match["m"], match["n"], match["k"] or match["k3"]))),
        "stages": integer(match["stages"] or match["stages3"]),
        "cluster": match["cluster"],
        "layout": match["layout"],
        "split_k": "splitK" in words,
        "tensor_core": True,
        "epilogue": "_".join(word for word in words if _NVJET_EPILOGUE.fullmatch(word)) or None,
    }
    if len(match["types"]) == 3:
        types = map(_NVJET_LETTERS.get, match["types"])
        inferred.update(zip(("operand_type", "accumulator_type", "output_type"), types, strict=True))
    return Reading({"family": "gemm", "architecture": match["architecture"]}, inferred)


# NVIDIA's hand-tuned kernels, `ampere_fp16_s16816gemm_fp16_64x64_…_stages_64x6_tn`. Letters and instruction
# shape resemble CUTLASS names (`s` accumulates in f32, `h` in f16; the shape is absent without tensor cores);
# a type before them is the output's, one after `gemm` the operands'. `sliced1x4` splits K among the warps of
# a block, which is not split-K.
_GENERATIONS = {
    "maxwell": "sm50", "pascal": "sm60", "volta": "sm70", "turing": "sm75", "ampere": "sm80", "ada": "sm89",
    "hopper": "sm90",
}  # fmt: skip
_TUNED_TYPE = r"fp64|fp32|tf32|fp16|bf16|uint8x4|uint8|int8x\d+|int8|int32"
_TUNED = lazy_pattern(
    rf"(?P<library>_?\w*?cudnn_(?:infer_|train_)?)?(?P<generation>{'|'.join(_GENERATIONS)})_"
    rf"(?:(?P<output>{_TUNED_TYPE})_)?(?P<letters>g[cz]|[sdhcziu])(?P<shape>\d{{3,6}})?(?P<multiply>tf32|bf16|f16)?"
    rf"(?P<kind>gemm|cudnn)(?:_(?P<operand>{_TUNED_TYPE})(?:_(?:{_TUNED_TYPE}))?)?(?P<rest>(?:_\w+)?)"
)
_TUNED_PARTS = {
    "tile": lazy_pattern(r"_(\d+x\d+)(?=_)"),
    "stages": lazy_pattern(r"_stages_\d+x(\d+)"),
    "layout": lazy_pattern(r"_([ntc]{2})(?:_v\d+)?$"),
}
_TUNED_DEPTH = lazy_pattern(r"_stages_(\d+)x\d+")
_FIRST_LAYER = lazy_pattern(
    r"(?P<generation>volta|turing|ampere)_first_layer_\w*?(?P<direction>fwd|wgrad|dgrad)"
)


def read_hand_tuned(text: str) -> Reading | None:
    """What a hand-tuned kernel named after a generation of GPUs says."""
    first_layer = _FIRST_LAYER.match(text)
    if first_layer is not None:
        direction = "forward" if first_layer["direction"] == "fwd" else "backward"
        architecture = _GENERATIONS[first_layer["generation"]]
        return Reading(
            inferred={"family": "convolution", "direction": direction, "architecture": architecture}
        )
    match = _TUNED.fullmatch(text)
    if match is None:
        return None
    rest, is_convolution = match["rest"], match["kind"] == "cudnn"
    inferred = {
        "family": "convolution" if is_convolution else "gemm",
        "library": "cudnn" if match["library"] else None,
        "architecture": _GENERATIONS[match["generation"]],
        "direction": "backward" if "dgrad" in rest or "wgrad" in rest else None,
        "tensor_core": match["shape"] is not None,
        "mma_shape": _MMA_SHAPES.get(match["shape"] or ""),
        "split_k": "splitK" in rest or None,
        "epilogue": "relu" if "_relu" in rest and not is_convolution else None,
        **_tuned_types(match),
        **fields_found(_TUNED_PARTS, rest),
    }
    if "tile" in inferred and (depth := _TUNED_DEPTH.search(rest)):
        inferred["tile"] = f"{inferred['tile']}x{depth[1]}"
    return Reading(inferred=inferred)


def _tuned_types(match: re.Match[str]) -> dict[str, str | None]:
    accumulator = letter_type(match["letters"])
    operand = match["operand"] or (None if match["letters"] in ("i", "u") else accumulator)
    output = match["output"] or (None if match["operand"] else accumulator)
    return {
        "accumulator_type": accumulator,
        "operand_type": element_type(operand.partition("x")[0]) if operand else None,
        "output_type": element_type(output.partition("x")[0]) if output else None,
        "multiply_type": match["multiply"],
    }


# xmma, `sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x64x8_…_ffma_…`. The type groups read as operands
# and output, multiplied type and accumulator, epilogue: `tf32f32_tf32f32_f32`, `bf16bf16_bf16f32_f32`,
# `e4m3e5m2bf16_e4m3e5m2f32_f32`. `ff` and `ffma` stand for plain multiply-adds.
_XMMA_TYPE = r"(?:c?b?f\d+|tf32|ue\dm\d|e\dm\d|c?[isu]\d+)"
_XMMA = lazy_pattern(
    rf"(?:\w+::)?(?P<architecture>sm\d+)_xmma_(?P<kind>[a-z0-9_]+?)"
    rf"_(?P<outer>{_XMMA_TYPE}{{1,3}})_(?P<inner>{_XMMA_TYPE}{{1,3}})_(?P<epilogue>{_XMMA_TYPE})_(?P<rest>\w+)"
)
_XMMA_UNTYPED = lazy_pattern(r"(?:\w+::)?(?P<architecture>sm\d+)_xmma_(?P<kind>gemm)_(?P<rest>\w+)")
_XMMA_ONE_TYPE = lazy_pattern(_XMMA_TYPE)
_XMMA_PARTS = {
    # The suffix says who had it built; cuDNN ships some of cuBLAS's.
    "library": lazy_pattern(r"_(cudnn)(?:_infer|_train)?\Z|_(cublas)\Z"),
    "tile": lazy_pattern(r"tilesize(\d+x\d+x\d+)"),
    "stages": lazy_pattern(r"_stage(\d+)"),
    "cluster": lazy_pattern(r"cgasize(\d+x\d+x\d+)"),
    "mma_shape": lazy_pattern(r"_tensor(\d+x\d+x\d+)"),
    "epilogue": lazy_pattern(r"_(bias(?:_\w+?)??_(?:d?gelu|d?relu)|d?gelu|d?relu|bias|bgrad[ab])(?=_)"),
    "alignment": lazy_pattern(r"_aligna(\d+)"),
    "layout": lazy_pattern(r"^([ntc]{2})_[ntc]_|^((?:nhwckrsc|nchwkcrs|nchwkrsc)_(?:nhwc|nchw))"),
}
_XMMA_PLAIN = lazy_pattern(r"(?:^|_)ff(?:ma)?(?:_|$)")


def read_xmma(text: str) -> Reading | None:
    """What an xmma kernel says."""
    match = _XMMA.match(text) or _XMMA_UNTYPED.match(text)
    if match is None:
        return None
    groups = match.groupdict()
    kind, rest = groups["kind"], groups["rest"]
    family = "gemm" if kind.startswith("gemm") else family_by_rules("xmma", kind)
    if family is None:
        return None
    tensor_core = "_tensor" in rest or "_hmma" in rest
    # Hopper's warp-group kernels are built on matrix instructions.
    tensor_core = tensor_core or ("warpgroupsize" in rest and groups["architecture"] == "sm90")
    inferred = {
        "family": family,
        "direction": _convolution_direction(kind),
        **fields_found(_XMMA_PARTS, rest),
        "split_k": "split_k" in rest or (None if "segment_k_on" in rest else False),
        "tensor_core": False if _XMMA_PLAIN.search(rest) else tensor_core or None,
    }
    if "outer" in groups:
        inferred.update(_xmma_types(groups["outer"], groups["inner"]))
    return Reading({"architecture": groups["architecture"]}, inferred)


def _convolution_direction(kind: str) -> str | None:
    if kind.startswith("fprop") or "_fprop" in kind:
        return "forward"
    return "backward" if "dgrad" in kind or "wgrad" in kind else None


def _xmma_types(outer: str, inner: str) -> dict[str, str | None]:
    """Operand, multiplied, accumulated and output type from `<operands><output>_<operands><accumulator>`."""
    memory, compute = (list(map(element_type, _XMMA_ONE_TYPE.findall(text))) for text in (outer, inner))
    operand = memory[0] if len(memory) == 2 else None
    multiplied = compute[0] if len(compute) == 2 else None
    return {
        "operand_type": operand,
        "output_type": memory[-1] if len(memory) >= 2 else None,
        "accumulator_type": compute[-1],
        "multiply_type": multiplied if operand is not None and multiplied != operand else None,
    }


# CUTLASS: procedural names, `cutlass_80_tensorop_s1688gemm_256x128_16x3_tn_align4` and
# `cutlass3x_sm90_tensorop_s64x128x16gemm_f16_f16_f32_f16_…` (NVIDIA's libraries add the architecture), and
# instances of its kernel templates.
_CUTLASS_TYPE = r"(?:c?f64|c?f32|tf32|c?f16|bf16|e\dm\d|f4_m6|ue\dm\d|f8|f6|f4|[su](?:4|8|16|32)|b1|void)"
_CUTLASS = lazy_pattern(
    rf"cutlass(?P<version>3x)?_(?:(?:sm)?(?P<architecture>\d{{2,3}})_)?"
    rf"(?P<class>simt|tensorop|wmma_tensorop|sptensorop|bstensorop)_(?:(?P<output>{_CUTLASS_TYPE})_)?"
    rf"(?P<letters>g[cz]|[sdhczi])(?P<shape>\d+x\d+x\d+|\d{{3,6}})?(?P<math>fastaccum|xor|and)?"
    r"(?P<intermediate>tf32|bf16|f16)?"
    r"(?P<kind>gemm|spgemm|fprop|dgrad|wgrad|deconv|syrk|syr2k|herk|her2k|trmm|symm|hemm)"
    r"(?P<variant>(?:_(?:optimized|analytic|fixed_channels|few_channels|planar_complex(?:_array)?|array|grouped"
    r"|batched|forwardCompat|relu|gather|scatter|strided))*)"
    rf"(?P<types>(?:_{_CUTLASS_TYPE})*)(?P<rest>\w*)"
)
_CUTLASS_PARTS = {
    "layout": lazy_pattern(r"_([ntch]{2,4}|nhwc|ndhwc|nchw)(?=_)"),
    "alignment": lazy_pattern(r"_align(\d+)"),
}
_CUTLASS_TILE_2X = lazy_pattern(r"_(\d+x\d+)_(\d+)x(\d+)(?=_|$)")
_CUTLASS_TILE_3X = lazy_pattern(r"_(\d+x\d+x\d+)_(\d+x\d+x\d+)_(\d+)(?=_|$)")
_CUTLASS_FAMILIES = {
    **dict.fromkeys(("fprop", "dgrad", "wgrad", "deconv"), "convolution"),
    **dict.fromkeys(("syrk", "syr2k", "herk", "her2k"), "rank_update"),
    **dict.fromkeys(("symm", "hemm"), "symmetric_multiply"),
    "trmm": "triangular_multiply",
}
_TEMPLATE_ARCHITECTURE = {
    "architecture": lazy_pattern(
        r"(?:arch::|arch4|arch5|::)(Sm\d{2,3})|\b(SM\d{2,3})_|(?<=Mainloop)(Sm\d{2,3})|\d(Sm\d{2,3})E"
    )
}
# Words of a template that tell the direction, by family; the first that occurs decides.
_TEMPLATE_DIRECTIONS = {
    "convolution": (("Fprop", "forward"), ("Dgrad", "backward"), ("Wgrad", "backward")),
    "attention": (("Bwd", "backward"), ("Backward", "backward"), ("Fwd", "forward")),
}
_TEMPLATE_DIRECTIONS["depthwise_convolution"] = _TEMPLATE_DIRECTIONS["convolution"]


def read_cutlass(cxx: CxxName, text: str) -> Reading | None:
    """What a procedural name, or an instance of a template, says; None if it is neither."""
    match = _CUTLASS.match(cxx.function or "")
    if match is None and cxx.template_arguments:
        match = _CUTLASS.match(cxx.template_arguments[0].rpartition("::")[2])
    return _cutlass_procedural(match) if match is not None else _cutlass_template(text)


def _cutlass_procedural(match: re.Match[str]) -> Reading:
    rest, variant, shape = match["rest"], match["variant"], match["shape"]
    is_grouped = "_grouped" in variant + rest
    stated = {
        "library": "cutlass",
        "family": "grouped_gemm" if is_grouped else _CUTLASS_FAMILIES.get(match["kind"], "gemm"),
        "direction": _convolution_direction(match["kind"]),
        "architecture": f"sm{match['architecture']}" if match["architecture"] else None,
        "tensor_core": match["class"] != "simt",
        "mma_shape": shape if shape is None or "x" in shape else _MMA_SHAPES.get(shape),
        "variant": variant.strip("_") or None,
        "epilogue": "relu" if "_relu" in rest or "_relu" in variant else None,
        **_cutlass_types(match),
        **fields_found(_CUTLASS_PARTS, rest),
    }
    if match["version"]:
        if tile := _CUTLASS_TILE_3X.search(rest):  # 0 stages: the builder chooses
            stated.update(tile=tile[1], cluster=tile[2], stages=int(tile[3]) or None)
    elif tile := _CUTLASS_TILE_2X.search(rest):
        stated.update(tile=f"{tile[1]}x{tile[2]}", stages=int(tile[3]))
    return Reading(stated)


def _cutlass_types(match: re.Match[str]) -> dict[str, str | None]:
    """Types by `extended_name`: 2.x names only those unlike the accumulator's, 3.x names all five."""
    accumulator = letter_type(match["letters"])
    named = [element_type(part) for part in match["types"].split("_") if part]
    if match["version"] and len(named) == 5:
        first, second, summed, _, result = named
        operand = first if first == second else None
        return {"operand_type": operand, "accumulator_type": summed, "output_type": result}
    return {
        "operand_type": named[0] if named else (None if match["letters"] == "i" else accumulator),
        "accumulator_type": accumulator,
        "output_type": element_type(match["output"]) if match["output"] else accumulator,
        "multiply_type": match["intermediate"],
    }


def _cutlass_template(name: str) -> Reading | None:
    text = name[:1000]  # what it is about stands first; the rest are layouts
    family = family_by_rules("cutlass_template", text)
    if family is None:
        return None
    directions = _TEMPLATE_DIRECTIONS.get(family, ())
    return Reading(
        {
            "library": "cutlass",
            "family": family,
            "direction": next((direction for word, direction in directions if word in text), None),
            "architecture": fields_found(_TEMPLATE_ARCHITECTURE, text).get("architecture", "").lower()
            or None,
            "variant": "template",
        }
    )


# AMD's libraries: Tensile, rocPRIM, MIOpen, Composable Kernel. A multiplication of Tensile names the index
# order of each matrix, the types and the macro tile: `Cijk_Ailk_Bjlk_SB_…_MT64x16x16_MI16x16x1_…_ISA90a_…`.
# Source for the index order: ROCm/Tensile, Kernel Parameters (NN is Ailk_Bljk); types and the rest are
# inferred.
_TENSILE = lazy_pattern(
    r"Cijk_(?P<a>A[il]{2}k)_(?P<b>B[jl]{2}k)(?:_S)?_(?P<types>[A-Z0-9]+)_(?P<rest>.*)", re.DOTALL
)
_TENSILE_ORDERS = {"Ailk": "n", "Alik": "t", "Bljk": "n", "Bjlk": "t"}
_TENSILE_TYPES = lazy_pattern(r"I8|F8|B8|[SDHBCZ]")
_TENSILE_ELEMENTS = {
    "S": "f32", "D": "f64", "H": "f16", "B": "bf16", "C": "cf32", "Z": "cf64", "I8": "s8",
}  # fmt: skip
_TENSILE_PARTS = {
    "tile": lazy_pattern(r"(?:^|_)MT(\d+x\d+x\d+)"),
    "mma_shape": lazy_pattern(r"_MI(\d+x\d+x\d+)"),
    "architecture": lazy_pattern(r"_ISA(\w+?)_|gfx(\w+?)(?:_|$)"),
}
_MIOPEN = lazy_pattern(r"miopen", re.IGNORECASE)


def read_rocm(function: str) -> Reading | None:
    """What a kernel of AMD's libraries says."""
    tensile = _TENSILE.match(function)
    if tensile is not None:
        return _tensile(tensile)
    family = family_by_rules("rocm", function)
    if family is None:
        return None
    library = "rocprim" if "rocprim::" in function else "miopen" if _MIOPEN.match(function) else None
    return Reading({"library": library}, {"family": family, "direction": direction_of(function)})


def _tensile(match: re.Match[str]) -> Reading:
    first = next(iter(_TENSILE_TYPES.findall(match["types"])), "")
    inferred = {"operand_type": _TENSILE_ELEMENTS.get(first), **fields_found(_TENSILE_PARTS, match["rest"])}
    if "architecture" in inferred:
        inferred["architecture"] = f"gfx{inferred['architecture']}"
    layout = [_TENSILE_ORDERS.get(match["a"]), _TENSILE_ORDERS.get(match["b"])]
    is_known = None not in layout
    layout_text = "".join(filter(None, layout)) if is_known else None
    return Reading({"library": "tensile", "family": "gemm", "layout": layout_text}, inferred)


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
    """What another kernel of a dense algebra library says."""
    function = cxx.function or ""
    if lettered := _LETTERED.match(function):
        family = family_by_rules("lapack_routine", lettered["routine"]) or "linear_algebra"
        operand = letter_type(lettered["letter"])
        return Reading({"family": family, "operand_type": operand}, {"library": "magma"})
    if function.endswith("kernel_blasl3"):
        if "Kernel_triangular_input" in text:
            return Reading(inferred={"family": "triangular_multiply"})
        is_output = "Kernel_triangular_output" in text
        return Reading(inferred={"family": "rank_update" if is_output else "symmetric_multiply"})
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
