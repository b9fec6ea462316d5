// The PyTorch side: operators torch.ops.opscope_kernels.*, which check their arguments, make the output,
// and queue the kernels of the .cu files on PyTorch's current stream.
//
// The .cu files include no PyTorch header, because those take nvcc many seconds each; this file includes only
// headers that need no more of the CUDA toolkit than its runtime.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <string>

#include "launchers.h"

namespace opscope {
namespace {

using at::Tensor;

// A tensor's sizes as PyTorch prints them: "[4, 6]". Texts hold no numbers but as strings: where the linker
// gives this library a libstdc++ of its own, writing a number to a stream crashes (seen with torch 2.11).
std::string shape_text(const Tensor& x) {
  std::string text;
  for (int64_t dimension = 0; dimension < x.dim(); ++dimension) {
    text += (dimension == 0 ? "" : ", ") + std::to_string(x.size(dimension));
  }
  return "[" + text + "]";
}

// What every operator asks of every argument.
void check_argument(const Tensor& x, const char* name) {
  TORCH_CHECK(x.is_cuda(), name, " must be on a CUDA device, but is on ", x.device(), "; use ", name,
              ".cuda()");
  TORCH_CHECK(x.is_contiguous(), name, " must be contiguous; use ", name, ".contiguous()");
  const auto dtype = x.scalar_type();
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16, name,
              " must be float32, float16 or bfloat16, but is ", dtype, "; convert it, e.g. ", name,
              ".float()");
  // Without this check, backward() would fail far from here, or not at all.
  TORCH_CHECK(!(at::GradMode::is_enabled() && x.requires_grad()), name,
              " requires a gradient, but this operator has none; use it under torch.no_grad() or pass ", name,
              ".detach()");
}

// What a second argument must have in common with the first. TORCH_CHECK's text is only made if it fails.
void check_like(const Tensor& x, const char* name, const Tensor& other, const char* other_name) {
  check_argument(other, other_name);
  TORCH_CHECK(other.device() == x.device(), name, " and ", other_name, " must be on one device, but are on ",
              x.device(), " and ", other.device(), "; use ", other_name, ".to(", name, ".device)");
  TORCH_CHECK(other.scalar_type() == x.scalar_type(), name, " and ", other_name,
              " must have one dtype, but have ", x.scalar_type(), " and ", other.scalar_type(), "; use ",
              other_name, ".to(", name, ".dtype)");
}

ElementType element_type(const Tensor& x) {
  switch (x.scalar_type()) {
    case at::kHalf:
      return ElementType::kFloat16;
    case at::kBFloat16:
      return ElementType::kBFloat16;
    default:  // check_argument has let nothing else through.
      return ElementType::kFloat32;
  }
}

GeluFormula gelu_formula(c10::string_view approximate) {
  TORCH_CHECK(approximate == "none" || approximate == "tanh",
              "approximate must be 'none' (the erf formula) or 'tanh', but is '",
              std::string(approximate.data(), approximate.size()), "'");
  return approximate == "tanh" ? GeluFormula::kTanh : GeluFormula::kErf;
}

// An output like `x`, filled by `launch(output, stream)`. An empty one needs no kernel, and cannot have
// one: CUDA refuses a grid of no blocks. The guard makes x's device the current one, so that the kernel
// runs there.
template <typename Launch>
Tensor filled_like(const Tensor& x, Launch launch) {
  const c10::cuda::CUDAGuard guard(x.device());
  Tensor y = at::empty_like(x);
  if (y.numel() > 0) {
    C10_CUDA_CHECK(launch(y.mutable_data_ptr(), c10::cuda::getCurrentCUDAStream().stream()));
  }
  return y;
}

template <auto kLaunch>
Tensor gelu(const Tensor& x, c10::string_view approximate) {
  check_argument(x, "x");
  const GeluFormula formula = gelu_formula(approximate);
  return filled_like(x, [&](void* y, cudaStream_t stream) {
    return kLaunch(x.const_data_ptr(), y, x.numel(), element_type(x), formula, stream);
  });
}

template <auto kLaunch>
Tensor square(const Tensor& x) {
  check_argument(x, "x");
  return filled_like(x, [&](void* y, cudaStream_t stream) {
    return kLaunch(x.const_data_ptr(), y, x.numel(), element_type(x), stream);
  });
}

template <auto kLaunch>
Tensor add(const Tensor& x, const Tensor& y) {
  check_argument(x, "x");
  check_like(x, "x", y, "y");
  TORCH_CHECK(x.sizes().equals(y.sizes()), "x and y must have one shape, but have ", shape_text(x), " and ",
              shape_text(y), "; use torch.broadcast_tensors(x, y) and .contiguous()");
  return filled_like(x, [&](void* sum, cudaStream_t stream) {
    return kLaunch(x.const_data_ptr(), y.const_data_ptr(), sum, x.numel(), element_type(x), stream);
  });
}

template <auto kLaunch>
Tensor softmax(const Tensor& x) {
  check_argument(x, "x");
  const int64_t columns = x.dim() == 0 ? 1 : x.size(-1);
  return filled_like(x, [&](void* y, cudaStream_t stream) {
    return kLaunch(x.const_data_ptr(), y, x.numel() / columns, columns, element_type(x), stream);
  });
}

template <auto kLaunch>
Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  check_argument(x, "x");
  check_like(x, "x", weight, "weight");
  check_like(x, "x", bias, "bias");
  TORCH_CHECK(x.dim() > 0, "x must have at least one dimension to normalize over");
  const int64_t columns = x.size(-1);
  TORCH_CHECK(weight.dim() == 1 && weight.size(0) == columns && bias.dim() == 1 && bias.size(0) == columns,
              "weight and bias must have the shape [", std::to_string(columns), "] of x's last dimension, but have ",
              shape_text(weight), " and ", shape_text(bias));
  return filled_like(x, [&](void* y, cudaStream_t stream) {
    return kLaunch(x.const_data_ptr(), weight.const_data_ptr(), bias.const_data_ptr(), y, x.numel() / columns,
                   columns, static_cast<float>(eps), element_type(x), stream);
  });
}

Tensor matmul_teaching(const Tensor& a, const Tensor& b) {
  check_argument(a, "a");
  check_like(a, "a", b, "b");
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2, "a and b must be matrices, but have the shapes ", shape_text(a),
              " and ", shape_text(b));
  TORCH_CHECK(a.size(1) == b.size(0),
              "the columns of a must be as many as the rows of b, but the shapes are ", shape_text(a),
              " and ", shape_text(b));
  const c10::cuda::CUDAGuard guard(a.device());
  Tensor c = at::empty({a.size(0), b.size(1)}, a.options());
  if (c.numel() > 0) {
    C10_CUDA_CHECK(launch_matmul_teaching(a.const_data_ptr(), b.const_data_ptr(), c.mutable_data_ptr(),
                                          a.size(0), b.size(1), a.size(1), element_type(a),
                                          c10::cuda::getCurrentCUDAStream().stream()));
  }
  return c;
}

// Registered for CPU tensors as well, so that the answer to one is check_argument's and not the dispatcher's.
void register_operators(torch::Library& library) {
  library.impl("gelu", gelu<launch_gelu>);
  library.impl("gelu_teaching", gelu<launch_gelu_teaching>);
  library.impl("square", square<launch_square>);
  library.impl("square_teaching", square<launch_square_teaching>);
  library.impl("add", add<launch_add>);
  library.impl("add_teaching", add<launch_add_teaching>);
  library.impl("softmax", softmax<launch_softmax>);
  library.impl("softmax_teaching", softmax<launch_softmax_teaching>);
  library.impl("layer_norm", layer_norm<launch_layer_norm>);
  library.impl("layer_norm_teaching", layer_norm<launch_layer_norm_teaching>);
  library.impl("matmul_teaching", matmul_teaching);
}

}  // namespace
}  // namespace opscope

TORCH_LIBRARY(opscope_kernels, library) {
  library.def("gelu(Tensor x, str approximate='none') -> Tensor");
  library.def("gelu_teaching(Tensor x, str approximate='none') -> Tensor");
  library.def("square(Tensor x) -> Tensor");
  library.def("square_teaching(Tensor x) -> Tensor");
  library.def("add(Tensor x, Tensor y) -> Tensor");
  library.def("add_teaching(Tensor x, Tensor y) -> Tensor");
  library.def("softmax(Tensor x) -> Tensor");
  library.def("softmax_teaching(Tensor x) -> Tensor");
  library.def("layer_norm(Tensor x, Tensor weight, Tensor bias, float eps=1e-5) -> Tensor");
  library.def("layer_norm_teaching(Tensor x, Tensor weight, Tensor bias, float eps=1e-5) -> Tensor");
  library.def("matmul_teaching(Tensor a, Tensor b) -> Tensor");
}

TORCH_LIBRARY_IMPL(opscope_kernels, CUDA, library) { opscope::register_operators(library); }
TORCH_LIBRARY_IMPL(opscope_kernels, CPU, library) { opscope::register_operators(library); }
