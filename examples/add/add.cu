// One thread adds a million floats: the first CUDA program of most tutorials, and what is wrong with it.
//
//     opscope nvcc examples/add/add.cu -o add && ./add
//
// Look at: the finding about <<<1, 1>>>, and the time. add_grid_stride.cu does the same with the whole GPU.

#include <cmath>
#include <cstdio>
#include <cstdlib>

static void check(cudaError_t status) {
  if (status != cudaSuccess) {
    std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(status));
    std::exit(1);
  }
}

// The kernel: what runs on the GPU, here as one thread would do it on a CPU.
__global__ void add(int n, float* x, float* y) {
  for (int i = 0; i < n; i++) y[i] = x[i] + y[i];
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

  cudaEvent_t start, stop;
  check(cudaEventCreate(&start));
  check(cudaEventCreate(&stop));
  check(cudaEventRecord(start));
  add<<<1, 1>>>(n, x, y);
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
