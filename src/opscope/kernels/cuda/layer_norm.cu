// layer_norm over the last dimension: y = (x - mean) / sqrt(variance + eps) * weight + bias, row by row. The
// variance is that of the row itself (divided by its length), as in torch.nn.functional.layer_norm.
//
// The variance is the mean of (x - mean)^2 and not mean(x^2) - mean^2: for a row like 1000.1, 1000.2, ... the
// latter is a small difference of two large numbers, of which nothing is left in float.

#include "rows.cuh"

namespace opscope {
namespace {

// The version to learn from: a block per row, which reads the row three times, for mean, variance and result.
// Reductions are trees in shared memory.
template <typename T>
__global__ void layer_norm_teaching_kernel(const T* x, const T* weight, const T* bias, T* y, int64_t rows,
                                           int64_t columns, float eps) {
  __shared__ float shared[kTeachingThreads];
  const auto add = [](float a, float b) { return a + b; };
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* in = x + row * columns;
    T* out = y + row * columns;

    float sum = 0.0f;
    for (int64_t i = threadIdx.x; i < columns; i += blockDim.x) {
      sum += to_float(in[i]);
    }
    const float mean = tree_reduce(sum, shared, add) / columns;

    float squares = 0.0f;
    for (int64_t i = threadIdx.x; i < columns; i += blockDim.x) {
      const float deviation = to_float(in[i]) - mean;
      squares += deviation * deviation;
    }
    const float variance = tree_reduce(squares, shared, add) / columns;

    const float scale = rsqrtf(variance + eps);
    for (int64_t i = threadIdx.x; i < columns; i += blockDim.x) {
      out[i] = from_float<T>((to_float(in[i]) - mean) * scale * to_float(weight[i]) + to_float(bias[i]));
    }
  }
}

// Sum over the threads of a row. `partial` must not be that of another sum: a slow warp may still be reading it.
template <int kThreads>
__device__ __forceinline__ float row_sum(float value, float* partial) {
  value = warp_sum(value);
  if constexpr (kThreads > kWarp) {
    const int lane = threadIdx.x % kWarp;
    if (lane == 0) {
      partial[threadIdx.x / kWarp] = value;
    }
    __syncthreads();
    value = warp_sum(lane < kThreads / kWarp ? partial[lane] : 0.0f);
  }
  return value;
}

// Writes one pack of the result. Weight and bias are the same for all rows and come from cache.
template <typename T, int kWidth>
__device__ __forceinline__ void write_pack(const float (&values)[kWidth], const T* __restrict__ weight,
                                           const T* __restrict__ bias, T* __restrict__ out, int64_t number,
                                           float mean, float scale) {
  const auto w = reinterpret_cast<const Pack<T, kWidth>*>(weight)[number];
  const auto b = reinterpret_cast<const Pack<T, kWidth>*>(bias)[number];
  Pack<T, kWidth> result;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    const float normal = (values[j] - mean) * scale;
    result.values[j] = from_float<T>(normal * to_float(w.values[j]) + to_float(b.values[j]));
  }
  reinterpret_cast<Pack<T, kWidth>*>(out)[number] = result;
}

// Blocks a multiprocessor should hold; see softmax.cu. Four do not fit here: registers would spill.
template <int kThreads, int kElements>
constexpr int kLeastBlocks = kThreads == 256 && kElements == 32 ? 3 : 1;

// The good version: the row stays in registers between its one read and its one write, so that the second
// pass, over the deviations, costs no memory traffic.
template <typename T, int kWidth, int kThreads, int kElements>
__global__ void __launch_bounds__(kBlockThreads<kThreads>, kLeastBlocks<kThreads, kElements>)
    layer_norm_kernel(const T* __restrict__ x, const T* __restrict__ weight, const T* __restrict__ bias,
                      T* __restrict__ y, int64_t rows, int columns, float eps) {
  constexpr int kPacks = kElements / kWidth;
  __shared__ float partial[2][kWarp];
  const int packs = columns / kWidth;
  const int64_t row = row_of_thread<kThreads>();
  if (row >= rows) {
    return;
  }
  float values[kPacks][kWidth];
  load_share<kThreads>(x + row * columns, packs, 0.0f, values);

  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    sum += values[i / kWidth][i % kWidth];
  }
  const float mean = row_sum<kThreads>(sum, partial[0]) / columns;

  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (pack_of_row<kThreads>(i) < packs) {  // The filler is no element: it has no deviation.
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const float deviation = values[i][j] - mean;
        squares += deviation * deviation;
      }
    }
  }
  const float scale = rsqrtf(row_sum<kThreads>(squares, partial[1]) / columns + eps);

#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int number = pack_of_row<kThreads>(i);
    if (number < packs) {
      write_pack<T, kWidth>(values[i], weight, bias, y + row * columns, number, mean, scale);
    }
  }
}

// Count, mean and sum of squared deviations of some elements.
struct Moments {
  float count;
  float mean;
  float squares;
};

// Moments of two sets together.
// Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances",
// Stanford STAN-CS-79-773, 1979, formula (2.1).
__device__ __forceinline__ Moments join(Moments a, Moments b) {
  const float count = a.count + b.count;
  if (count == 0.0f) {
    return a;
  }
  const float difference = b.mean - a.mean;
  const float share = b.count / count;
  return {count, a.mean + difference * share,
          a.squares + b.squares + difference * difference * a.count * share};
}

__device__ __forceinline__ Moments join_warp(Moments part) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    part = join(part, {__shfl_xor_sync(kAllLanes, part.count, distance),
                       __shfl_xor_sync(kAllLanes, part.mean, distance),
                       __shfl_xor_sync(kAllLanes, part.squares, distance)});
  }
  return part;
}

// Joins what the threads of a long row found.
__device__ __forceinline__ Moments join_row(Moments part, Moments* partial) {
  part = join_warp(part);
  const int lane = threadIdx.x % kWarp;
  if (lane == 0) {
    partial[threadIdx.x / kWarp] = part;
  }
  __syncthreads();
  return join_warp(lane < kLongThreads / kWarp ? partial[lane] : Moments{0.0f, 0.0f, 0.0f});
}

// Moments of the packs that this thread has loaded.
template <int kWidth, int kPacks>
__device__ __forceinline__ Moments moments_of(const float (&values)[kPacks][kWidth], int packs) {
  float count = 0.0f;
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    count += pack_of_row<kLongThreads>(i) < packs ? kWidth : 0;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      sum += values[i][j];
    }
  }
  const float mean = count > 0.0f ? sum / count : 0.0f;
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (pack_of_row<kLongThreads>(i) < packs) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        squares += (values[i][j] - mean) * (values[i][j] - mean);
      }
    }
  }
  return {count, mean, squares};
}

// Rows that do not fit in registers: mean and variance in one pass, over stretches that do, then a second
// pass that writes.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kLongThreads)
    layer_norm_long_kernel(const T* __restrict__ x, const T* __restrict__ weight, const T* __restrict__ bias,
                           T* __restrict__ y, int64_t rows, int64_t columns, float eps) {
  constexpr int kPacks = kLongElements / kWidth;
  constexpr int kStep = kLongThreads * kLongElements;
  __shared__ Moments partial[kWarp];
  const int64_t row = row_of_thread<kLongThreads>();
  if (row < rows) {
    const T* in = x + row * columns;
    float values[kPacks][kWidth];

    Moments own{0.0f, 0.0f, 0.0f};
    for (int64_t first = 0; first < columns; first += kStep) {
      const int packs = packs_in_step<kWidth>(columns - first);
      load_share<kLongThreads>(in + first, packs, 0.0f, values);
      own = join(own, moments_of(values, packs));
    }

    const Moments whole = join_row(own, partial);
    const float scale = rsqrtf(whole.squares / columns + eps);
    for (int64_t first = 0; first < columns; first += kStep) {
      const int packs = packs_in_step<kWidth>(columns - first);
      load_share<kLongThreads>(in + first, packs, 0.0f, values);
#pragma unroll
      for (int i = 0; i < kPacks; ++i) {
        const int number = pack_of_row<kLongThreads>(i);
        if (number < packs) {
          write_pack<T, kWidth>(values[i], weight + first, bias + first, y + row * columns + first, number,
                                whole.mean, scale);
        }
      }
    }
  }
}

template <typename T>
struct Arguments {
  const T* x;
  const T* weight;
  const T* bias;
  T* y;
  int64_t rows;
  int64_t columns;
  float eps;
  cudaStream_t stream;
};

template <typename T, int kWidth>
cudaError_t launch(const Arguments<T>& a) {
  if (a.columns > kLongestRow) {
    layer_norm_long_kernel<T, kWidth><<<row_grid<kLongThreads>(a.rows), kLongThreads, 0, a.stream>>>(
        a.x, a.weight, a.bias, a.y, a.rows, a.columns, a.eps);
    return cudaGetLastError();
  }
  return with_row_shape<T>(a.columns, [&a](auto threads, auto elements) {
    constexpr int kThreads = decltype(threads)::value;
    constexpr int kElements = decltype(elements)::value;
    layer_norm_kernel<T, kWidth, kThreads, kElements>
        <<<row_grid<kThreads>(a.rows), row_block<kThreads>(), 0, a.stream>>>(
            a.x, a.weight, a.bias, a.y, a.rows, static_cast<int>(a.columns), a.eps);
    return cudaGetLastError();
  });
}

}  // namespace

cudaError_t launch_layer_norm(const void* x, const void* weight, const void* bias, void* y, int64_t rows,
                              int64_t columns, float eps, ElementType type, cudaStream_t stream) {
  return with_element_type(type, [=](auto example) {
    using T = decltype(example);
    const Arguments<T> arguments{static_cast<const T*>(x),    static_cast<const T*>(weight),
                                 static_cast<const T*>(bias), static_cast<T*>(y),
                                 rows,                        columns,
                                 eps,                         stream};
    const bool aligned = is_vector_aligned(x) && is_vector_aligned(weight) && is_vector_aligned(bias) &&
                         is_vector_aligned(y) && columns % kVectorWidth<T> == 0;
    return aligned ? launch<T, kVectorWidth<T>>(arguments) : launch<T, 1>(arguments);
  });
}

cudaError_t launch_layer_norm_teaching(const void* x, const void* weight, const void* bias, void* y,
                                       int64_t rows, int64_t columns, float eps, ElementType type,
                                       cudaStream_t stream) {
  return with_element_type(type, [=](auto example) {
    using T = decltype(example);
    layer_norm_teaching_kernel<<<teaching_blocks(rows), kTeachingThreads, 0, stream>>>(
        static_cast<const T*>(x), static_cast<const T*>(weight), static_cast<const T*>(bias),
        static_cast<T*>(y), rows, columns, eps);
    return cudaGetLastError();
  });
}

}  // namespace opscope
