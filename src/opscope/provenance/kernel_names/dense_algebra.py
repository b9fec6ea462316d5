"""[nvjet] Names of cuBLASLt's run-time built matrix multiplications, `nvjet_sm90_tst_128x160_64x5_2x4_h_bz_NTT`.

The order of the fields is certain (libcublasLt 13 holds the format strings
`nvjet_sm%d_%s_%dx%d_%dx%d_%dx%d%s_%c_…`); their meaning is undocumented and inferred. Releases before cuBLAS
13 leave the architecture out: then it is unknown.

[legacy_gemm] Names of NVIDIA's hand-tuned kernels, `ampere_fp16_s16816gemm_fp16_64x64_…_stages_64x6_tn`.

Undocumented, so inferred: the letters and the instruction shape resemble CUTLASS names (`s` accumulates in
f32, `h` in f16; digits are M, N, K of one matrix instruction, absent without tensor cores); a type before
them is the output's, one after `gemm` the operands'. `sliced1x4` splits K among the warps of a block, which
is not split-K.

[xmma] Names of NVIDIA's xmma kernels, `sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x64x8_…_ffma_…`.

Undocumented: everything is inferred. The type groups read as operands and output, multiplied type and
accumulator, epilogue; the reading agrees with recorded operand types (`tf32f32_tf32f32_f32`,
`bf16bf16_bf16f32_f32`, `f32f32_tf32f32_f32`, `e4m3e5m2bf16_e4m3e5m2f32_f32`). `ff` and `ffma` stand for plain
multiply-adds.

[cutlass] Procedural names of CUTLASS, and instances of its kernel templates.

`cutlass_80_tensorop_s1688gemm_256x128_16x3_tn_align4` and
`cutlass3x_sm90_tensorop_s64x128x16gemm_f16_f16_f32_f16_…` are documented. Source: NVIDIA/cutlass,
python/cutlass_library/gemm_operation.py and conv2d_operation.py (`procedural_name`, `core_name`,
`extended_name`), media/docs/cpp/profiler.md. NVIDIA's libraries add the architecture.

[rocm] Names of AMD's libraries: Tensile multiplications, rocPRIM, MIOpen, Composable Kernel.

`Cijk_Ailk_Bjlk_SB_…_MT64x16x16_MI16x16x1_…_ISA90a_…` names the index order of each matrix, the types, and the
macro tile. Source for the index order: ROCm/Tensile, Kernel Parameters (NN is Ailk_Bljk); types and the rest
are inferred.

[dense_algebra] Kernels of cuBLAS, cuBLASLt, cuSOLVER and MAGMA besides their tensor-core multiplications.

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
from opscope.provenance.kernel_names.families import FamilyRules, direction_of


# ---- nvjet

_NAME = re.compile(
    r"nvjet_(?:sm(?P<architecture>\d+)_)?(?P<types>[a-z]+)_(?:mma_)?(?P<m>\d+)x(?P<n>\d+)"
    r"(?:_(?P<k>\d+)x(?P<stages>\d+)(?:_(?P<cluster>\d+x\d+))?|x(?P<k3>\d+)(?:_(?P<stages3>\d+))?(?:_\d+x\d+x\d+)?)?"
    r"(?P<words>(?:_[A-Za-z0-9]+)*?)(?:_(?P<layout>[NTC]{3,4}))?"
)
# t was checked against recorded operand types; the others go by likeness.
_LETTERS = {"h": "f16", "t": "bf16", "s": "f32", "d": "f64", "q": "e4m3", "r": "e5m2"}
_EPILOGUE = re.compile(r"(?:d?relu|d?gelu)?bias|(?:re|ge)lu(?:aux)?|d(?:re|ge)lu|bgrad[ab]?|(?:re|ge)lu_?aux")


def read_nvjet(text: str) -> Reading | None:
    """What a name of this grammar says; None if it is not one."""
    match = _NAME.fullmatch(text)
    if match is None:
        return None
    words = [word for word in match.group("words").split("_") if word]
    types = match.group("types")
    k = match.group("k") or match.group("k3")
    stages = match.group("stages") or match.group("stages3")
    tile = f"{match.group('m')}x{match.group('n')}"
    inferred = {
        "library": "cublasLt",
        "tile": f"{tile}x{k}" if k else tile,
        "stages": int(stages) if stages else None,
        "cluster": match.group("cluster"),
        "layout": match.group("layout"),
        "split_k": "splitK" in words,
        "tensor_core": True,
        "epilogue": "_".join(word for word in words if _EPILOGUE.fullmatch(word)) or None,
    }
    if len(types) == 3:
        operand, accumulator, output = (_LETTERS.get(letter) for letter in types)
        inferred.update(operand_type=operand, accumulator_type=accumulator, output_type=output)
    architecture = match.group("architecture")
    return Reading(
        {"family": "gemm", "architecture": f"sm{architecture}" if architecture else None}, inferred
    )


# ---- legacy_gemm

_ARCHITECTURES = {
    "maxwell": "sm50",
    "pascal": "sm60",
    "volta": "sm70",
    "turing": "sm75",
    "ampere": "sm80",
    "ada": "sm89",
    "hopper": "sm90",
}
_TYPE = r"fp64|fp32|tf32|fp16|bf16|uint8x4|uint8|int8x\d+|int8|int32"
_LEGACY_GEMM_NAME = re.compile(
    rf"(?P<library>_?\w*?cudnn_(?:infer_|train_)?)?(?P<generation>{'|'.join(_ARCHITECTURES)})_"
    rf"(?:(?P<output>{_TYPE})_)?(?P<letters>g[cz]|[sdhcziu])(?P<shape>\d{{3,6}})?(?P<multiply>tf32|bf16|f16)?"
    rf"(?P<kind>gemm|cudnn)(?:_(?P<operand>{_TYPE})(?:_(?:{_TYPE}))?)?(?P<rest>(?:_\w+)?)"
)
_TILE = re.compile(r"_(\d+x\d+)(?=_)")
_STAGES = re.compile(r"_stages_(\d+)x(\d+)")
_LAYOUT = re.compile(r"_([ntc]{2})(?:_v\d+)?$")
_SHAPES = {
    "884": "8x8x4",
    "1688": "16x8x8",
    "16816": "16x8x16",
    "16832": "16x8x32",
    "8816": "8x8x16",
    "8832": "8x8x32",
}
_FIRST_LAYER = re.compile(
    r"(?P<generation>volta|turing|ampere)_first_layer_\w*?(?P<direction>fwd|wgrad|dgrad)"
)


def read_legacy_gemm(text: str) -> Reading | None:
    """What a name of this grammar says; None if it is not one."""
    first_layer = _FIRST_LAYER.match(text)
    if first_layer is not None:
        direction = "forward" if first_layer.group("direction") == "fwd" else "backward"
        architecture = _ARCHITECTURES[first_layer.group("generation")]
        return Reading(
            inferred={"family": "convolution", "direction": direction, "architecture": architecture}
        )
    match = _LEGACY_GEMM_NAME.fullmatch(text)
    if match is None:
        return None
    rest = match.group("rest")
    is_convolution = match.group("kind") == "cudnn"
    inferred: dict[str, Any] = {
        "family": "convolution" if is_convolution else "gemm",
        "library": "cudnn" if match.group("library") else None,
        "architecture": _ARCHITECTURES[match.group("generation")],
        "direction": "backward" if "dgrad" in rest or "wgrad" in rest else None,
        "tensor_core": match.group("shape") is not None,
        "mma_shape": _SHAPES.get(match.group("shape") or ""),
        "split_k": "splitK" in rest or None,
        "epilogue": "relu" if "_relu" in rest and not is_convolution else None,
    }
    inferred.update(_types(match))
    inferred.update(_shapes(rest))
    return Reading(inferred=inferred)


def _types(match: re.Match[str]) -> dict[str, str | None]:
    letters = match.group("letters")
    accumulator = letter_type(letters)
    operand = match.group("operand") or (None if letters in ("i", "u") else accumulator)
    output = match.group("output")
    return {
        "accumulator_type": accumulator,
        "operand_type": element_type(operand.partition("x")[0]) if operand else None,
        "output_type": element_type(output.partition("x")[0])
        if output
        else (None if match.group("operand") else accumulator),
        "multiply_type": match.group("multiply"),
    }


def _shapes(rest: str) -> dict[str, Any]:
    tile, stages, layout = _TILE.search(rest), _STAGES.search(rest), _LAYOUT.search(rest)
    shape = tile.group(1) if tile else None
    return {
        "tile": f"{shape}x{stages.group(1)}" if shape and stages else shape,
        "stages": int(stages.group(2)) if stages else None,
        "layout": layout.group(1) if layout else None,
    }


# ---- xmma

_XMMA_TYPE = r"(?:c?b?f\d+|tf32|ue\dm\d|e\dm\d|c?[isu]\d+)"
_XMMA_NAME = re.compile(
    rf"(?:\w+::)?sm(?P<architecture>\d+)_xmma_(?P<kind>[a-z0-9_]+?)"
    rf"_(?P<outer>{_XMMA_TYPE}{{1,3}})_(?P<inner>{_XMMA_TYPE}{{1,3}})_(?P<epilogue>{_XMMA_TYPE})_(?P<rest>\w+)"
)
_UNTYPED = re.compile(r"(?:\w+::)?sm(?P<architecture>\d+)_xmma_(?P<kind>gemm)_(?P<rest>\w+)")
_ONE_TYPE = re.compile(_XMMA_TYPE)
_KINDS = (
    ("depthwise", "depthwise_convolution"),
    ("implicit_gemm", "convolution"),
    ("convolution", "convolution"),
    ("image_first_layer", "convolution"),
    ("syr", "rank_update"),
    ("her", "rank_update"),
    ("trmm", "triangular_multiply"),
    ("symm", "symmetric_multiply"),
    ("hemm", "symmetric_multiply"),
    ("trsm", "triangular_solve"),
    ("pooling", "pooling"),
    ("bn", "batch_norm"),
)
_PARTS = {
    "tile": re.compile(r"tilesize(\d+x\d+x\d+)"),
    "stages": re.compile(r"_stage(\d+)"),
    "cluster": re.compile(r"cgasize(\d+x\d+x\d+)"),
    "mma_shape": re.compile(r"_tensor(\d+x\d+x\d+)"),
    "epilogue": re.compile(r"_(bias(?:_\w+?)??_(?:d?gelu|d?relu)|d?gelu|d?relu|bias|bgrad[ab])(?=_)"),
    "alignment": re.compile(r"_aligna(\d+)"),
}
_XMMA_LAYOUT = re.compile(r"([ntc]{2})_([ntc])_|(nhwckrsc|nchwkcrs|nchwkrsc)_(nhwc|nchw)")


def read_xmma(text: str) -> Reading | None:
    """What a name of this grammar says; None if it is not one."""
    match = _XMMA_NAME.match(text) or _UNTYPED.match(text)
    if match is None:
        return None
    groups = match.groupdict()
    kind, rest = groups["kind"], groups["rest"]
    family = _family(kind)
    if family is None:
        return None
    inferred: dict[str, Any] = {"family": family, "direction": _direction(kind), "library": _library(rest)}
    for name, pattern in _PARTS.items():
        found = pattern.search(rest)
        if found is not None:
            inferred[name] = int(found.group(1)) if name in ("stages", "alignment") else found.group(1)
    inferred["layout"] = _layout(rest)
    inferred["split_k"] = "split_k" in rest or (None if "segment_k_on" in rest else False)
    inferred["tensor_core"] = _tensor_core(rest, groups["architecture"])
    if "outer" in groups:
        inferred.update(_xmma_types(groups["outer"], groups["inner"]))
    return Reading({"architecture": f"sm{groups['architecture']}"}, inferred)


def _family(kind: str) -> str | None:
    if kind.startswith("gemm"):
        return "gemm"
    return next((family for word, family in _KINDS if word in kind), None)


def _direction(kind: str) -> str | None:
    if kind.startswith("fprop") or "_fprop" in kind:
        return "forward"
    return "backward" if "dgrad" in kind or "wgrad" in kind else None


def _library(rest: str) -> str | None:
    """The suffix says who had it built; cuDNN ships some of cuBLAS's."""
    return (
        "cudnn"
        if rest.endswith(("_cudnn", "_cudnn_infer", "_cudnn_train"))
        else ("cublas" if rest.endswith("_cublas") else None)
    )


def _layout(rest: str) -> str | None:
    found = _XMMA_LAYOUT.match(rest)
    if found is None:
        return None
    return found.group(1) or f"{found.group(3)}_{found.group(4)}"


def _tensor_core(rest: str, architecture: str) -> bool | None:
    """Matrix instructions are named; Hopper's warp-group kernels are built on them."""
    if re.search(r"(?:^|_)ff(?:ma)?(?:_|$)", rest):
        return False
    if "_tensor" in rest or "_hmma" in rest or ("warpgroupsize" in rest and architecture == "90"):
        return True
    return None


def _xmma_types(outer: str, inner: str) -> dict[str, str | None]:
    """Operand, multiplied, accumulated and output type from `<operands><output>_<operands><accumulator>`."""
    memory = [element_type(part) for part in _ONE_TYPE.findall(outer)]
    compute = [element_type(part) for part in _ONE_TYPE.findall(inner)]
    operand = memory[0] if len(memory) == 2 else None
    multiplied = compute[0] if len(compute) == 2 else None
    return {
        "operand_type": operand,
        "output_type": memory[-1] if len(memory) >= 2 else None,
        "accumulator_type": compute[-1],
        "multiply_type": multiplied if operand is not None and multiplied != operand else None,
    }


# ---- cutlass

_CUTLASS_TYPE = r"(?:c?f64|c?f32|tf32|c?f16|bf16|e\dm\d|f4_m6|ue\dm\d|f8|f6|f4|[su](?:4|8|16|32)|b1|void)"
_PROCEDURAL = re.compile(
    rf"cutlass(?P<version>3x)?_(?:(?:sm)?(?P<architecture>\d{{2,3}})_)?"
    rf"(?P<class>simt|tensorop|wmma_tensorop|sptensorop|bstensorop)_(?:(?P<output>{_CUTLASS_TYPE})_)?"
    rf"(?P<letters>g[cz]|[sdhczi])(?P<shape>\d+x\d+x\d+|\d{{3,6}})?(?P<math>fastaccum|xor|and)?"
    rf"(?P<intermediate>tf32|bf16|f16)?(?P<kind>gemm|spgemm|fprop|dgrad|wgrad|deconv|syrk|syr2k|herk|her2k|trmm|symm|hemm)"
    rf"(?P<variant>(?:_(?:optimized|analytic|fixed_channels|few_channels|planar_complex(?:_array)?|array|grouped|batched|forwardCompat|relu|gather|scatter|strided))*)"
    rf"(?P<types>(?:_{_CUTLASS_TYPE})*)(?P<rest>\w*)"
)
_TILE_2X = re.compile(r"_(\d+x\d+)_(\d+)x(\d+)(?=_|$)")
_TILE_3X = re.compile(r"_(\d+x\d+x\d+)_(\d+x\d+x\d+)_(\d+)(?=_|$)")
_CUTLASS_LAYOUT = re.compile(r"_([ntch]{2,4}|nhwc|ndhwc|nchw)(?=_)")
_ALIGNMENT = re.compile(r"_align(\d+)")
_FAMILIES = {
    "fprop": "convolution",
    "dgrad": "convolution",
    "wgrad": "convolution",
    "deconv": "convolution",
    "syrk": "rank_update",
    "syr2k": "rank_update",
    "herk": "rank_update",
    "her2k": "rank_update",
    "trmm": "triangular_multiply",
    "symm": "symmetric_multiply",
    "hemm": "symmetric_multiply",
}
_LETTER_SHAPES = {
    "884": "8x8x4",
    "1688": "16x8x8",
    "16816": "16x8x16",
    "16832": "16x8x32",
    "8816": "8x8x16",
    "8832": "8x8x32",
    "161616": "16x16x16",
}
_ARCHITECTURE = re.compile(
    r"(?:arch::|arch4|arch5|::)Sm(\d{2,3})|\bSM(\d{2,3})_|(?<=Mainloop)Sm(\d{2,3})|\dSm(\d{2,3})E"
)
# What an instance of a template is about, in the order in which the words decide.
_TEMPLATES = (
    ("attention", re.compile(r"fmha|FlashAttn|[fF]lash_?[aA]tt|flash::|Attention|Sm\d+FmhaFwd|Mla")),
    ("split_k_reduction", re.compile(r"ReduceSplitK")),
    ("grouped_gemm", re.compile(r"GemmGrouped|GroupProblemShape|GroupedGemm|grouped_gemm|MoeFCGemm")),
    (
        "convolution",
        re.compile(r"ImplicitGemmConvolution|DirectConvolution|ConvUniversal|4conv6kernel|::conv::"),
    ),
    ("depthwise_convolution", re.compile(r"DepthwiseDirect")),
    ("rank_update", re.compile(r"RankK|Rank2K")),
    ("triangular_multiply", re.compile(r"Trmm")),
    ("symmetric_multiply", re.compile(r"Symm")),
    ("gemm", re.compile(r"[gG]emm|CollectiveMma")),
)


def read_cutlass(cxx: CxxName, text: str) -> Reading | None:
    """What a procedural name, or an instance of a template, says; None if it is neither.

    Args:
        cxx: The name, taken apart.
        text: The name as recorded.
    """
    match = _PROCEDURAL.match(cxx.function or "")
    if match is None and cxx.template_arguments:
        match = _PROCEDURAL.match(cxx.template_arguments[0].rpartition("::")[2])
    return _procedural(match) if match is not None else _template(text)


def _procedural(match: re.Match[str]) -> Reading:
    kind, rest, shape = match.group("kind"), match.group("rest"), match.group("shape")
    stated: dict[str, Any] = {
        "library": "cutlass",
        "family": "grouped_gemm"
        if "_grouped" in match.group("variant") + rest
        else _FAMILIES.get(kind, "gemm"),
        "direction": {"fprop": "forward", "dgrad": "backward", "wgrad": "backward"}.get(kind),
        "architecture": f"sm{match.group('architecture')}" if match.group("architecture") else None,
        "tensor_core": match.group("class") != "simt",
        "mma_shape": shape if shape is None or "x" in shape else _LETTER_SHAPES.get(shape),
        "variant": match.group("variant").strip("_") or None,
        "epilogue": "relu" if "_relu" in rest or "_relu" in match.group("variant") else None,
    }
    stated.update(_cutlass_types(match))
    stated.update(_cutlass_shapes(rest, is_3x=match.group("version") is not None))
    return Reading(stated)


def _cutlass_types(match: re.Match[str]) -> dict[str, str | None]:
    """Types by `extended_name`: 2.x names only those unlike the accumulator's, 3.x names all five."""
    accumulator = letter_type(match.group("letters"))
    named = [element_type(part) for part in match.group("types").split("_") if part]
    if match.group("version") and len(named) == 5:
        first, second, summed, _, result = named
        return {
            "operand_type": first if first == second else None,
            "accumulator_type": summed,
            "output_type": result,
        }
    integer = match.group("letters") == "i"
    output = match.group("output")
    return {
        "operand_type": named[0] if named else (None if integer else accumulator),
        "accumulator_type": accumulator,
        "output_type": element_type(output) if output else accumulator,
        "multiply_type": match.group("intermediate"),
    }


def _cutlass_shapes(rest: str, *, is_3x: bool) -> dict[str, Any]:
    layout, alignment = _CUTLASS_LAYOUT.search(rest), _ALIGNMENT.search(rest)
    fields: dict[str, Any] = {
        "layout": layout.group(1) if layout else None,
        "alignment": int(alignment.group(1)) if alignment else None,
    }
    tile = _TILE_3X.search(rest) if is_3x else _TILE_2X.search(rest)
    if tile is not None and is_3x:
        stages = int(tile.group(3))
        fields.update(
            tile=tile.group(1), cluster=tile.group(2), stages=stages or None
        )  # 0: chosen by the builder
    elif tile is not None:
        fields.update(tile=f"{tile.group(1)}x{tile.group(2)}", stages=int(tile.group(3)))
    return fields


def _template(name: str) -> Reading | None:
    text = name[:1000]  # what it is about stands first; the rest are layouts
    family = next((family for family, pattern in _TEMPLATES if pattern.search(text)), None)
    if family is None:
        return None
    found = _ARCHITECTURE.search(text)
    architecture = next((number for number in found.groups() if number), None) if found else None
    direction = None
    if "conv" in family:
        direction = (
            "forward" if "Fprop" in text else "backward" if "Dgrad" in text or "Wgrad" in text else None
        )
    elif family == "attention":
        direction = (
            "backward" if "Bwd" in text or "Backward" in text else "forward" if "Fwd" in text else None
        )
    return Reading(
        {
            "library": "cutlass",
            "family": family,
            "direction": direction,
            "architecture": f"sm{architecture}" if architecture else None,
            "variant": "template",
        }
    )


# ---- rocm

_TENSILE = re.compile(
    r"Cijk_(?P<a>A[il]{2}k)_(?P<b>B[jl]{2}k)(?:_S)?_(?P<types>[A-Z0-9]+)_(?P<rest>.*)", re.DOTALL
)
_TRANSPOSED = {"Ailk": "n", "Alik": "t", "Bljk": "n", "Bjlk": "t"}
_TYPES = re.compile(r"I8|F8|B8|[SDHBCZ]")
_ELEMENTS = {"S": "f32", "D": "f64", "H": "f16", "B": "bf16", "C": "cf32", "Z": "cf64", "I8": "s8"}
_ROCM_TILE = re.compile(r"(?:^|_)MT(\d+x\d+x\d+)")
_INSTRUCTION = re.compile(r"_MI(\d+x\d+x\d+)")
_ROCM_ARCHITECTURE = re.compile(r"_ISA(\w+?)_|gfx(\w+?)(?:_|$)")
_FUNCTIONS = FamilyRules("rocm")


def read_rocm(function: str) -> Reading | None:
    """What a kernel of AMD's libraries says; None if the function is not one."""
    tensile = _TENSILE.match(function)
    if tensile is not None:
        return _tensile(tensile)
    family = _FUNCTIONS.find(function)
    if family is None:
        return None
    library = (
        "rocprim" if "rocprim::" in function else "miopen" if re.match("miopen", function, re.I) else None
    )
    return Reading({"library": library}, {"family": family, "direction": direction_of(function)})


def _tensile(match: re.Match[str]) -> Reading:
    rest = match.group("rest")
    types = [_ELEMENTS.get(letter) for letter in _TYPES.findall(match.group("types"))]
    tile, instruction, architecture = (
        _ROCM_TILE.search(rest),
        _INSTRUCTION.search(rest),
        _ROCM_ARCHITECTURE.search(rest),
    )
    layout = _TRANSPOSED.get(match.group("a"), "?") + _TRANSPOSED.get(match.group("b"), "?")
    stated: dict[str, Any] = {
        "library": "tensile",
        "family": "gemm",
        "layout": layout if "?" not in layout else None,
    }
    inferred: dict[str, Any] = {
        "operand_type": types[0] if types else None,
        "tile": tile.group(1) if tile else None,
        "mma_shape": instruction.group(1) if instruction else None,
        "architecture": f"gfx{architecture.group(1) or architecture.group(2)}" if architecture else None,
    }
    return Reading(stated, inferred)


# ---- dense_algebra

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
_DENSE_ALGEBRA_FUNCTIONS = FamilyRules("dense_algebra")
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
    named = _DENSE_ALGEBRA_FUNCTIONS.find(function) or (
        _BESIDE_CUBLAS.find(function) if names_cublas else None
    )
    if named is None:
        return None
    inferred: dict[str, Any] = {"family": named, "library": _dense_algebra_library(function, names_cublas)}
    if named in ("gemv", "gemm", "blas_vector"):
        inferred.update(_dense_algebra_types(cxx))
    return Reading(inferred=inferred)


def _lettered(match: re.Match[str]) -> Reading:
    routine = match.group("routine")
    family = _LETTERED_FAMILIES.get("scal_sger" if routine.startswith("scal_") else routine, "linear_algebra")
    return Reading(
        {"family": family, "operand_type": letter_type(match.group("letter"))}, {"library": "magma"}
    )


def _dense_algebra_library(function: str, names_cublas: bool) -> str | None:
    if "cublasLt" in function:
        return "cublasLt"
    if _MAGMA.search(function) and not names_cublas:
        return "magma"
    return "cublas" if names_cublas else None


def _dense_algebra_types(cxx: CxxName) -> dict[str, str | None]:
    """The floating types that lead the template arguments: operands first, the type of the sum last."""
    types = [kind for argument in cxx.template_arguments[:7] if (kind := element_type(argument)) in FLOATING]
    if not types:
        return {}
    is_uniform = len(set(types)) == 1
    return {
        "operand_type": types[0],
        "accumulator_type": types[-1] if len(types) >= 4 or is_uniform else None,
    }
