// softmax over the last dimension: y = exp(x - max(x)) / sum(exp(x - max(x))), row by row.
//
// The maximum is subtracted because exp(89) is already more than a float can hold; it cancels in the
// division.

#include "rows.cuh"

namespace opscope {
namespace {

// The version to learn from: a block per row, which reads the row three times, for the maximum, the sum and
// the result, and computes every exponential twice. Reductions are trees in shared memory.
template <typename T>
__global__ void softmax_teaching_kernel(const T* x, T* y, int64_t rows, int64_t columns) {
  __shared__ float shared[kTeachingThreads];
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* in = x + row * columns;
    T* out = y + row * columns;

    float maximum = -INFINITY;
    for (int64_t i = threadIdx.x; i < columns; i += blockDim.x) {
      maximum = fmaxf(maximum, to_float(in[i]));
    }
    maximum = tree_reduce(maximum, shared, [](float a, float b) { return fmaxf(a, b); });

    float sum = 0.0f;
    for (int64_t i = threadIdx.x; i < columns; i += blockDim.x) {
      sum += expf(to_float(in[i]) - maximum);
    }
    sum = tree_reduce(sum, shared, [](float a, float b) { return a + b; });

    for (int64_t i = threadIdx.x; i < columns; i += blockDim.x) {
      out[i] = from_float<T>(expf(to_float(in[i]) - maximum) / sum);
    }
  }
}

// Maximum of some elements, and the sum of exp(element - maximum) over them.
struct MaxSum {
  float maximum;
  float sum;
};

// What to subtract: the maximum; but 0 where all elements are -inf, as -inf - (-inf) is NaN. Then exp(-inf)
// makes the sum 0, which is right for a part of a row; a row whose sum stays 0 becomes 0 / 0 = NaN, as in
// PyTorch.
__device__ __forceinline__ float shift_of(float maximum) { return maximum == -INFINITY ? 0.0f : maximum; }

// Joins what the lanes of a warp found. One exponential, because sums are brought to the common maximum
// first.
__device__ __forceinline__ MaxSum join_warp(MaxSum part) {
  const float maximum = warp_max(part.maximum);
  return {maximum, warp_sum(part.sum * expf(part.maximum - shift_of(maximum)))};
}

// Joins what the threads of a row found. Maximum and sum travel together, so a row costs one barrier instead
// of two.
template <int kThreads>
__device__ __forceinline__ MaxSum join_row(MaxSum part, MaxSum* partial) {
  part = join_warp(part);
  if constexpr (kThreads > kWarp) {
    const int lane = threadIdx.x % kWarp;
    if (lane == 0) {
      partial[threadIdx.x / kWarp] = part;
    }
    __syncthreads();
    part = join_warp(lane < kThreads / kWarp ? partial[lane] : MaxSum{-INFINITY, 0.0f});
  }
  return part;
}

// Blocks a multiprocessor should hold. Without this the compiler takes so many registers for 32 elements that
// only three blocks of 256 threads fit: 9 % slower for bfloat16 at 8192 x 8192 on an H200.
template <int kThreads, int kElements>
constexpr int kLeastBlocks = kThreads == 256 && kElements == 32 ? 4 : 1;

// The good version: the row stays in registers between its one read and its one write, and each exponential
// is computed once. A thread shifts by its own maximum, which it knows without waiting for the others, and
// corrects by one factor in the end: exp(x - max) = exp(x - own) * exp(own - max).
template <typename T, int kWidth, int kThreads, int kElements>
__global__ void __launch_bounds__(kBlockThreads<kThreads>, kLeastBlocks<kThreads, kElements>)
    softmax_kernel(const T* __restrict__ x, T* __restrict__ y, int64_t rows, int columns) {
  constexpr int kPacks = kElements / kWidth;
  __shared__ MaxSum partial[kWarp];
  const int packs = columns / kWidth;
  const int64_t row = row_of_thread<kThreads>();
  if (row >= rows) {
    return;
  }
  float values[kPacks][kWidth];
  load_share<kThreads>(x + row * columns, packs, -INFINITY, values);

  MaxSum own{-INFINITY, 0.0f};
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    own.maximum = fmaxf(own.maximum, values[i / kWidth][i % kWidth]);
  }
  const float shift = shift_of(own.maximum);
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    float& value = values[i / kWidth][i % kWidth];
    value = expf(value - shift);
    own.sum += value;
  }

  const MaxSum whole = join_row<kThreads>(own, partial);
  const float factor = expf(own.maximum - shift_of(whole.maximum)) / whole.sum;
  auto* out = reinterpret_cast<Pack<T, kWidth>*>(y + row * columns);
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (pack_of_row<kThreads>(i) < packs) {
      Pack<T, kWidth> result;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        result.values[j] = from_float<T>(values[i][j] * factor);
      }
      out[pack_of_row<kThreads>(i)] = result;
    }
  }
}

// Rows that do not fit in registers: maximum and sum in one pass ("online": when a larger maximum turns up,
// the sum so far is scaled down), then a second pass that writes.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kLongThreads)
    softmax_long_kernel(const T* __restrict__ x, T* __restrict__ y, int64_t rows, int64_t columns) {
  constexpr int kPacks = kLongElements / kWidth;
  constexpr int kStep = kLongThreads * kLongElements;
  __shared__ MaxSum partial[kWarp];
  const int64_t row = row_of_thread<kLongThreads>();
  if (row < rows) {
    const T* in = x + row * columns;
    float values[kPacks][kWidth];

    MaxSum own{-INFINITY, 0.0f};
    for (int64_t first = 0; first < columns; first += kStep) {
      load_share<kLongThreads>(in + first, packs_in_step<kWidth>(columns - first), -INFINITY, values);
      float maximum = own.maximum;
#pragma unroll
      for (int i = 0; i < kLongElements; ++i) {
        maximum = fmaxf(maximum, values[i / kWidth][i % kWidth]);
      }
      const float shift = shift_of(maximum);
      float sum = own.sum * expf(own.maximum - shift);
#pragma unroll
      for (int i = 0; i < kLongElements; ++i) {
        sum += expf(values[i / kWidth][i % kWidth] - shift);
      }
      own = {maximum, sum};
    }

    const MaxSum whole = join_row<kLongThreads>(own, partial);
    const float shift = shift_of(whole.maximum);
    const float factor = 1.0f / whole.sum;
    for (int64_t first = 0; first < columns; first += kStep) {
      const int packs = packs_in_step<kWidth>(columns - first);
      load_share<kLongThreads>(in + first, packs, -INFINITY, values);
      auto* out = reinterpret_cast<Pack<T, kWidth>*>(y + row * columns + first);
#pragma unroll
      for (int i = 0; i < kPacks; ++i) {
        if (pack_of_row<kLongThreads>(i) < packs) {
          Pack<T, kWidth> result;
#pragma unroll
          for (int j = 0; j < kWidth; ++j) {
            result.values[j] = from_float<T>(expf(values[i][j] - shift) * factor);
          }
          out[pack_of_row<kLongThreads>(i)] = result;
        }
      }
    }
  }
}

template <typename T, int kWidth>
cudaError_t launch(const T* x, T* y, int64_t rows, int64_t columns, cudaStream_t stream) {
  if (columns > kLongestRow) {
    softmax_long_kernel<T, kWidth>
        <<<row_grid<kLongThreads>(rows), kLongThreads, 0, stream>>>(x, y, rows, columns);
    return cudaGetLastError();
  }
  return with_row_shape<T>(columns, [=](auto threads, auto elements) {
    constexpr int kThreads = decltype(threads)::value;
    constexpr int kElements = decltype(elements)::value;
    softmax_kernel<T, kWidth, kThreads, kElements>
        <<<row_grid<kThreads>(rows), row_block<kThreads>(), 0, stream>>>(x, y, rows,
                                                                         static_cast<int>(columns));
    return cudaGetLastError();
  });
}

}  // namespace

cudaError_t launch_softmax(const void* x, void* y, int64_t rows, int64_t columns, ElementType type,
                           cudaStream_t stream) {
  return with_element_type(type, [=](auto example) {
    using T = decltype(example);
    const auto* in = static_cast<const T*>(x);
    auto* out = static_cast<T*>(y);
    // Every row begins at a multiple of 16 bytes only if its length is one too.
    const bool aligned = is_vector_aligned(x) && is_vector_aligned(y) && columns % kVectorWidth<T> == 0;
    return aligned ? launch<T, kVectorWidth<T>>(in, out, rows, columns, stream)
                   : launch<T, 1>(in, out, rows, columns, stream);
  });
}

cudaError_t launch_softmax_teaching(const void* x, void* y, int64_t rows, int64_t columns, ElementType type,
                                    cudaStream_t stream) {
  return with_element_type(type, [=](auto example) {
    using T = decltype(example);
    softmax_teaching_kernel<<<teaching_blocks(rows), kTeachingThreads, 0, stream>>>(
        static_cast<const T*>(x), static_cast<T*>(y), rows, columns);
    return cudaGetLastError();
  });
}

}  // namespace opscope
