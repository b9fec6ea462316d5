#include <cmath>
#include <cstdio>
__global__ void add(int n, float *x, float *y) {
  for (int i = 0; i < n; i++) y[i] = x[i] + y[i];
}
int main() {
  int n = 1 << 20;
  float *x, *y;
  cudaMallocManaged(&x, n * sizeof(float));
  cudaMallocManaged(&y, n * sizeof(float));
  for (int i = 0; i < n; i++) { x[i] = 1.0f; y[i] = 2.0f; }
  cudaEvent_t before, after;
  cudaEventCreate(&before);
  cudaEventCreate(&after);
  cudaEventRecord(before);
  add<<<1, 1>>>(n, x, y);
  cudaEventRecord(after);
  cudaDeviceSynchronize();
  float milliseconds = 0, error = 0;
  cudaEventElapsedTime(&milliseconds, before, after);
  for (int i = 0; i < n; i++) error = fmaxf(error, fabsf(y[i] - 3.0f));
  printf("%.6f %g\n", milliseconds, error);
  cudaFree(x);
  cudaFree(y);
  return error != 0;
}
