// y = x * x.

#include "elementwise.cuh"

namespace opscope {
namespace {

// The version to learn from: one element per thread. Every thread reads 4 bytes (2 of a half type), waits for
// them, and ends: too few bytes are on their way to keep the memory busy.
template <typename T>
__global__ void square_teaching_kernel(const T* x, T* y, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) {
    const float value = to_float(x[i]);
    y[i] = from_float<T>(value * value);
  }
}

// The good version: packs of 16 bytes, several per thread. See elementwise.cuh for why.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads) square_kernel(const T* __restrict__ x, T* __restrict__ y,
                                                          int64_t count) {
  map_elements<T, kWidth>(x, y, count, [](float value) { return value * value; });
}

template <typename T, int kWidth>
cudaError_t launch(const void* x, void* y, int64_t count, cudaStream_t stream) {
  const int64_t blocks = elementwise_blocks<kWidth>(count);
  if (blocks > kMaxBlocks) {
    return cudaErrorInvalidConfiguration;
  }
  square_kernel<T, kWidth><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      static_cast<const T*>(x), static_cast<T*>(y), count);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_square(const void* x, void* y, int64_t count, ElementType type, cudaStream_t stream) {
  return with_element_type(type, [=](auto example) {
    using T = decltype(example);
    const bool aligned = is_vector_aligned(x) && is_vector_aligned(y);
    return aligned ? launch<T, kVectorWidth<T>>(x, y, count, stream) : launch<T, 1>(x, y, count, stream);
  });
}

cudaError_t launch_square_teaching(const void* x, void* y, int64_t count, ElementType type,
                                   cudaStream_t stream) {
  return with_element_type(type, [=](auto example) {
    using T = decltype(example);
    const int64_t blocks = divide_up(count, kTeachingThreads);
    if (blocks > kMaxBlocks) {
      return cudaErrorInvalidConfiguration;
    }
    square_teaching_kernel<<<static_cast<unsigned>(blocks), kTeachingThreads, 0, stream>>>(
        static_cast<const T*>(x), static_cast<T*>(y), count);
    return cudaGetLastError();
  });
}

}  // namespace opscope
