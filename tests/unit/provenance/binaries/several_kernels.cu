
namespace {
__device__ int hidden;
__global__ void internal(int* p) { *p = hidden; }
}
namespace mine {
__device__ int variable;
__constant__ float constants[4];
template <class T>
__global__ void scale(T* p, int n) { *p = n * constants[1] + variable; }
}
extern "C" __global__ void plain(int* p) { *p = 1; }
void run(int* p, float* q, double* r) {
  internal<<<1, 1>>>(p);
  mine::scale<<<1, 1>>>(q, 1);
  mine::scale<<<1, 1>>>(r, 2);
  plain<<<1, 1>>>(p);
}
