"""Short names of element types (`f32`, `bf16`, `e4m3`) for the spellings that occur in kernel names.

A type that tells only its size (`OpaqueType<4>`) or none of data (`TensorInfo<…>`) has no short name.
"""

from __future__ import annotations


_SPELLINGS = {
    "f64": "double f64 fp64 float64 Double",
    "f32": "float f32 fp32 float32 float32_t Float",
    "tf32": "tf32 cutlass::tfloat32_t tfloat32_t",
    "f16": "c10::Half at::Half Half half __half half_t cutlass::half_t f16 fp16 float16",
    "bf16": "c10::BFloat16 at::BFloat16 BFloat16 __nv_bfloat16 cutlass::bfloat16_t bfloat16_t bf16",
    "e4m3": "c10::Float8_e4m3fn __nv_fp8_e4m3 cutlass::float_e4m3_t float_e4m3_t e4m3 f8e4m3 fp8e4m3",
    "e5m2": "c10::Float8_e5m2 __nv_fp8_e5m2 cutlass::float_e5m2_t float_e5m2_t e5m2 f8e5m2 fp8e5m2",
    "e4m3fnuz": "c10::Float8_e4m3fnuz",
    "e5m2fnuz": "c10::Float8_e5m2fnuz",
    "e8m0": "c10::Float8_e8m0fnu cutlass::float_ue8m0_t ue8m0",
    "e2m1": "cutlass::float_e2m1_t e2m1",
    "s64": "long int64_t s64 i64 int64",
    "s32": "int int32_t s32 i32 int32",
    "s16": "short int16_t s16 i16 int16",
    "s8": "char int8_t s8 i8 int8",
    "u64": "u64 uint64_t uint64",
    "u32": "unsigned u32 uint32_t uint32",
    "u16": "u16 uint16_t uint16",
    "u8": "u8 uint8_t uint8",
    "s4": "s4",
    "u4": "u4",
    "b1": "b1",
    "bool": "bool",
    "cf16": "c10::complex<c10::Half> cf16",
    "cbf16": "cbf16",
    "cf32": "c10::complex<float> thrust::complex<float> cuComplex float2 cf32",
    "cf64": "c10::complex<double> thrust::complex<double> cuDoubleComplex double2 cf64",
    "cs8": "ci8",
}
_BY_SPELLING = {spelling: short for short, spellings in _SPELLINGS.items() for spelling in spellings.split()}
_BY_SPELLING.update(
    {
        "signed char": "s8",
        "unsigned char": "u8",
        "unsigned short": "u16",
        "unsigned int": "u32",
        "unsigned long": "u64",
        "unsigned long long": "u64",
        "long long": "s64",
    }
)
_FLOATING_TYPES = "f64 f32 tf32 f16 bf16 e4m3 e5m2 e4m3fnuz e5m2fnuz e8m0 e2m1"
FLOATING = frozenset((*_FLOATING_TYPES.split(" "), "cf16", "cbf16", "cf32", "cf64"))
# Accumulator letters of CUTLASS names (cutlass_library `short_math_name`) and of those like them.
_LETTERS = {
    "s": "f32",
    "d": "f64",
    "h": "f16",
    "c": "cf32",
    "z": "cf64",
    "i": "s32",
    "gc": "cf32",
    "gz": "cf64",
}


def element_type(spelling: str) -> str | None:
    """Short name of a type as it is spelled in a name; None if it is no element type.

    `const`, pointers and references are looked through.
    """
    short = _BY_SPELLING.get(spelling)
    if short is None and spelling[-1:] in "*&t ":
        stripped = spelling.rstrip("*& ").removesuffix(" const").rstrip("*& ")
        short = _BY_SPELLING.get(stripped)
    return short


def letter_type(letters: str) -> str | None:
    """Type of a BLAS-like letter, `s` for f32."""
    return _LETTERS.get(letters)
