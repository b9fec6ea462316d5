// The whole GPU adds a million floats: add.cu with a grid-stride loop and a launch that fills the device.
//
//     opscope nvcc examples/add/add_grid_stride.cu -o add_grid_stride && ./add_grid_stride
//
// Look at: the time beside that of add.cu. Most of what remains is pages that move to the GPU at first use.

#include <cmath>
#include <cstdio>
#include <cstdlib>

static void check(cudaError_t status) {
  if (status != cudaSuccess) {
    std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(status));
    std::exit(1);
  }
}

// Each thread takes every so many elements: right for any grid, and neighbors read neighboring floats.
__global__ void add(int n, float* x, float* y) {
  const int first = blockIdx.x * blockDim.x + threadIdx.x;
  const int stride = gridDim.x * blockDim.x;
  for (int i = first; i < n; i += stride) y[i] = x[i] + y[i];
}

int main() {
  const int n = 1 << 20;
  float *x, *y;

  // Unified memory: both the CPU and the GPU reach it, and its pages move to where they are used.
  check(cudaMallocManaged(&x, n * sizeof(float)));
  check(cudaMallocManaged(&y, n * sizeof(float)));
  for (int i = 0; i < n; i++) {
    x[i] = 1.0f;
    y[i] = 2.0f;
  }

  // As many blocks as the GPU holds at once; `opscope nvcc` tells how many that is for each block size.
  int device, multiprocessors, blocks_per_multiprocessor;
  const int threads = 256;
  check(cudaGetDevice(&device));
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks_per_multiprocessor, add, threads, 0));
  const int blocks = multiprocessors * blocks_per_multiprocessor;

  cudaEvent_t start, stop;
  check(cudaEventCreate(&start));
  check(cudaEventCreate(&stop));
  check(cudaEventRecord(start));
  add<<<blocks, threads>>>(n, x, y);
  check(cudaGetLastError());  // a launch returns nothing: without this line a failure goes unseen
  check(cudaEventRecord(stop));
  check(cudaEventSynchronize(stop));  // the GPU works on its own: wait before reading what it writes
  float time_ms = 0;
  check(cudaEventElapsedTime(&time_ms, start, stop));

  float max_error = 0;
  for (int i = 0; i < n; i++) max_error = std::fmax(max_error, std::fabs(y[i] - 3.0f));
  std::printf("Max error: %g\n", max_error);
  std::printf("Kernel time: %.3f ms\n", time_ms);

  check(cudaEventDestroy(start));
  check(cudaEventDestroy(stop));
  check(cudaFree(x));
  check(cudaFree(y));
  return max_error == 0 ? 0 : 1;
}
