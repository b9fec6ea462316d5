// The same operator on the CPU, for machines without a GPU: torch.ops.vector_add.add(a, b).
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

at::Tensor add(const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK(a.is_cpu() && b.is_cpu(), "a and b must be on the CPU");
  TORCH_CHECK(a.scalar_type() == at::kFloat && b.scalar_type() == at::kFloat, "a and b must be float32");
  TORCH_CHECK(a.is_contiguous() && b.is_contiguous(), "a and b must be contiguous");
  TORCH_CHECK(a.sizes() == b.sizes(), "a and b must have the same shape");
  at::Tensor out = at::empty_like(a);
  const float* x = a.const_data_ptr<float>();
  const float* y = b.const_data_ptr<float>();
  float* z = out.mutable_data_ptr<float>();
  for (int64_t index = 0; index < a.numel(); ++index) {
    z[index] = x[index] + y[index];
  }
  return out;
}

TORCH_LIBRARY(vector_add, m) { m.def("add(Tensor a, Tensor b) -> Tensor"); }
TORCH_LIBRARY_IMPL(vector_add, CPU, m) { m.impl("add", add); }
