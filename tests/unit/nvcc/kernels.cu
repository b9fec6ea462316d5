__constant__ float table[256];
__device__ __noinline__ int rec(int n) { return n < 2 ? n : rec(n - 1) + rec(n - 2); }
namespace {
template <typename T> __global__ void __launch_bounds__(128, 4) scale(T* x, T f) {
  __shared__ T s[128];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = s[127 - threadIdx.x] * f * (T)table[threadIdx.x];
}
}
__global__ void recursive(int* x) { x[0] = rec(x[1]); }
__global__ void promoted(float* x) {
  int unused;
  x[threadIdx.x] = x[threadIdx.x] * 2.0 + 1.0;
}
void go(float* x) { scale<float><<<1, 128>>>(x, 2.f); }
