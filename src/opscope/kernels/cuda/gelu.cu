// GELU: x times the probability that a standard normal variable is below x.
//
// Two formulas, the same two as torch.nn.functional.gelu (aten/src/ATen/native/cuda/ActivationGeluKernel.cu):
//   erf   y = x / 2 * (1 + erf(x / sqrt(2)))                                      exact
//   tanh  y = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))             an approximation
// Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", arXiv 1606.08415.

#include "elementwise.cuh"

namespace opscope {
namespace {

constexpr float kSqrtHalf = 0.70710678118654752f;      // 1 / sqrt(2)
constexpr float kSqrtTwoOverPi = 0.79788456080286536f;  // sqrt(2 / pi)
constexpr float kCubic = 0.044715f;

// The formula is a template parameter: it is chosen when the kernel is compiled, not once per element.
template <GeluFormula kFormula>
__device__ __forceinline__ float gelu(float x) {
  if constexpr (kFormula == GeluFormula::kErf) {
    return x * 0.5f * (1.0f + erff(x * kSqrtHalf));
  } else {
    const float inner = kSqrtTwoOverPi * (x + kCubic * (x * x * x));
    return 0.5f * x * (1.0f + tanhf(inner));
  }
}

// The version to learn from: one element per thread. It is one kernel, where writing the formula in PyTorch
// launches one for each operation and moves every intermediate result to memory and back: that is the larger
// gain. What the good version adds is told in elementwise.cuh.
template <typename T, GeluFormula kFormula>
__global__ void gelu_teaching_kernel(const T* x, T* y, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) {
    y[i] = from_float<T>(gelu<kFormula>(to_float(x[i])));
  }
}

// The good version: packs of 16 bytes, several per thread.
template <typename T, int kWidth, GeluFormula kFormula>
__global__ void __launch_bounds__(kThreads) gelu_kernel(const T* __restrict__ x, T* __restrict__ y,
                                                        int64_t count) {
  map_elements<T, kWidth>(x, y, count, [](float value) { return gelu<kFormula>(value); });
}

template <typename T, int kWidth, GeluFormula kFormula>
cudaError_t launch(const void* x, void* y, int64_t count, cudaStream_t stream) {
  const int64_t blocks = elementwise_blocks<kWidth>(count);
  if (blocks > kMaxBlocks) {
    return cudaErrorInvalidConfiguration;
  }
  gelu_kernel<T, kWidth, kFormula><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      static_cast<const T*>(x), static_cast<T*>(y), count);
  return cudaGetLastError();
}

template <typename T, GeluFormula kFormula>
cudaError_t launch_aligned(const void* x, void* y, int64_t count, cudaStream_t stream) {
  const bool aligned = is_vector_aligned(x) && is_vector_aligned(y);
  return aligned ? launch<T, kVectorWidth<T>, kFormula>(x, y, count, stream)
                 : launch<T, 1, kFormula>(x, y, count, stream);
}

template <typename T, GeluFormula kFormula>
cudaError_t launch_teaching(const void* x, void* y, int64_t count, cudaStream_t stream) {
  const int64_t blocks = divide_up(count, kTeachingThreads);
  if (blocks > kMaxBlocks) {
    return cudaErrorInvalidConfiguration;
  }
  gelu_teaching_kernel<T, kFormula><<<static_cast<unsigned>(blocks), kTeachingThreads, 0, stream>>>(
      static_cast<const T*>(x), static_cast<T*>(y), count);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_gelu(const void* x, void* y, int64_t count, ElementType type, GeluFormula formula,
                        cudaStream_t stream) {
  return with_element_type(type, [=](auto example) {
    using T = decltype(example);
    return formula == GeluFormula::kErf ? launch_aligned<T, GeluFormula::kErf>(x, y, count, stream)
                                        : launch_aligned<T, GeluFormula::kTanh>(x, y, count, stream);
  });
}

cudaError_t launch_gelu_teaching(const void* x, void* y, int64_t count, ElementType type, GeluFormula formula,
                                 cudaStream_t stream) {
  return with_element_type(type, [=](auto example) {
    using T = decltype(example);
    return formula == GeluFormula::kErf ? launch_teaching<T, GeluFormula::kErf>(x, y, count, stream)
                                        : launch_teaching<T, GeluFormula::kTanh>(x, y, count, stream);
  });
}

}  // namespace opscope
