// What softmax and layer_norm share: both work on rows, and need sums over a whole row before they can write.
//
// The good versions read a row once, keep it in registers while its sums are found, and write it once: the
// least a kernel can move. The threads of a row are
//   * one warp, for rows of up to 512 elements (1,024 of 2 bytes): sums need no barrier, and a block holds
//     several rows;
//   * one block of 64 to 1,024 threads with 16 elements each (32 of 2 bytes): rows of up to 16,384 elements.
// Longer rows are read twice; the second time from L2 cache, as long as the rows at work fit in it.
//
// In a block, threadIdx.x counts the threads of a row and threadIdx.y the rows. The number of threads of a
// row is a template parameter, kThreads, so that the compiler knows the distance between a thread's packs:
// one register then addresses all of them.

#pragma once

#include "elements.cuh"

namespace opscope {

constexpr int kWarp = 32;
constexpr int kFewElements = 8;    // per thread, for rows of up to 256 elements
constexpr int kManyElements = 16;  // per thread; 32 would not fit in the registers of 1,024 threads
constexpr int kLongestRow = 1024 * kManyElements;

// 16 elements of 2 bytes are only two accesses on their way per thread, so these take 32, as long as 256
// threads are enough for the row: at 8,192 columns of bfloat16 that is a quarter faster on an H200.
template <typename T>
constexpr int kMostElements = sizeof(T) == 2 ? 2 * kManyElements : kManyElements;
constexpr unsigned kAllLanes = 0xffffffffu;

// Threads of a row, and packs of a thread, for rows that do not fit in registers.
constexpr int kLongThreads = 512;
constexpr int kLongElements = 16;

template <int kThreads>
constexpr int kRowsPerBlock = kThreads == kWarp ? 8 : 1;

template <int kThreads>
constexpr int kBlockThreads = kThreads * kRowsPerBlock<kThreads>;

// Sum over the lanes of a warp, known to all of them. Shuffles exchange registers: no memory, no barrier.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  return value;
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

// Number of this thread's `i`-th pack: threadIdx.x, and every kThreads-th from there on.
template <int kThreads>
__device__ __forceinline__ int pack_of_row(int i) {
  return static_cast<int>(threadIdx.x) + i * kThreads;
}

// Loads this thread's share of a row, or of a stretch of it, as floats. What lies behind the last of its
// `packs` becomes `filler`.
template <int kThreads, typename T, int kWidth, int kPacks>
__device__ __forceinline__ void load_share(const T* __restrict__ row, int packs, float filler,
                                           float (&values)[kPacks][kWidth]) {
  Pack<T, kWidth> loaded[kPacks];
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {  // A loop of its own: all loads are on their way before one is used.
    if (pack_of_row<kThreads>(i) < packs) {
      loaded[i] = reinterpret_cast<const Pack<T, kWidth>*>(row)[pack_of_row<kThreads>(i)];
    }
  }
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      values[i][j] = pack_of_row<kThreads>(i) < packs ? to_float(loaded[i].values[j]) : filler;
    }
  }
}

// Packs of the step of a long row behind which `columns` elements, itself included, are left.
template <int kWidth>
__device__ __forceinline__ int packs_in_step(int64_t columns) {
  constexpr int64_t kStep = kLongThreads * kLongElements;
  return static_cast<int>(columns < kStep ? columns : kStep) / kWidth;
}

// The row of this thread. Where rows outnumber the blocks of one line of the grid, there are several lines.
template <int kThreads>
__device__ __forceinline__ int64_t row_of_thread() {
  const int64_t block = int64_t{blockIdx.y} * gridDim.x + blockIdx.x;
  return block * kRowsPerBlock<kThreads> + threadIdx.y;
}

template <int kThreads>
dim3 row_block() {
  return dim3(kThreads, kRowsPerBlock<kThreads>);
}

template <int kThreads>
dim3 row_grid(int64_t rows) {
  const int64_t blocks = divide_up(rows, kRowsPerBlock<kThreads>);
  const int64_t line = blocks < kMaxBlocks ? blocks : kMaxBlocks;
  return dim3(static_cast<unsigned>(line), static_cast<unsigned>(divide_up(blocks, line)));
}

// Calls `launch` with the threads and elements per thread that fit a row of `columns` elements, as two
// integral constants. `columns` is at most kLongestRow.
template <int kValue>
struct Constant {
  static constexpr int value = kValue;
};

template <typename T, typename Launch>
cudaError_t with_row_shape(int64_t columns, Launch launch) {
  constexpr int kMost = kMostElements<T>;
  const Constant<kMost> most;
  if (columns <= kWarp * kFewElements) {
    return launch(Constant<kWarp>{}, Constant<kFewElements>{});
  }
  if (columns <= 32 * kMost) {
    return launch(Constant<32>{}, most);
  }
  if (columns <= 64 * kMost) {
    return launch(Constant<64>{}, most);
  }
  if (columns <= 128 * kMost) {
    return launch(Constant<128>{}, most);
  }
  if (columns <= 256 * kMost) {
    return launch(Constant<256>{}, most);
  }
  const Constant<kManyElements> many;
  if constexpr (kMost == kManyElements) {
    if (columns <= 512 * kManyElements) {
      return launch(Constant<512>{}, many);
    }
  }
  return launch(Constant<1024>{}, many);
}

// The textbook reduction of the teaching kernels: a tree in shared memory, half as many threads at each step.
// `shared` holds one float per thread; their number is a power of two.
template <typename Combine>
__device__ float tree_reduce(float value, float* shared, Combine combine) {
  shared[threadIdx.x] = value;
  __syncthreads();
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      shared[threadIdx.x] = combine(shared[threadIdx.x], shared[threadIdx.x + half]);
    }
    __syncthreads();
  }
  const float result = shared[0];
  __syncthreads();  // The next reduction writes `shared`: not before every thread has read the result.
  return result;
}

inline unsigned teaching_blocks(int64_t rows) {
  return static_cast<unsigned>(rows < kMaxBlocks ? rows : kMaxBlocks);
}

}  // namespace opscope
