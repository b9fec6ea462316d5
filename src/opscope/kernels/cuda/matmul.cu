// c = a @ b for row-major a[m, k], b[k, n], c[m, n].

#include "elements.cuh"

namespace opscope {
namespace {

constexpr int kTile = 16;  // A block is 16 x 16 threads, one for each element of a square of c.

// The version to learn from, and the only one here: one output element per thread. For each it reads a row
// of a and a column of b from memory or cache, 2 k elements for 2 k operations, and uses no tensor core.
// What a good one does differently (tiles in shared memory and registers, tensor cores, copies that run
// ahead) is in the Triton version and in cuBLAS.
//
// Neighboring threads (threadIdx.x) take neighboring columns: 16 of them then read b in one stretch, and the
// same element of a. Exchange the two, and each reads b from another stretch: many times slower.
template <typename T>
__global__ void matmul_teaching_kernel(const T* a, const T* b, T* c, int64_t m, int64_t n, int64_t k) {
  // blockIdx.y would end at 65,535, so the squares are numbered along x alone, row by row.
  const int64_t tiles_across = (n + kTile - 1) / kTile;
  const int64_t row = blockIdx.x / tiles_across * kTile + threadIdx.y;
  const int64_t column = blockIdx.x % tiles_across * kTile + threadIdx.x;
  if (row >= m || column >= n) {
    return;
  }
  float sum = 0.0f;  // In float for the half types too: k roundings to 8 bits would leave nothing.
  for (int64_t i = 0; i < k; ++i) {
    sum += to_float(a[row * k + i]) * to_float(b[i * n + column]);
  }
  c[row * n + column] = from_float<T>(sum);
}

}  // namespace

cudaError_t launch_matmul_teaching(const void* a, const void* b, void* c, int64_t m, int64_t n, int64_t k,
                                   ElementType type, cudaStream_t stream) {
  return with_element_type(type, [=](auto example) {
    using T = decltype(example);
    const int64_t blocks = divide_up(m, kTile) * divide_up(n, kTile);
    if (blocks > kMaxBlocks) {
      return cudaErrorInvalidConfiguration;
    }
    matmul_teaching_kernel<<<static_cast<unsigned>(blocks), dim3(kTile, kTile), 0, stream>>>(
        static_cast<const T*>(a), static_cast<const T*>(b), static_cast<T*>(c), m, n, k);
    return cudaGetLastError();
  });
}

}  // namespace opscope
