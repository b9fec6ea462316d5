#include <cstdio>
__global__ void plain(float* x) { x[threadIdx.x] *= 2; }
__global__ void shared(float* x) {
  __shared__ float s[9000];
  for (int i = threadIdx.x; i < 9000; i += blockDim.x) s[i] = x[i];
  __syncthreads();
  x[threadIdx.x] = s[8999 - threadIdx.x];
}
__global__ void __launch_bounds__(512, 1) heavy(float* x) {
  float a[96];
#pragma unroll
  for (int i = 0; i < 96; i++) a[i] = x[i * blockDim.x + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 96; i++) x[i * blockDim.x + threadIdx.x] = a[(i * 7) % 96] * a[i];
}
template <typename F> void tell(const char* name, F kernel) {
  const int sizes[] = {32, 96, 128, 256, 384, 512, 768, 1000, 1024};
  for (int size : sizes) {
    int blocks = 0;
    if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, size, 0) != cudaSuccess) blocks = 0;
    cudaGetLastError();
    printf("%s %d %d\n", name, size, blocks);
  }
  int grid = 0, block = 0;
  cudaOccupancyMaxPotentialBlockSize(&grid, &block, kernel, 0, 0);
  printf("%s best %d\n", name, block);
}
int main() {
  tell("plain", plain);
  tell("shared", shared);
  tell("heavy", heavy);
}
