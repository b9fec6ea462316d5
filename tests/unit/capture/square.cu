#include <torch/types.h>
#define GLOBAL __global__ void
// __global__ void square(float*) {
/* __global__ void square(float*) { } */
const char* text = "__global__ void square(int) {";
__global__ void square(const float* x, float* y, long n);
template <typename T>
__global__ void
__launch_bounds__(256) square(const T* x, T* y, long n) {
    if (n) { y[0] = x[0] * '{'; }
}
template __global__ void square<float>(const float*, float*, long);
__global__ void twice(float* x) { x[0] *= 2; }
#if 0
__global__ void twice(float* x) { x[0] += x[0]; }
#endif
GLOBAL hidden(float* x) { }
