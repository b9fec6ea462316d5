"""A kernel of your own in CUDA C++, compiled from a string (guide 001: load_inline), then checked and timed.

On a GPU this is the guide's kernel with what it left out: checks, 64-bit indices, the current stream, launch
errors. Without one it is a line of C++ for the CPU. Registered with torch, it is an operator in a profile.
The first run compiles; torch keeps what it built. Look at the error, and at the verdict: one element per
thread is right, but is it fast?
"""

import shutil

import torch
from torch.utils.cpp_extension import CUDA_HOME, is_ninja_available, load_inline

import opscope

CPP = """
#include <ATen/ops/mul.h>
#include <torch/library.h>
at::Tensor square(const at::Tensor& x) { return at::mul(x, x); }
"""
CUDA = """
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>
__global__ void square_kernel(const float* in, float* out, int64_t size) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index < size) out[index] = in[index] * in[index];
}
at::Tensor square(const at::Tensor& x) {
  TORCH_CHECK(x.is_cuda() && x.is_contiguous() && x.scalar_type() == at::kFloat, "need contiguous float32");
  const c10::cuda::CUDAGuard guard(x.device());
  at::Tensor out = at::empty_like(x);
  if (x.numel() == 0) return out;
  const auto blocks = static_cast<unsigned int>((x.numel() + 255) / 256);
  square_kernel<<<blocks, 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
      x.const_data_ptr<float>(), out.mutable_data_ptr<float>(), x.numel());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}
"""
REGISTER = 'TORCH_LIBRARY(inline_example, m) { m.def("square(Tensor x) -> Tensor", &square); }'


def main() -> None:
    device, size = ("cuda", 8192) if torch.cuda.is_available() else ("cpu", 1024)
    if not is_ninja_available() or shutil.which("c++") is None or (device == "cuda" and CUDA_HOME is None):
        print("Left out: compiling takes ninja, a C++ compiler and, for a GPU, nvcc.")
        return
    cpp, cuda = (CPP + REGISTER, None) if device == "cpu" else ("", CUDA + REGISTER)
    name = f"inline_example_{device}"
    load_inline(name, cpp, cuda, no_implicit_headers=True, is_python_module=False)
    functions = {"torch": torch.square, "inline": torch.ops.inline_example.square}
    for row in opscope.bench(functions, inputs=torch.randn(size, size, device=device), ceilings=False).rows:
        error = row.max_relative_error
        print(f"{row.name:8} {row.median_ns / 1e3:8.1f} µs  error {error:.1e}  {row.verdict or 'reference'}")


if __name__ == "__main__":
    main()
