// Elements of the three types, one at a time and 16 bytes at a time; and what every launcher needs.

#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "launchers.h"

namespace opscope {

// Arithmetic is in float whatever the element type; a result is rounded once, when it is stored.
__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(__half value) { return __half2float(value); }
__device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

template <typename T>
__device__ __forceinline__ T from_float(float value);
template <>
__device__ __forceinline__ float from_float<float>(float value) { return value; }
template <>
__device__ __forceinline__ __half from_float<__half>(float value) { return __float2half_rn(value); }
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

// A thread's widest memory access is 16 bytes: 4 floats or 8 halves. One such access takes one instruction
// where single elements take 4 or 8, so that more bytes are on their way from memory at any moment.
constexpr int kVectorBytes = 16;

template <typename T>
constexpr int kVectorWidth = kVectorBytes / static_cast<int>(sizeof(T));

// kWidth neighboring elements. The alignment is what lets the compiler move them in one access.
template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth) Pack {
  T values[kWidth];
};

// 16-byte accesses need addresses that are multiples of 16. PyTorch's allocations are; x[1:] is not.
inline bool is_vector_aligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % kVectorBytes == 0;
}

inline int64_t divide_up(int64_t count, int64_t by) { return (count + by - 1) / by; }

// Threads per block of the versions to learn from.
constexpr int kTeachingThreads = 256;

// gridDim.x may be this large; only gridDim.y and gridDim.z end at 65,535.
constexpr int64_t kMaxBlocks = 2147483647;

// Calls `launch` with a value of the C++ type that `type` names.
template <typename Launch>
cudaError_t with_element_type(ElementType type, Launch launch) {
  switch (type) {
    case ElementType::kFloat32:
      return launch(float{});
    case ElementType::kFloat16:
      return launch(__half{});
    case ElementType::kBFloat16:
      return launch(__nv_bfloat16{});
  }
  return cudaErrorInvalidValue;
}

}  // namespace opscope
