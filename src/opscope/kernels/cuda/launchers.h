// What the .cu files offer to the PyTorch side (bindings.cpp): plain pointers and sizes, no PyTorch.
//
// Pointers are device memory of contiguous, row-major arrays. Sizes are int64_t, because 2^31 elements of
// bfloat16 are only 4.3 GB. Every function queues its kernel on `stream` and returns at once; the error
// it returns is that of the launch, not of the kernel's execution.

#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace opscope {

enum class ElementType { kFloat32, kFloat16, kBFloat16 };
enum class GeluFormula { kErf, kTanh };

// The good versions.
cudaError_t launch_gelu(const void* x, void* y, int64_t count, ElementType type, GeluFormula formula,
                        cudaStream_t stream);
cudaError_t launch_square(const void* x, void* y, int64_t count, ElementType type, cudaStream_t stream);
cudaError_t launch_add(const void* a, const void* b, void* y, int64_t count, ElementType type,
                       cudaStream_t stream);
cudaError_t launch_softmax(const void* x, void* y, int64_t rows, int64_t columns, ElementType type,
                           cudaStream_t stream);
cudaError_t launch_layer_norm(const void* x, const void* weight, const void* bias, void* y, int64_t rows,
                              int64_t columns, float eps, ElementType type, cudaStream_t stream);

// The versions to learn from: the same results, written the simplest way.
cudaError_t launch_gelu_teaching(const void* x, void* y, int64_t count, ElementType type, GeluFormula formula,
                                 cudaStream_t stream);
cudaError_t launch_square_teaching(const void* x, void* y, int64_t count, ElementType type,
                                   cudaStream_t stream);
cudaError_t launch_add_teaching(const void* a, const void* b, void* y, int64_t count, ElementType type,
                                cudaStream_t stream);
cudaError_t launch_softmax_teaching(const void* x, void* y, int64_t rows, int64_t columns, ElementType type,
                                    cudaStream_t stream);
cudaError_t launch_layer_norm_teaching(const void* x, const void* weight, const void* bias, void* y,
                                       int64_t rows, int64_t columns, float eps, ElementType type,
                                       cudaStream_t stream);
cudaError_t launch_matmul_teaching(const void* a, const void* b, void* c, int64_t m, int64_t n, int64_t k,
                                   ElementType type, cudaStream_t stream);

}  // namespace opscope
