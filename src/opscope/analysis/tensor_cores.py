"""Whether a kernel computed on tensor cores, could have, or has no work for them, by its name and operands.

Products, convolutions and attention are work for tensor cores. What ran is read from the kernel's name; what
could run follows from the operands and the compute capability. A name that does not tell gives None, never a
guess.
"""

from __future__ import annotations

import re

from opscope.hardware.devices import DataType
from opscope.provenance.kernel_names.decoded_kernel import DecodedKernel
from opscope.text_enum import MeaningEnum


class TensorCoreUse(MeaningEnum):
    USED = "used", "computed on tensor cores"
    ELIGIBLE = "eligible", "could run on tensor cores, and does not"
    NOT_APPLICABLE = "not_applicable", "no work for tensor cores"


# Families of which every kernel multiplies matrices, or convolves, or attends.
_PRODUCTS = frozenset(
    (
        "gemm", "grouped_gemm", "moe_gemm", "triangular_multiply", "symmetric_multiply", "rank_update",
        "attention_flash", "attention_mem_efficient", "attention_cudnn", "attention_paged", "attention",
        "convolution",
    )
)  # fmt: skip
# Parts of attention and convolution kernels that prepare or finish, under the name of the whole.
_PARTS = re.compile(
    r"dot_do_o|convert_d[qkv]|dq_reduce|_combine|Combine|reduce_wgrad|transformBias|preprocess"
)
# cuBLAS kernels for products too narrow for a matrix instruction: few columns, or an inner size of 1.
_NARROW = re.compile(r"\bgemmSN_[TN]{2}_kernel|\bgemmk1_kernel")
# Kernels of cuBLAS and cuDNN that multiply and add on CUDA cores; some since before there were tensor cores.
_CUDA_CORE_FUNCTIONS = re.compile(
    r"\bmagma_[sdcz]gemm|\b[sdcz]gemm_largek|\b(?:im|ex)plicit_convolve_[sdh]gemm|\bprecomputed_convolve_[sdh]gemm"
    r"|\bwgrad_alg0_engine|\b[dw]grad(?:2d)?_(?:alg\w+_)?engine|\bwinograd|\bfft[12]d_[rc]2[rc]|\bconv2d_grouped_direct"
)
_MATRIX_TYPES = re.compile(
    r"MmaTensorOp|OpClass(?:Wmma)?TensorOp|SM\d+_\w*MMA|MainloopSm(?:90|100|120)\w*(?:Gmma|Umma)"
)
# Tensor core operands by the first compute capability that multiplies them so.
# Source: CUDA C++ Programming Guide 13.0, Tensor core input data types supported by compute capability.
_FIRST_CAPABILITY = {
    DataType.FP16: (7, 0),
    DataType.FP16_FP16_ACCUMULATE: (7, 0),
    DataType.INT8: (7, 2),
    DataType.FP32: (8, 0),  # as TF32
    DataType.TF32: (8, 0),
    DataType.BF16: (8, 0),
    DataType.FP8: (8, 9),
    DataType.FP8_FP16_ACCUMULATE: (8, 9),
    DataType.FP4: (10, 0),
}
# Double precision runs faster on tensor cores only here: 8.6 and later consumer chips have a token rate, and
# 10.0 has the same peak on both. Source: NVIDIA A100, H100 and B200 datasheets.
_FP64_CAPABILITIES = frozenset(((8, 0), (9, 0)))
_OPERANDS = {
    "f64": DataType.FP64, "f32": DataType.FP32, "tf32": DataType.TF32, "f16": DataType.FP16,
    "bf16": DataType.BF16, "e4m3": DataType.FP8, "e5m2": DataType.FP8, "e4m3fnuz": DataType.FP8,
    "e5m2fnuz": DataType.FP8, "s8": DataType.INT8, "u8": DataType.INT8, "e2m1": DataType.FP4,
    "cf64": DataType.FP64, "cf32": DataType.FP32, "cf16": DataType.FP16, "cbf16": DataType.BF16,
}  # fmt: skip
# Types that `tl.dot` of Triton always gives to matrix instructions; fp32 depends on the precision asked.
_DOT_TYPES = frozenset((DataType.FP16, DataType.BF16, DataType.FP8, DataType.INT8))


def tensor_core_use(
    kernel: DecodedKernel, data_type: DataType | None = None, compute_capability: str | None = None
) -> TensorCoreUse | None:
    """What one kernel did; None where its name or the device does not tell.

    Without a type of the operands, what the name says counts.
    """
    if kernel.family is None:
        return None
    if not is_product(kernel):
        return TensorCoreUse.NOT_APPLICABLE
    use, operands = _read(kernel, data_type), data_type or operand_type(kernel)
    if use is not TensorCoreUse.ELIGIBLE:
        return use
    # Eligible only where the device has tensor cores for the operands.
    available = None if operands is None else has_tensor_cores_for(operands, compute_capability)
    return None if available is None else use if available else TensorCoreUse.NOT_APPLICABLE


def passes_of(kernel: DecodedKernel, data_type: DataType | None) -> int:
    """How often matrix instructions multiply each pair of numbers."""
    is_fp32 = (operand_type(kernel) or data_type) in (DataType.FP32, DataType.TF32)
    is_split = kernel.tensor_core is None and _memory_efficient(kernel, data_type) is TensorCoreUse.USED
    # fp32 split in two TF32 numbers each, multiplied in three passes.
    # Source: NVIDIA/cutlass, include/cutlass/arch/mma.h (`OpMultiplyAddFastF32`).
    return 3 if is_fp32 and is_split else 1


def is_product(kernel: DecodedKernel) -> bool:
    """Whether a kernel multiplies matrices, convolves or attends, so that tensor cores may do its work."""
    return kernel.family in _PRODUCTS and _PARTS.search(kernel.function or kernel.name) is None


def operand_type(kernel: DecodedKernel) -> DataType | None:
    """Type a kernel multiplies in, as its name says: of the multiplication where it names that apart."""
    if kernel.multiply_type in _OPERANDS:
        return _OPERANDS[kernel.multiply_type]
    return None if kernel.operand_type is None else _OPERANDS.get(kernel.operand_type)


def has_tensor_cores_for(data_type: DataType, compute_capability: str | None) -> bool | None:
    """Whether tensor cores take such operands, faster than CUDA cores do; None for an unknown device."""
    major, dot, minor = (compute_capability or "").partition(".")
    if not (dot and major.isdecimal() and minor.isdecimal()):
        return None
    capability = int(major), int(minor)
    if data_type in (DataType.FP64, DataType.FP64_TENSOR):
        return capability in _FP64_CAPABILITIES
    return capability >= _FIRST_CAPABILITY[data_type]


def _read(  # noqa: PLR0911 - each sign says what it tells
    kernel: DecodedKernel, data_type: DataType | None
) -> TensorCoreUse | None:
    """What the name tells, by the first sign that does; None without any.

    FlashAttention exists for matrix instructions alone.
    Source: Dao-AILab/flash-attention, csrc/flash_attn/src/kernel_traits.h (`MMA_Atom`).
    """
    used, eligible = TensorCoreUse.USED, TensorCoreUse.ELIGIBLE
    if _NARROW.search(kernel.name):
        return TensorCoreUse.NOT_APPLICABLE
    if kernel.tensor_core is not None:  # what the grammar of the name says
        return used if kernel.tensor_core else eligible
    if (found := _memory_efficient(kernel, data_type)) is not None:
        return found
    if kernel.family == "attention_flash":
        return used
    if kernel.variant == "template":
        # Types of CUTLASS that an instance of its templates is made of.
        # Source: NVIDIA/cutlass, include/cutlass/gemm/warp (`MmaTensorOp`, `MmaSimt`), include/cute/arch.
        if _MATRIX_TYPES.search(kernel.name):
            return used
        if "MmaSimt" in kernel.name or "OpClassSimt" in kernel.name:
            return eligible
    has_instruction = kernel.library == "tensile" and kernel.mma_shape is not None
    if has_instruction or (kernel.library == "triton" and data_type in _DOT_TYPES):
        return used
    return eligible if _CUDA_CORE_FUNCTIONS.search(kernel.function or kernel.name) else None


def _memory_efficient(kernel: DecodedKernel, data_type: DataType | None) -> TensorCoreUse | None:
    """Kernels of memory-efficient attention, whose source says what each architecture and type runs on.

    Source: pytorch, aten/src/ATen/native/transformers/cuda/mem_eff_attention/gemm_kernel_utils.h
    (`DefaultGemmType`).
    """
    architecture = (kernel.architecture or "").removeprefix("sm")
    operand = operand_type(kernel) or data_type
    if kernel.family != "attention_mem_efficient" or not architecture.isdecimal() or operand is None:
        return None
    least = {DataType.FP32: 80, DataType.TF32: 80, DataType.FP16: 70}.get(operand, 75)
    return TensorCoreUse.USED if int(architecture) >= least else TensorCoreUse.ELIGIBLE
