// y = a + b, element by element.

#include "elementwise.cuh"

namespace opscope {
namespace {

// The version to learn from: one element per thread.
template <typename T>
__global__ void add_teaching_kernel(const T* a, const T* b, T* y, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) {
    y[i] = from_float<T>(to_float(a[i]) + to_float(b[i]));
  }
}

// The good version: the packs of both inputs are requested before the first addition waits for one.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads) add_kernel(const T* __restrict__ a, const T* __restrict__ b,
                                                       T* __restrict__ y, int64_t count) {
  const int64_t packs = count / kWidth;
  Pack<T, kWidth> from_a[kPacksPerThread];
  Pack<T, kWidth> from_b[kPacksPerThread];
  load_packs<T, kWidth>(a, packs, from_a);
  load_packs<T, kWidth>(b, packs, from_b);
#pragma unroll
  for (int i = 0; i < kPacksPerThread; ++i) {
    const int64_t number = pack_number(i);
    if (number < packs) {
      Pack<T, kWidth> sum;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        sum.values[j] = from_float<T>(to_float(from_a[i].values[j]) + to_float(from_b[i].values[j]));
      }
      reinterpret_cast<Pack<T, kWidth>*>(y)[number] = sum;
    }
  }
  const int64_t element = leftover_element<kWidth>(count);
  if (element < count) {
    y[element] = from_float<T>(to_float(a[element]) + to_float(b[element]));
  }
}

template <typename T, int kWidth>
cudaError_t launch(const void* a, const void* b, void* y, int64_t count, cudaStream_t stream) {
  const int64_t blocks = elementwise_blocks<kWidth>(count);
  if (blocks > kMaxBlocks) {
    return cudaErrorInvalidConfiguration;
  }
  add_kernel<T, kWidth><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      static_cast<const T*>(a), static_cast<const T*>(b), static_cast<T*>(y), count);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_add(const void* a, const void* b, void* y, int64_t count, ElementType type,
                       cudaStream_t stream) {
  return with_element_type(type, [=](auto example) {
    using T = decltype(example);
    const bool aligned = is_vector_aligned(a) && is_vector_aligned(b) && is_vector_aligned(y);
    return aligned ? launch<T, kVectorWidth<T>>(a, b, y, count, stream)
                   : launch<T, 1>(a, b, y, count, stream);
  });
}

cudaError_t launch_add_teaching(const void* a, const void* b, void* y, int64_t count, ElementType type,
                                cudaStream_t stream) {
  return with_element_type(type, [=](auto example) {
    using T = decltype(example);
    const int64_t blocks = divide_up(count, kTeachingThreads);
    if (blocks > kMaxBlocks) {
      return cudaErrorInvalidConfiguration;
    }
    add_teaching_kernel<<<static_cast<unsigned>(blocks), kTeachingThreads, 0, stream>>>(
        static_cast<const T*>(a), static_cast<const T*>(b), static_cast<T*>(y), count);
    return cudaGetLastError();
  });
}

}  // namespace opscope
