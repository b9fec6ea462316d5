"""[libraries] Kernels of libraries met beside PyTorch's own: inference engines, fused trainers, quantizers, FBGEMM.

Names are read as far as they say plainly what the kernel does; all of it is inferred. Namespaces (`vllm::`)
name the library.

[attention] Kernels of FlashAttention, of the memory-efficient attention and of the inference engines' attention.

Source: pytorch_flash / Dao-AILab flash-attention csrc/flash_attn/src/kernel_traits.h
(`Flash_fwd_kernel_traits<head dimension, rows of a block, columns of a block, warps, …, element>`), and the
generator of pytorch/aten/src/ATen/native/transformers/cuda/mem_eff_attention/kernels
(`fmha_cutlassF_<type>_<aligned>_<queries>x <keys>_<where>_sm<number>`). Other engines' names are observed.

[cudnn] Kernels of cuDNN: the engines compiled at run time, and the templates in its libraries.

Undocumented: what words the names hold is inferred. In
`cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_…` `f16` also stands for bf16, which recorded
traces show, so no element type is read from it.

[nccl] Names of NCCL's (and RCCL's) kernels, `ncclDevKernel_AllReduce_Sum_bf16_RING_LL`.

Source: NVIDIA/nccl src/device/generate.py. One kernel serves many algorithms, protocols and reductions: `LL`,
`RING` and `Sum` in a name are those of the kernel that was compiled, not of the call. Only the collective
holds, and the element type where it is a floating one; integers share the kernels of unsigned ones, and
collectives that do not reduce move bytes.

[device_algorithms] Kernels of CUB and Thrust: what the algorithm does, in whatever namespace they were wrapped.

Source: NVIDIA/cccl cub/device/dispatch/kernels and thrust/system/cuda/detail, whose kernels are public
templates: `DeviceRadixSortOnesweepKernel<policy, order, key, value, …>`,
`_kernel_agent<__reduce::ReduceAgent<…>, …>`.

[memory_copies] Names the driver's activity records give to copies and sets, `Memcpy DtoH (Device -> Pageable)`.

Source: libkineto src/CuptiActivity.cpp (`memcpyName`) and roctracer's names, which are alike or spell the
kind (`CopyDeviceToHost`, `FillBuffer`).

[triton] Names of the Triton kernels that torch.compile writes, `triton_per_fused_add_native_layer_norm_view_5`.

Documented by their generator. Source: torch/_inductor/codegen/triton.py (`define_kernel`),
torch/_inductor/utils.py (`get_fused_kernel_name`). The word after `triton_` is the kind of kernel. The
operators are sorted, without repeats and joined by underscores, of which their own names are full: taking
them apart is inference, and older releases kept ten at most.

[plain_words] The last resort: a program's own kernel named by a plain word of what it does, `square_kernel`.

A name is taken only when it consists of such words and nothing else; anything more is left unknown.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import Any

from opscope.provenance.kernel_names.cxx_name import CxxName, entities, last_part, without_module
from opscope.provenance.kernel_names.decoded_kernel import Reading
from opscope.provenance.kernel_names.element_types import FLOATING, element_type
from opscope.provenance.kernel_names.families import FamilyRules, direction_of


# ---- libraries

_NAMESPACES = {
    "vllm": "vllm",
    "flashinfer": "flashinfer",
    "tensorrt_llm": "tensorrt_llm",
    "transformer_engine": "transformer_engine",
    "fbgemm_gpu": "fbgemm",
    "deep_gemm": "deep_gemm",
    "deep_ep": "deep_ep",
    "apex": "apex",
    "marlin": "marlin",
    "cusparse": "cusparse",
    "torchao": "torchao",
    "mslk": "mslk",
    "gloo": "gloo",
    "torchvision": "torchvision",
    "vision": "torchvision",
    "nvshmem": "nvshmem",
    "nvshmemi": "nvshmem",
    "sgl": "sglang",
}
_FIRST_NAMESPACE = re.compile(r"(?:::)?(\w+)::")
_FUNCTIONS = FamilyRules("library")


def read_library(cxx: CxxName) -> Reading | None:
    """What a kernel of another library, or a program's own, says plainly; None if nothing.

    Args:
        cxx: The name, taken apart; its function is not None.
    """
    function = cxx.function or ""
    family = _FUNCTIONS.find(function)
    library = library_of_namespace(function)
    if family is None and library is None:
        return None
    return Reading(
        {"library": library}, {"family": family, "direction": direction_of(function) if family else None}
    )


def library_of_namespace(function: str) -> str | None:
    """The library that a function's outermost namespace names; None if it is none of those known."""
    namespace = _FIRST_NAMESPACE.match(function)
    return _NAMESPACES.get(namespace.group(1)) if namespace is not None else None


# ---- attention

_FLASH_TRAITS = re.compile(
    r"Flash_(?:fwd|bwd)_kernel_traits<\(?(?:int\))?(?P<head>\d+), (?:\(int\))?(?P<rows>\d+)"
    r", (?:\(int\))?(?P<columns>\d+)"
    r"[^<>]*?, (?P<element>(?:cutlass::)?(?:half_t|bfloat16_t|float_e[45]m[23]_t))\b"
)
_MEMORY_EFFICIENT = re.compile(
    r"fmha_cutlass(?P<pass>[FB])_(?P<element>f32|f16|bf16)_(?P<aligned>aligned|notaligned)_(?P<tile>\d+x\d+)"
    r"(?:_k(?P<head>\d+))?(?P<words>\w*?)_sm(?P<architecture>\d+)"
)
_MEMORY_EFFICIENT_TEMPLATE = re.compile(
    r"AttentionKernel<(?P<element>[\w:]+), [\w:]*?Sm(?P<architecture>\d+)"
)
_CUDNN = re.compile(r"cudnn|^fmha_(?:fprop|dgrad|cw)")
_FLASH = re.compile(
    r"\bflash_(?:fwd|bwd)_\w*kernel|pytorch_flash::|FlashAttn(?:Fwd|Bwd)|\bflash::|FlashAttnFwdCombine|fmha_v2_flash|flash_attn"
)
_OTHERS = FamilyRules("attention")


def read_attention(cxx: CxxName, text: str) -> Reading | None:
    """What an attention kernel says; None if the name names none.

    Args:
        cxx: The name, taken apart; its function is not None.
        text: The name as recorded.
    """
    function = cxx.function or ""
    memory_efficient = _MEMORY_EFFICIENT.match(function)
    if memory_efficient is not None:
        return _memory_efficient(memory_efficient)
    if _CUDNN.search(function):
        return None  # told by the grammar of cuDNN
    head = text[:600]
    if "AttentionKernel<" in head or "AttentionBackwardKernel<" in head:
        return _memory_efficient_template(head)
    if _FLASH.search(function) or _FLASH.search(head):
        return _flash(function, head)
    family = _OTHERS.find(function)
    if family is None:
        return None
    stated = {"library": library_of_namespace(function)}
    return Reading(stated, {"family": family, "direction": direction_of(function)})


def _memory_efficient(match: re.Match[str]) -> Reading:
    stated: dict[str, Any] = {
        "family": "attention_mem_efficient",
        "direction": "forward" if match.group("pass") == "F" else "backward",
        "operand_type": match.group("element"),
        "tile": match.group("tile"),
        "architecture": f"sm{match.group('architecture')}",
        "variant": "_".join(filter(None, (match.group("aligned"), match.group("words").strip("_")))),
    }
    head = match.group("head")
    if head is not None and int(head) < 65536:  # 65536: no limit
        stated["head_dimension"] = int(head)
    return Reading(stated)


def _memory_efficient_template(text: str) -> Reading:
    found = _MEMORY_EFFICIENT_TEMPLATE.search(text)
    stated: dict[str, Any] = {
        "family": "attention_mem_efficient",
        "direction": "backward" if "Backward" in text or "attention_kernel_backward" in text else "forward",
    }
    if found is not None:
        stated["operand_type"] = element_type(found.group("element"))
        stated["architecture"] = f"sm{found.group('architecture')}"
    return Reading(stated)


def _flash(function: str, text: str) -> Reading:
    stated: dict[str, Any] = {"family": "attention_flash", "direction": _flash_direction(function, text)}
    traits = _FLASH_TRAITS.search(text)
    if traits is not None:
        stated.update(
            head_dimension=int(traits.group("head")),
            tile=f"{traits.group('rows')}x{traits.group('columns')}",
            operand_type=element_type(traits.group("element")),
            tensor_core=True,
        )
    return Reading(stated)


def _flash_direction(function: str, text: str) -> str | None:
    if "flash_bwd" in function or "FlashAttnBwd" in text or "Bwd" in function:
        return "backward"
    return "forward" if "flash_fwd" in function or "FlashAttnFwd" in text else direction_of(function)


# ---- cudnn

_ARCHITECTURE = re.compile(r"_sm(\d+)_")
_TILE = re.compile(r"_(\d+x\d+x\d+)_")
_CLUSTER = re.compile(r"_cga(\d+x\d+x\d+)")
_GENERATED_FAMILIES = FamilyRules("cudnn_generated")
_CUDNN_FUNCTIONS = FamilyRules("cudnn")
_ITS_FUNCTIONS = re.compile(
    r"^(?:fft[12]d_[rc]2[rc]|DSE::|op_generic_tensor|op_tensor_kernel|tensorTransformGeneric|folded|nchw|nhwc|add_tensor_kernel"
    r"|(?:implicit|explicit|precomputed)_convolve|convolve_|convolveNd|dgrad_|wgrad_|transposeWarp|transposeBlock|softmax_[fb]w_small"
    r"|full_reduce_tensor|reduce_tensor|RNN|LSTM_|GRU_|GENERIC_elementWise|elemWiseRNN|persistRNN|calc_bias_diff|Sbar|SBAR_"
    r"|arbitrary_fusion_NHWC|combineScaleBias|finalizeBN|xmma_bn|xmma_implicit|Volta_\w*implicit_gemm|conv2d_precomputed|conv2d_c1_k1"
    r"|applyBatchedGemmBias|applyGemmBias|applyOutDropout|fusedSoftmax|multiHeadAttn|setBatchedGemm|computeBiasGradient"
    r"|memcpy2?D?WithType|(?:ampere|volta|turing|hopper)_lstm|fmha_[fd](?:prop|grad)|fmha_cw|im2col4d"
    r"|xmma(?:__\w+)?::(?:ext|implicit_gemm|gemm::(?:warp|split_k|kernel_w)))"
)
# A multiplication given the traits of a convolution.
_CONVOLVES = re.compile(r"implicit_gemm::|batchnorm::")
_NAMESPACE = re.compile(r"cudnn|cask")


def read_cudnn(cxx: CxxName, text: str) -> Reading | None:
    """What a kernel of cuDNN says; None if the name is not one.

    Args:
        cxx: The name, taken apart; its function is not None.
        text: The name as recorded.
    """
    function = cxx.function or ""
    if function.startswith("cudnn_generated_"):
        return _generated(function)
    if "cublas" in function:
        return None
    is_named = _NAMESPACE.search(text[:400]) is not None
    if not is_named and not _ITS_FUNCTIONS.match(function):
        return None
    family = _CUDNN_FUNCTIONS.find(function)
    if family is None:
        return None
    inferred: dict[str, Any] = {"direction": direction_of(function)}
    inferred["family"] = family
    if family == "fft" and (is_named or function.startswith("DSE::")):
        inferred.update(family="convolution", variant="fft")  # cuDNN transforms only to convolve
    if family == "gemm" and _CONVOLVES.search(text[:500]):
        inferred.update(family="convolution", direction=direction_of(text[:300]))
    inferred["operand_type"] = _operand(cxx)
    return Reading({"library": "cudnn"} if is_named else {}, inferred)


def _operand(cxx: CxxName) -> str | None:
    """The one floating type that leads the template arguments; None where several types take part."""
    types = [kind for argument in cxx.template_arguments[:4] if (kind := element_type(argument)) is not None]
    if not types or types[0] not in FLOATING:
        return None
    data = set(types) - {"s32", "s64", "bool"}  # indices and flags
    return types[0] if len(data) == 1 else None


def _generated(function: str) -> Reading:
    inferred: dict[str, Any] = {"direction": direction_of(function)}
    inferred["family"] = _GENERATED_FAMILIES.find(function)
    architecture, tile, cluster = (pattern.search(function) for pattern in (_ARCHITECTURE, _TILE, _CLUSTER))
    stated: dict[str, Any] = {
        "library": "cudnn",
        "architecture": f"sm{architecture.group(1)}" if architecture else None,
    }
    if "wgmma" in function or "_wmma" in function or "_hmma" in function:
        inferred["tensor_core"] = True
    inferred["tile"] = tile.group(1) if tile else None
    inferred["cluster"] = cluster.group(1) if cluster else None
    return Reading(stated, inferred)


# ---- nccl

_NAME = re.compile(
    r"(?:ncclSymkDevKernel|ncclSymDevKernel|ncclDevKernel|ncclKernel)(?:Debug)?_(?P<collective>[A-Z][A-Za-z]+)(?P<rest>_\w+)?"
)
_REDUCING = frozenset(("AllReduce", "Reduce", "ReduceScatter"))
_OTHER = re.compile(r"nccl(?:SymkDev|SymDev|Dev)?Kernel|oneRankReduce|nccl::|rccl")


def read_nccl(function: str) -> Reading | None:
    """What a kernel of NCCL says; None if it is not one."""
    match = _NAME.match(function)
    if match is None:
        if _OTHER.search(function) is None:
            return None
        return Reading({"library": "nccl", "family": "collective"})
    collective = match.group("collective")
    stated: dict[str, Any] = {"library": "nccl", "family": "collective"}
    if collective != "Generic":  # one kernel for all
        stated["collective"] = collective
    if collective in _REDUCING:
        words = (match.group("rest") or "").split("_")
        types = {kind for word in words if (kind := element_type(word)) in FLOATING}
        stated["operand_type"] = types.pop() if len(types) == 1 else None
    return Reading(stated)


# ---- device_algorithms

_CUB = FamilyRules("cub")
_THRUST = FamilyRules("thrust")
# A pass over all places (`for_each`, `parallel_for`) is told apart by what it calls.
_PASSES = (
    ("fill", re.compile(r"__uninitialized_fill|__fill::")),
    ("copy", re.compile(r"__uninitialized_copy|__copy::")),
    ("arange", re.compile(r"__tabulate.*(?:sequence|compute_sequence)")),
)
_TAKES_KEYS = re.compile(r"RadixSort(?:Onesweep|Histogram|Upsweep|Downsweep|SingleTile)")
_TAKES_INPUT = re.compile(r"^Device(?:Scan|Reduce|ReduceSingleTile|SegmentedReduce)Kernel$")
_POLICY = re.compile(
    r"[pP]olicy|ScanTileState|NullType|InputValue|Agent$|use_default|identity|GridQueue|[iI]terator|Scaling|device_ptr|context_t"
)


def read_device_algorithm(cxx: CxxName, last: str) -> Reading | None:
    """What a kernel of CUB or Thrust says; None if the name is not one.

    Args:
        cxx: The name, taken apart; its function is not None.
        last: Last part of the function.
    """
    function = cxx.function or ""
    if "thrust::" in function and last == "_kernel_agent":
        return _thrust(cxx)
    if "cub::" not in function:
        return None
    family = _CUB.find(last)
    if family is None:
        return None
    stated: dict[str, Any] = {"library": "cub", "family": family}
    joined = ", ".join(cxx.template_arguments)
    if family == "select" and "NonZeroOp" in joined:
        stated["family"] = "nonzero"
    elif family == "select" and "equal_to" in joined:
        stated["family"] = "unique"
    elif family == "elementwise":
        stated["family"] = _pass(joined)
        stated["variant"] = "adjacent_difference" if "Adjacent" in last else None
    stated["operand_type"] = _device_algorithms_operand(cxx, last)
    stated["functor"] = _functor(cxx)
    return Reading(stated)


def _thrust(cxx: CxxName) -> Reading:
    joined = ", ".join(cxx.template_arguments)
    family = _THRUST.find(joined.split("<", 1)[0])
    if family == "elementwise":
        family = _pass(joined)
    return Reading({"library": "thrust", "family": family, "functor": _functor(cxx)})


def _pass(arguments: str) -> str:
    return next((family for family, pattern in _PASSES if pattern.search(arguments[:2000])), "elementwise")


def _device_algorithms_operand(cxx: CxxName, last: str) -> str | None:
    arguments = cxx.template_arguments
    if _TAKES_KEYS.search(last):
        keys = (element_type(argument) for argument in arguments[1:4])
        return next((key for key in keys if key is not None), None)
    if _TAKES_INPUT.match(last) and len(arguments) > 1 and arguments[1].endswith("*"):
        return element_type(arguments[1])
    return None


def _functor(cxx: CxxName) -> str | None:
    """The first operation among the template arguments that is no policy, iterator or state."""
    for entity in entities(cxx.template_arguments):
        if not _POLICY.search(last_part(entity.name)) and ("::" in entity.name):
            return without_module(entity.name)
    return None


# ---- memory_copies

_COPY = re.compile(
    r"[Mm]emcpy(?: |\b)(?:(?P<from>[HDAP])to(?P<to>[HDAP]))?\s*(?:\((?P<source>\w+) -> (?P<target>\w+)\))?"
)
_AMD_COPY = re.compile(r"Copy(?P<source>Host|Device)To(?P<target>Host|Device)\w*|hipMemcpy\w*")
_SIDES = {"H": "host", "D": "device", "A": "device"}
_SET = re.compile(r"Memset\b|FillBuffer|hipMemset\w*")


def read_memory_copy(text: str) -> Reading | None:
    """What the name of a copy or set says; None if it is neither."""
    if _SET.match(text):
        return Reading({"library": "driver", "family": "memset"})
    amd = _AMD_COPY.fullmatch(text)
    if amd is not None:
        sides = [side.lower() for side in (amd.group("source"), amd.group("target")) if side]
        direction = "_to_".join(sides) if len(sides) == 2 else None
        return Reading({"library": "driver", "family": "memcpy", "copy_direction": direction})
    match = _COPY.match(text)
    if match is None:
        return None
    kinds = (match.group("from"), match.group("to"))
    direction = "peer_to_peer" if kinds == ("P", "P") else None
    if kinds[0] in _SIDES and kinds[1] in _SIDES:
        direction = f"{_SIDES[kinds[0]]}_to_{_SIDES[kinds[1]]}"
    memories = {match.group("source"), match.group("target")} & {"Pageable", "Pinned"}
    memory = memories.pop().lower() if len(memories) == 1 else None
    return Reading(
        {"library": "driver", "family": "memcpy", "copy_direction": direction, "host_memory": memory}
    )


# ---- triton

KINDS = {
    "poi": ("fused_pointwise", "pointwise"),
    "red": ("fused_reduction", "looped"),
    "per": ("fused_reduction", "persistent"),
    "mix": ("fused_reduction", "mix_order"),
    "tem": ("fused_template", "template"),
    "for": ("foreach", "foreach"),
    "spl": ("scan", "split_scan"),
    "split_scan": ("scan", "split_scan"),
    "unk": (None, None),
}
# Ends in a number, and in older releases in the arguments' properties: `0d1d2de`.
_END = r"(?:_\d+)?(?:_*\d+d[\ddec]*)?"
_TRITON_NAME = re.compile(rf"triton_(?P<kind>{'|'.join(KINDS)})(?:_fused)?(?:_(?P<operators>.*?))??{_END}")
_OLD_NAME = re.compile(rf"triton_(?:fused(?:_(?P<operators>.*?))??)?{_END}")
_MOST_OPERATORS = 10  # config.kernel_name_max_ops
_TEMPLATES = (
    ("attention", re.compile(r"flex_attention|scaled_dot_product")),
    ("convolution", re.compile(r"convolution|conv\dd")),
    ("grouped_gemm", re.compile(r"grouped_mm")),
    ("gemm", re.compile(r"(?:^|_)(?:b|add|badd|scaled_|int_)?b?mm(?:_|$)|matmul|linear")),
)


def read_triton(text: str) -> Reading | None:
    """What a generated name says; None if it is not one."""
    match = _TRITON_NAME.fullmatch(text)
    kind = match.group("kind") if match else None
    if match is None:
        match = _OLD_NAME.fullmatch(text)
        if match is None or text == "triton_":
            return _template(text)
    family, variant = KINDS[kind] if kind else (None, None)
    joined = match.group("operators") or ""
    operators = fused_operators(joined)
    stated: dict[str, Any] = {"library": "triton", "family": family, "variant": variant}
    inferred: dict[str, Any] = {"fused_operators": operators}
    if operators:
        inferred["fused_operators_may_be_cut"] = len(operators) >= _MOST_OPERATORS
    if family == "fused_template":
        inferred["family"] = next((name for name, pattern in _TEMPLATES if pattern.search(joined)), None)
        if inferred["family"] is not None:
            del stated["family"]
    return Reading(stated, inferred)


def _template(text: str) -> Reading | None:
    """A template under its own name (`triton_mm`), as it is called while candidates are timed."""
    family = next((name for name, pattern in _TEMPLATES if pattern.search(text)), None)
    return Reading({"library": "triton"}, {"family": family}) if family is not None else None


def fused_operators(joined: str) -> tuple[str, ...]:
    """The operators of a joined name: the longest known ones, as long as their order stays ascending."""
    operators: list[str] = []
    position = 0
    while position < len(joined):
        operator = _next_operator(joined, position, operators[-1] if operators else "")
        if not operator:
            break
        operators.append(operator)
        position += len(operator) + 1
    return tuple(operators)


def _next_operator(joined: str, position: int, previous: str) -> str:
    """The longest known name there that sorts after the previous one; else the next word."""
    known, longest = _known_names()
    ends = [match.start() for match in re.finditer("_|$", joined[position : position + longest + 1])]
    names = [joined[position : position + end] for end in ends if end]
    if not names:
        return ""
    fitting = [name for name in names if name in known and name >= previous]
    if fitting:
        return fitting[-1]
    return next((name for name in names if not name.startswith("_")), names[-1])


@cache
def _known_names() -> tuple[frozenset[str], int]:
    """Operators whose names hold underscores, and the length of the longest."""
    text = resources.files(__package__).joinpath("fused_operator_names.txt").read_text(encoding="utf-8")
    names = frozenset(line for line in text.splitlines() if line and not line.startswith("#"))
    return names, max(map(len, names))


# ---- plain_words

_AFFIX = (
    r"(?:_?(?:kernel|cuda|gpu|triton|fwd|bwd|forward|backward|f32|f16|bf16|fp32|fp16|float|half"
    r"|inplace|vectorized|v\d|\d))*"
)
_WORDS = (
    (
        "elementwise",
        r"(?:vec(?:tor)?|tensor|array|elementwise|ew)?_?(?:add|sub|mul|div|square|r?sqrt|exp|log|abs|neg|pow|sin"
        r"|cos|scale|s?axpy|s?axpby|clamp|where|lerp|fma|(?:bias|residual)_add|add_(?:bias|residual)"
        r"|elementwise|pointwise)",
    ),
    (
        "activation",
        r"(?:fast_?)?(?:gelu|relu|silu|swish|sigmoid|tanh|leaky_relu|elu|mish)(?:_(?:tanh|erf|fast|exact|new))?",
    ),
    ("softmax", r"(?:online_|fused_|safe_|log_?)?softmax"),
    (
        "reduction",
        r"(?:block_|row_|col_|warp_|vector_|array_)?(?:reduce(?:_sum|_max)?|sum|mean|max|min|reduction)",
    ),
    ("gemm", r"(?:naive_|tiled_|batched_|[sdh])?(?:gemm|matmul|mat_?mul|bmm)(?:_tiled|_naive)?"),
    ("transpose", r"(?:matrix_?|mat_?)?transpose"),
    ("copy", r"(?:vec_?|vectorized_)?(?:copy|memcpy|clone)"),
    ("fill", r"(?:fill|memset|set_?(?:zero|value)|zero|init(?:ialize)?)"),
    ("scan", r"(?:prefix_?sum|(?:inclusive|exclusive)_?scan|scan|cumsum)"),
    ("histogram", r"histogram"),
    ("wait", r"(?:spin|sleep|delay|busy_?wait|nanosleep)"),
)
_LONGEST = 60
_PATTERNS = tuple((family, re.compile(rf"_*{words}{_AFFIX}_*", re.IGNORECASE)) for family, words in _WORDS)


def read_plain_words(last: str) -> Reading | None:
    """What the last part of a function says, if it is all plain words; else None."""
    if len(last) > _LONGEST:
        return None
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", last)
    family = next((name for name, pattern in _PATTERNS if pattern.fullmatch(snake)), None)
    return Reading(inferred={"family": family}) if family is not None else None
