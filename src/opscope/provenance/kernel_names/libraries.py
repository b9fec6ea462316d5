"""Kernels of other libraries and generators: attention, cuDNN, NCCL, CUB, Triton, matrix products and more.

Each grammar is a function from the name to a Reading; None if the name is not of it. Where no source is
named, a grammar is observed, so what it reads is inferred.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from opscope.data import packaged_toml
from opscope.provenance.kernel_names.cxx_name import CxxName, entities, last_part, without_module
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
    NAMESPACES,
    direction_of,
    element_type,
    family_by_rules,
    rule_of,
)
from opscope.provenance.packaged import lazy_pattern, packaged_path

_FIRST_NAMESPACE = lazy_pattern(r"(?:::)?(\w+)::")


def read_library(cxx: CxxName) -> Reading | None:
    """What a kernel of another library, or a program's own, says plainly; None if nothing."""
    function = cxx.function or ""
    library = _library_of_namespace(function)
    found = read_by_rules("library", function, library)
    return Reading({"library": library}) if found is None and library is not None else found


_MOST_TEMPLATE = 1000  # What a name is about stands first.


def read_serving(cxx: CxxName, text: str) -> Reading | None:
    """What a kernel of a serving engine, or of the libraries these call, says; None if it is none."""
    function = cxx.function or ""
    head = text[:_MOST_TEMPLATE]
    rule = rule_of("serving", function) or {}
    family = family_by_rules("serving_template", head) or rule.get("family")
    if family is None:
        return None
    library = rule.get("library") or _library_of_namespace(function)
    entered = None
    if cxx.function == _ENTRY:  # the kernel that Composable Kernel's entry function enters
        given = (one for one in cxx.template_arguments if one.startswith("ck_tile::"))
        mangled = _MANGLED_ENTERED.search(head)
        entered = next(given, "").partition("<")[0] or None
        entered = entered or (mangled and f"ck_tile::{mangled[2][: int(mangled[1])]}")
    inferred: dict[str, Any] = {
        "family": family,
        "direction": direction_of(entered or function),
        "functor": entered,
    }
    if (product := find_grammar("grouped_product", function)) is not None:
        inferred.update(product.fields)
    elif (product := find_grammar("exported_product", function)) is not None:
        named = list(map(element_type, _EXPORTED_TYPE.findall(product.groups["operands"] or "")))
        # The wider operand decides how fast the product is: fp4 weights with fp8 tokens run as fp8.
        inferred.update(product.fields, operand_type=max(named, key=lambda one: one != "e2m1", default=None))
    return Reading({"library": library}, inferred)


_EXPORTED_TYPE = lazy_pattern(r"(?:Mx)?(E4m3|E5m2|E2m1|Bfloat16|Fp16|Fp8)")


# Composable Kernel enters every kernel by one function, whose argument it is.
# Source: ROCm/composable_kernel include/ck_tile/host/kernel_launch.hpp (`kentry`).
_ENTRY = "ck_tile::kentry"
_MANGLED_ENTERED = lazy_pattern(r"kentryI(?:Li\d+E)?NS_(\d+)(\w+)")


def _library_of_namespace(function: str) -> str | None:
    namespace = _FIRST_NAMESPACE.match(function)
    return NAMESPACES.get(namespace[1]) if namespace is not None else None


# Attention. Other engines' names than those of `grammars.toml` are observed.
_CUDNN_ATTENTION = lazy_pattern(r"cudnn|^fmha_(?:fprop|dgrad|cw)")
_FLASH = lazy_pattern(
    r"\bflash_(?:fwd|bwd)_\w*kernel|pytorch_flash::|FlashAttn(?:Fwd|Bwd)|\bflash::|FlashAttnFwdCombine"
    r"|fmha_v2_flash|flash_attn"
)


def read_attention(cxx: CxxName, text: str) -> Reading | None:
    function = cxx.function or ""
    if (found := find_grammar("memory_efficient", function)) is not None:
        words = (found.groups["aligned"], (found.groups["words"] or "").strip("_"))
        return found.reading(variant="_".join(filter(None, words)))
    if _CUDNN_ATTENTION.search(function):
        return None  # told by the grammar of cuDNN
    head = text[:600]
    if "AttentionKernel<" in head or "AttentionBackwardKernel<" in head:
        family, traits = "attention_mem_efficient", find_grammar("memory_efficient_template", head)
        is_backward = "Backward" in head or "attention_kernel_backward" in head
        direction: str | None = "backward" if is_backward else "forward"
    elif _FLASH.search(function) or _FLASH.search(head):
        family, traits = "attention_flash", find_grammar("flash_traits", head)
        direction = direction_of(function) or direction_of(head)
    else:
        return read_by_rules("attention", function, _library_of_namespace(function))
    return Reading({"family": family, "direction": direction, **({} if traits is None else traits.fields)})


# cuDNN: the engines compiled at run time, and the templates in its libraries. Of the latter a multiplication
# may be given the traits of a convolution.
_CONVOLVES = lazy_pattern(r"implicit_gemm::|batchnorm::")
_CUDNN_NAMESPACE = lazy_pattern(r"cudnn|cask")


def read_cudnn(cxx: CxxName, text: str) -> Reading | None:
    function = cxx.function or ""
    if (generated := find_grammar("cudnn_generated", function)) is not None:
        family = family_by_rules("cudnn_generated", function)
        return generated.reading(direction=direction_of(function), family=family)
    if "cublas" in function:
        return None
    is_named = _CUDNN_NAMESPACE.search(text[:400]) is not None
    if not is_named and find_grammar("cudnn_function", function) is None:
        return None
    family = family_by_rules("cudnn", function)
    if family is None:
        return None
    inferred: dict[str, Any] = {"direction": direction_of(function), "family": family}
    if family == "fft" and (is_named or function.startswith("DSE::")):
        inferred.update(family="convolution", variant="fft")  # cuDNN transforms only to convolve
    if family == "gemm" and _CONVOLVES.search(text[:500]):
        inferred.update(family="convolution", direction=direction_of(text[:300]))
    # The one floating type that leads the template arguments; none where several types take part.
    types = [kind for argument in cxx.template_arguments[:4] if (kind := element_type(argument)) is not None]
    data = set(types) - {"s32", "s64", "bool"}  # indices and flags
    is_one = bool(types) and types[0] in FLOATING and len(data) == 1
    inferred["operand_type"] = types[0] if is_one else None
    return Reading({"library": "cudnn"} if is_named else {}, inferred)


# CUB and Thrust, in whatever namespace they were wrapped. Source: NVIDIA/cccl cub/device/dispatch/kernels and
# thrust/system/cuda/detail, whose kernels are public templates: `DeviceRadixSortOnesweepKernel<policy, order,
# key, value, …>`, `_kernel_agent<__reduce::ReduceAgent<…>, …>`.
_TAKES_KEYS = lazy_pattern(r"RadixSort(?:Onesweep|Histogram|Upsweep|Downsweep|SingleTile)")
_TAKES_INPUT = lazy_pattern(r"^Device(?:Scan|Reduce|ReduceSingleTile|SegmentedReduce)Kernel$")
_PASSES = frozenset(("elementwise", "select"))
_NO_FUNCTOR = lazy_pattern(
    r"[pP]olicy|ScanTileState|NullType|InputValue|Agent$|use_default|identity|GridQueue|[iI]terator|Scaling"
    r"|device_ptr|context_t"
)


def read_device_algorithm(cxx: CxxName, last: str) -> Reading | None:
    """What a kernel of CUB or Thrust says: its algorithm."""
    function, arguments, stated = cxx.function or "", cxx.template_arguments, dict[str, Any]()
    joined = ", ".join(arguments)
    if "thrust::" in function and last == "_kernel_agent":
        library, family = "thrust", family_by_rules("thrust", joined.split("<", 1)[0])
    elif "cub::" in function and (family := family_by_rules("cub", last)) is not None:
        library = "cub"
        if family == "elementwise" and "Adjacent" in last:
            stated["variant"] = "adjacent_difference"
        if _TAKES_KEYS.search(last):
            stated["operand_type"] = next(filter(None, map(element_type, arguments[1:4])), None)
        elif _TAKES_INPUT.match(last) and len(arguments) > 1 and arguments[1].endswith("*"):
            stated["operand_type"] = element_type(arguments[1])
    else:
        return None
    if family in _PASSES:  # over all places, told apart by what they call
        family = family_by_rules(f"{family}_pass", joined[:2000]) or family
    functor = next(  # the first operation among the template arguments that is no policy, iterator or state
        (
            without_module(entity.name)
            for entity in entities(arguments)
            if "::" in entity.name and not _NO_FUNCTOR.search(last_part(entity.name))
        ),
        None,
    )
    return Reading({"library": library, "family": family, "functor": functor, **stated})


# Triton kernels that torch.compile writes. Their operators are sorted, without repeats and joined by
# underscores, of which their own names are full: taking them apart is inference, and older releases kept ten
# at most.
_MOST_OPERATORS = 10  # config.kernel_name_max_ops


def read_triton(text: str) -> Reading | None:
    if (found := find_grammar("inductor", text)) is None:
        # A template under its own name (`triton_mm`), as it is called while candidates are timed.
        template = family_by_rules("triton_template", text)
        return Reading({"library": "triton"}, {"family": template}) if template is not None else None
    joined = found.groups["operators"] or ""
    operators = fused_operators(joined)
    may_be_cut = len(operators) >= _MOST_OPERATORS if operators else None
    reading = found.reading(fused_operators=operators, fused_operators_may_be_cut=may_be_cut)
    is_template = reading.stated.get("family") == "fused_template"
    if is_template and (template := family_by_rules("triton_template", joined)) is not None:
        del reading.stated["family"]
        reading.inferred["family"] = template
    return reading


def fused_operators(joined: str) -> tuple[str, ...]:
    """The operators of a joined name: the longest known ones, as long as their order stays ascending."""
    operators: list[str] = []
    position = 0
    while position < len(joined):
        operators.append(_next_operator(joined, position, operators[-1] if operators else ""))
        position += len(operators[-1]) + 1
    return tuple(operators)


def _next_operator(joined: str, position: int, previous: str) -> str:
    """The longest known name there that sorts after the previous one; else the next word."""
    known, longest = _known_operators()
    ends = [match.start() for match in re.finditer("_|$", joined[position : position + longest + 1])]
    names = [joined[position : position + end] for end in ends if end]
    fitting = [name for name in names if name in known and name >= previous]
    plain = [name for name in names if not name.startswith("_")]
    return fitting[-1] if fitting else (plain or names[-1:])[0]


@cache
def _known_operators() -> tuple[frozenset[str], int]:
    """Operators whose names hold underscores, and the length of the longest."""
    text = packaged_path("kernel_names", "fused_operator_names.txt").read_text(encoding="utf-8")
    names = frozenset(line for line in text.splitlines() if line and not line.startswith("#"))
    return names, max(map(len, names))


# The last resort: a program's own kernel that is named by plain words of what it does and nothing else,
# `square_kernel`.
_AFFIXES = (
    r"(?:_?(?:kernel|cuda|gpu|triton|fwd|bwd|forward|backward|f32|f16|bf16|fp32|fp16|float|half"
    r"|inplace|vectorized|v\d|\d))*"
)
_LONGEST_PLAIN_NAME = 60
_WORD_BORDER = lazy_pattern(r"(?<=[a-z0-9])(?=[A-Z])")


def read_plain_words(last: str) -> Reading | None:
    """What the last part of a function says, if it is all plain words; else None."""
    if len(last) > _LONGEST_PLAIN_NAME:
        return None
    snake = _WORD_BORDER.sub("_", last)
    families = (family for family, pattern in _plain_words() if pattern.fullmatch(snake))
    return next((Reading(inferred={"family": family}) for family in families), None)


@cache
def _plain_words() -> list[tuple[str, re.Pattern[str]]]:
    return [
        (rule["family"], re.compile(rf"_*{rule['words']}{_AFFIXES}_*", re.IGNORECASE))
        for rule in packaged_toml(__package__, "family_rules.toml")["plain_words"]
    ]


# Kernels that multiply matrices, and those around them: cuBLAS, CUTLASS, xmma, Tensile, MAGMA, cuSOLVER.
#
# Patterns are in `grammars.toml`; each function gives a Reading, None if the name is not of it. CUTLASS is
# documented.
# Source: NVIDIA/cutlass, python/cutlass_library/gemm_operation.py and conv2d_operation.py (`procedural_name`,
# `core_name`, `extended_name`), media/docs/cpp/profiler.md. NVIDIA's other names are not: what is read from
# them is inferred, and agrees with recorded operand types.


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
    direction = direction_of(text) if family in _DIRECTED else None
    found = find_grammar("cutlass_template", text)
    return None if found is None else found.reading(family=family, direction=direction)


_MIOPEN = lazy_pattern(r"miopen", re.IGNORECASE)


def read_rocm(function: str) -> Reading | None:
    """What a kernel of AMD's libraries says: Tensile, rocPRIM, MIOpen, Composable Kernel."""
    library = "rocprim" if "rocprim::" in function else "miopen" if _MIOPEN.match(function) else None
    return read_grammar("tensile", function) or read_by_rules("rocm", function, library)


# cuBLAS, cuBLASLt, cuSOLVER and MAGMA besides tensor-core multiplications. MAGMA is public source and BLAS
# and LAPACK names are documented (`sgetf2`: s is the type, getf2 the routine). Names that a program may well
# use itself (`copy_kernel`, `dot_kernel`) count only where a parameter type of cuBLAS stands beside them.
_MAGMA = lazy_pattern(r"magma|_template_batched|_smallsq|_native_kernel|pivinfo|displace_pointers")


def read_dense_algebra(cxx: CxxName, text: str) -> Reading | None:
    function = cxx.function or ""
    if (lettered := find_grammar("lapack", function)) is not None:
        routine = family_by_rules("lapack_routine", lettered.groups["routine"] or "")
        return lettered.reading(family=routine or "linear_algebra")
    if function.endswith("kernel_blasl3"):
        return Reading(inferred={"family": family_by_rules("cublas_level_3", text)})
    names_cublas = "cublas" in text
    named = family_by_rules("dense_algebra", function)
    named = named or (family_by_rules("cublas", function) if names_cublas else None)
    if named is None:
        return None
    library = "cublas" if names_cublas else "magma" if _MAGMA.search(function) else None
    inferred: dict[str, Any] = {"family": named, "library": "cublasLt" if "cublasLt" in function else library}
    # The floating types that lead the template arguments: operands first, the type of the sum last.
    types = [kind for argument in cxx.template_arguments[:7] if (kind := element_type(argument)) in FLOATING]
    if types and named in ("gemv", "gemm", "blas_vector"):
        has_sum = len(types) >= 4 or len(set(types)) == 1
        inferred |= {"operand_type": types[0], "accumulator_type": types[-1] if has_sum else None}
    return Reading(inferred=inferred)
