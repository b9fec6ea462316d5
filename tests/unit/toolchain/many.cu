
namespace ours {
template <class T> __global__ void many(const T* x, T* y) {
    T sums[64];
    for (int i = 0; i < 64; ++i) sums[i] = x[i * blockDim.x + threadIdx.x];
    for (int k = 0; k < 64; ++k)
        for (int i = 0; i < 64; ++i) sums[i] = sums[i] * sums[(i + k) & 63] + T(1);
    for (int i = 0; i < 64; ++i) y[i * blockDim.x + threadIdx.x] = expf(sums[i]);
}
template __global__ void many<float>(const float*, float*);
}
