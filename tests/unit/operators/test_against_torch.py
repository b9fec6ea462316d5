"""Rules against torch itself: results of every family, run on tensors without data."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from opscope.operators.call_cost import CostEvidence, FlopSource
from opscope.operators.operator_table import cost_by_rules, effects_by_rules

pytestmark = pytest.mark.torch

Case = Callable[[Any], Any]


def case(name: str, *arguments: Any, **named: Any) -> Any:
    """One call; arguments that are functions make tensors."""

    def perform(recorder: Any) -> Any:
        return recorder.run(
            name,
            *(_made(argument, recorder) for argument in arguments),
            **{key: _made(value, recorder) for key, value in named.items()},
        )

    NUMBERS[name] += 1
    return pytest.param(perform, id=f"{name}-{NUMBERS[name]}")


NUMBERS: Counter[str] = Counter()


class T:
    """A tensor to be made."""

    def __init__(self, *shape: int, dtype: str = "float32", strides: tuple[int, ...] | None = None) -> None:
        self.shape, self.dtype, self.strides = shape, dtype, strides


class D:
    """An element type of torch."""

    def __init__(self, name: str) -> None:
        self.name = name


def _made(value: Any, recorder: Any) -> Any:
    if isinstance(value, T):
        return recorder.meta(*value.shape, dtype=value.dtype, strides=value.strides)
    if isinstance(value, D):
        return getattr(recorder.torch, value.name)
    if isinstance(value, list):
        return [_made(item, recorder) for item in value]
    return value


def half(*shape: int) -> T:
    return T(*shape, dtype="float16")


def brain(*shape: int) -> T:
    return T(*shape, dtype="bfloat16")


def long(*shape: int) -> T:
    return T(*shape, dtype="int64")


def truth(*shape: int) -> T:
    return T(*shape, dtype="bool")


def words(text: str) -> list[str]:
    return text.split()


UNARY = words(
    """
    exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh
    erf erfc erfinv lgamma digamma reciprocal sigmoid
    """
)
KEEPING = words("neg abs sign floor ceil trunc relu")
ASKING = words("isnan isinf isfinite signbit logical_not")
COMPARING = words("eq ne lt le gt ge")

CASES = [
    *(case(name, T(3, 4)) for name in UNARY),
    *(case(name, long(5)) for name in UNARY),
    *(case(name, brain(2, 3)) for name in UNARY),
    *(case(name, T(3, 4)) for name in KEEPING),
    *(case(name, long(3, 4)) for name in KEEPING),
    *(case(name, half(3, 4)) for name in ASKING),
    case("frac", T(4)),
    case("round", half(4)),
    case("round.decimals", T(4), decimals=2),
    case("abs", T(4, dtype="complex64")),
    case("bitwise_not", truth(4)),
    case("neg.out", T(4), out=T(4)),
    case("exp_", T(4, 4, strides=(8, 1))),
    case("add.Tensor", T(8, 1, 4), T(5, 1)),
    case("add.Tensor", half(8, 4), brain(4)),
    case("add.Tensor", long(3), T(3)),
    case("add.Tensor", half(3), T()),
    case("add.Tensor", long(3), T()),
    case("add.Tensor", T(3), T(3), alpha=2.5),
    case("add.out", T(3), T(3), out=T(0)),
    case("add.out", T(2, 3), T(3), out=half(2, 3)),
    case("add_.Tensor", T(2, 3, strides=(1, 2)), half(3)),
    case("add.Scalar", T(3), 2),
    case("sub.Tensor", truth(3), long(3)),
    case("rsub.Scalar", T(3), 2),
    case("mul.Tensor", half(3), T(dtype="float64")),
    case("mul.Tensor", T(3, dtype="complex64"), T(3, dtype="float64")),
    case("mul.Tensor", T(3, dtype="uint8"), T(3, dtype="int8")),
    case("mul.Scalar", T(3, dtype="int32"), 2.5),
    case("div.Tensor", long(3), long(3)),
    case("div.Tensor", T(7, 1), half(4)),
    case("pow.Tensor_Scalar", half(3), 2),
    case("pow.Tensor_Tensor", T(3, 1), T(2)),
    case("pow.Scalar", 2.0, long(3)),
    *(case(f"{name}.Tensor", T(3, 1), half(2)) for name in COMPARING),
    *(case(f"{name}.Scalar", long(3), 1) for name in COMPARING),
    case("logical_and", T(3), long(3)),
    case("bitwise_and.Tensor", long(3), truth(3)),
    case("maximum", T(3), half(3)),
    case("fmin", T(3), T(2, 1)),
    case("remainder.Scalar", long(3), 4),
    case("remainder.Tensor", T(3), T(3)),
    case("atan2", long(3), long(3)),
    case("clamp", T(3), 0, 1),
    case("clamp", half(3), None, 1),
    case("clamp.Tensor", T(3), T(2, 1), T(1)),
    case("clamp_min", T(3), 0),
    case("clamp_", T(3), 0, None),
    case("where.self", truth(3, 1), T(4), half(1)),
    case("where.self", truth(3), long(3), T(3)),
    case("lerp.Scalar", T(3), T(3), 0.5),
    case("lerp.Tensor", T(3), T(3), T(2, 1)),
    case("addcmul", T(3), T(3), T(2, 1)),
    case("addcdiv_", T(2, 3), T(3), T(2, 1), value=0.1),
    case("masked_fill.Scalar", half(3), truth(3), 0),
    case("masked_fill_.Scalar", long(2, 3), truth(3), 0),
    case("gelu", brain(3)),
    case("gelu", T(3), approximate="tanh"),
    case("silu", half(3)),
    case("mish", T(3)),
    case("hardswish", T(3)),
    case("hardsigmoid", T(3)),
    case("leaky_relu", T(3), 0.1),
    case("elu", half(3)),
    case("softplus", T(3)),
    case("hardtanh", T(3)),
    case("threshold", T(3), 0, 0),
    case("logit", long(3)),
    case("nan_to_num", T(3)),
    case("glu", half(4, 6), 1),
    case("glu_backward", half(4, 3), half(4, 6), 1),
    case("threshold_backward", half(3), half(3), 0),
    case("gelu_backward", brain(3), brain(3)),
    case("tanh_backward", T(3), T(3)),
    case("sigmoid_backward", half(3), half(3)),
    case("silu_backward", T(3), T(3)),
    case("hardswish_backward", T(3), T(3)),
    case("hardsigmoid_backward", T(3), T(3)),
    case("leaky_relu_backward", T(3), T(3), 0.1, False),
    case("hardtanh_backward", T(3), T(3), -1, 1),
    case("softplus_backward", T(3), T(3), 1, 20),
    case("elu_backward", T(3), 1, 1, 1, False, T(3)),
    case("logit_backward", T(3), T(3)),
    case("native_dropout", half(3, 4), 0.1, True),
    case("native_dropout_backward", half(3, 4), truth(3, 4), 1.1),
    # Reductions.
    case("sum", T(3, 4)),
    case("sum", truth(3, 4)),
    case("sum", T(3, dtype="int32")),
    case("sum", half(3, 4), dtype=D("float32")),
    case("sum.dim_IntList", T(3, 4, 5), [0, -1]),
    case("sum.dim_IntList", brain(3, 4, 5), [1], True),
    case("sum.dim_IntList", T(3, 4), None, True),
    case("sum.dim_IntList", T(3, 4), [], False),
    case("sum.dim_IntList", half(3, 4), [0], False, dtype=D("float32")),
    case("sum.IntList_out", T(3, 4), [0], out=T(0)),
    case("mean.dim", half(3, 4), [1], True),
    case("mean", T(3, 4)),
    case("prod", long(3)),
    case("prod.dim_int", T(3, 4), 1),
    case("var.correction", T(3, 4), [1], correction=1),
    case("std.correction", half(3, 4), [0], correction=0, keepdim=True),
    case("var_mean.correction", T(3, 4), [1], correction=1),
    case("amax", half(3, 4), [1], True),
    case("amin", T(3, 4)),
    case("argmax", T(3, 4), 1),
    case("argmax", T(3, 4)),
    case("argmin", half(3, 4), 0, True),
    case("any", T(3, 4)),
    case("all", truth(3, 4)),
    case("any.dim", T(3, 4), 1),
    case("all", T(3, 4, dtype="uint8")),
    case("max", half(3, 4)),
    case("max.dim", half(3, 4), 1),
    case("min.dim", long(3, 4), 0, True),
    case("linalg_vector_norm", half(3, 4)),
    case("linalg_vector_norm", half(3, 4), 1, [1], True, dtype=D("float32")),
    case("cumsum", truth(3, 4), 1),
    case("cumsum", half(3, 4), 1, dtype=D("float32")),
    case("cumprod", T(3, 4), 1),
    case("_softmax", half(3, 4), -1, False),
    case("_log_softmax", T(3, 4), 1, False),
    case("_softmax_backward_data", half(3, 4), half(3, 4), -1, D("float16")),
    case("_log_softmax_backward_data", T(3, 4), T(3, 4), 1, D("float32")),
    # Products.
    case("mm", half(3, 4), half(4, 5)),
    case("mm.out", T(3, 4), T(4, 5), out=T(3, 5)),
    case("mm", T(3, 4, strides=(1, 3)), T(4, 5)),
    case("bmm", brain(2, 3, 4), brain(2, 4, 5)),
    case("addmm", T(5), T(3, 4), T(4, 5)),
    case("addmm", T(3, 5), T(3, 4), T(4, 5), beta=0.5, alpha=2),
    case("addmm_", T(3, 5), T(3, 4), T(4, 5)),
    case("baddbmm", T(2, 3, 5), T(2, 3, 4), T(2, 4, 5), beta=0),
    case("addbmm", T(3, 5), T(2, 3, 4), T(2, 4, 5)),
    case("mv", T(3, 4), T(4)),
    case("dot", half(4), half(4)),
    case("addmv", T(3), T(3, 4), T(4)),
    case("addr", T(3, 4), T(3), T(4)),
    case("linear", T(2, 3, 4), T(5, 4), T(5)),
    case("_addmm_activation", T(5), T(3, 4), T(4, 5)),
    case(
        "_scaled_mm",
        T(16, 32, dtype="float8_e4m3fn"),
        T(32, 16, dtype="float8_e4m3fn", strides=(1, 32)),
        T(),
        T(),
        None,
        None,
        D("bfloat16"),
    ),
    case("addmv_", T(3), T(3, 4), T(4)),
    case("_int_mm", T(32, 64, dtype="int8"), T(64, 32, dtype="int8")),
    # Convolutions.
    case("convolution", T(2, 6, 9, 8), T(4, 6, 3, 3), T(4), [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
    case("convolution", half(2, 6, 9), half(4, 3, 3), None, [2], [1], [2], False, [0], 2),
    case("convolution", T(2, 6, 9, 8), T(6, 1, 3, 3), None, [2, 1], [1, 1], [1, 1], False, [0, 0], 6),
    case(
        "convolution", T(2, 6, 5, 5, 5), T(4, 6, 3, 3, 1), None, [2] * 3, [1] * 3, [1] * 3, False, [0] * 3, 1
    ),
    case("convolution", T(2, 6, 9, 8), T(6, 4, 3, 3), T(4), [2, 2], [1, 0], [1, 1], True, [1, 0], 1),
    case("convolution", T(2, 6, 9, 8), T(6, 4, 3, 3), None, [2, 2], [1, 0], [2, 1], True, [0, 0], 2),
    case("slow_conv_transpose2d", T(2, 6, 9, 8), T(6, 4, 3, 3), [3, 3]),
    case(
        "convolution_backward",
        T(2, 4, 7, 6),
        T(2, 6, 9, 8),
        T(4, 6, 3, 3),
        [4],
        [1, 1],
        [0, 0],
        [1, 1],
        False,
        [0, 0],
        1,
        [True, True, True],
    ),
    case(
        "convolution_backward",
        T(2, 4, 7, 6),
        T(2, 6, 9, 8),
        T(4, 6, 3, 3),
        [0],
        [1, 1],
        [0, 0],
        [1, 1],
        False,
        [0, 0],
        1,
        [False, True, False],
    ),
    # Attention.
    case("_scaled_dot_product_flash_attention", half(2, 4, 16, 8), half(2, 4, 32, 8), half(2, 4, 32, 8)),
    case(
        "_scaled_dot_product_efficient_attention", T(2, 4, 16, 8), T(2, 4, 33, 8), T(2, 4, 33, 8), None, True
    ),
    case(
        "_scaled_dot_product_efficient_attention", T(2, 4, 16, 8), T(2, 4, 33, 8), T(2, 4, 33, 8), None, False
    ),
    case(
        "_flash_attention_forward",
        half(2, 16, 4, 8),
        half(2, 32, 4, 8),
        half(2, 32, 4, 8),
        None,
        None,
        16,
        32,
        0.0,
        True,
        False,
    ),
    case(
        "_efficient_attention_forward",
        T(2, 40, 4, 8),
        T(2, 33, 4, 8),
        T(2, 33, 4, 8),
        None,
        None,
        None,
        None,
        None,
        0.0,
        0,
        True,
    ),
    case(
        "_scaled_dot_product_cudnn_attention",
        half(2, 4, 16, 8),
        half(2, 4, 9, 8),
        half(2, 4, 9, 8),
        None,
        True,
    ),
    case(
        "_flash_attention_backward",
        *[half(2, 16, 4, 8)] * 5,
        T(2, 4, 16),
        None,
        None,
        16,
        16,
        0.0,
        False,
        long(),
        long(),
    ),
    case(
        "_efficient_attention_backward",
        *[T(2, 16, 4, 8)] * 4,
        None,
        T(2, 16, 4, 8),
        None,
        None,
        16,
        16,
        T(2, 4, 32),
        0.0,
        long(),
        long(),
        0,
        False,
    ),
    case(
        "_scaled_dot_product_flash_attention_backward",
        *[half(2, 4, 16, 8)] * 5,
        T(2, 4, 16),
        None,
        None,
        16,
        16,
        0.0,
        False,
        long(),
        long(),
    ),
    case(
        "_scaled_dot_product_efficient_attention_backward",
        *[T(2, 4, 16, 8)] * 4,
        T(2, 4, 16, 16),
        T(2, 4, 16, 8),
        T(2, 4, 32),
        long(),
        long(),
        0.0,
        [True, True, True, True],
    ),
    # Normalization.
    case("native_layer_norm", T(2, 3, 8), [8], T(8), T(8), 1e-5),
    case("native_layer_norm", T(2, 3, 8), [3, 8], None, None, 1e-5),
    case(
        "native_layer_norm_backward",
        T(2, 3, 8),
        T(2, 3, 8),
        [8],
        T(2, 3, 1),
        T(2, 3, 1),
        T(8),
        T(8),
        [True, True, True],
    ),
    case(
        "native_layer_norm_backward",
        T(2, 3, 8),
        T(2, 3, 8),
        [8],
        T(2, 3, 1),
        T(2, 3, 1),
        T(8),
        T(8),
        [True, False, True],
    ),
    case("native_group_norm", T(2, 6, 5), T(6), T(6), 2, 6, 5, 3, 1e-5),
    case(
        "native_group_norm_backward", T(2, 6, 5), T(2, 6, 5), T(2, 3), T(2, 3), T(6), 2, 6, 5, 3, [True] * 3
    ),
    case("native_batch_norm", T(2, 6, 5), T(6), T(6), T(6), T(6), True, 0.1, 1e-5),
    case("native_batch_norm", T(2, 6, 5), T(6), T(6), T(6), T(6), False, 0.1, 1e-5),
    case("cudnn_batch_norm", T(2, 6, 5), T(6), T(6), T(6), T(6), False, 0.1, 1e-5),
    case("cudnn_batch_norm", T(2, 6, 5), T(6), T(6), T(6), T(6), True, 0.1, 1e-5),
    case(
        "native_batch_norm_backward",
        T(2, 6, 5),
        T(2, 6, 5),
        T(6),
        T(6),
        T(6),
        T(6),
        T(6),
        True,
        1e-5,
        [True] * 3,
    ),
    case("_fused_rms_norm", T(2, 3, 8), [8], T(8), 1e-5),
    case("_fused_rms_norm_backward", T(2, 3, 8), T(2, 3, 8), [8], T(2, 3, 1), T(8), [True, True]),
    case("_native_batch_norm_legit", T(2, 6, 5), T(6), T(6), T(6), T(6), True, 0.1, 1e-5),
    # Moving.
    case("copy_", T(2, 3), half(3)),
    case("_to_copy", T(2, 3), dtype=D("bfloat16")),
    case("clone", T(2, 3, strides=(1, 2))),
    case("fill_.Scalar", half(2, 3), 1),
    case("zero_", T(2)),
    case("uniform_", T(2, 3)),
    case("bernoulli_.float", T(2, 3), 0.5),
    case("tril", T(3, 3)),
    case("flip", T(3, 3), [0]),
    case("roll", T(3, 3), [1], [0]),
    case("gather", T(9, 4), 0, long(3, 4)),
    case("gather.out", half(9, 4), 0, long(3, 4), out=half(3, 4)),
    case("index_select", T(9, 4), 0, long(3)),
    case("index_select", T(9, 4), -1, long(7)),
    case("take", T(9, 4), long(3, 5)),
    case("embedding", brain(9, 4), long(3, 5)),
    case("repeat", T(2, 3), [2, 1, 4]),
    case("constant_pad_nd", T(2, 3, 4), [1, 2, 0, -1], 0),
    case("scatter.src", T(9, 4), 0, long(3, 4), T(3, 4)),
    case("scatter_.value", T(9, 4), 0, long(3, 4), 1.0),
    case("scatter_add", T(9, 4), 0, long(3, 4), T(3, 4)),
    case("index_add", T(9, 4), 0, long(3), T(3, 4)),
    case("index_add_", T(9, 4), 0, long(3), T(3, 4)),
    case("index_copy", T(9, 4), 0, long(3), T(3, 4)),
    case("embedding_dense_backward", T(2, 3, 4), long(2, 3), 9, -1, False),
    case("sort", half(3, 4), 1, False),
    case("sort.stable", half(3, 4), stable=True, dim=1),
    case("topk", half(3, 40), 4),
    case("topk", half(30, 4), 4, 0),
    case("arange.start_out", 0, 10, 3, out=long(0)),
    case("linspace.out", 0, 1, 7, out=T(0)),
    case("histc", T(10), 4),
    case("bucketize.Tensor", T(3, 4), T(9)),
    case("searchsorted.Tensor", T(9), T(3, 4), out_int32=True),
    case("cat", [half(2, 3), half(4, 3)], 0),
    case("cat", [T(0), T(4, 3)], -1),
    # Pooling and interpolation.
    case("max_pool2d_with_indices", T(2, 3, 9, 8), [3, 3], [2, 2], [1, 1]),
    case("max_pool2d_with_indices", T(2, 3, 9, 8), [3, 2], [], [0, 0], [1, 2], True),
    case("max_pool2d_with_indices", half(3, 112, 112), [3], [2], [1], [1], True),
    case("avg_pool2d", T(2, 3, 9, 8), [3, 3], [2, 2], [1, 1], True),
    case("avg_pool2d_backward", T(2, 3, 3, 2), T(2, 3, 9, 8), [3, 3], [3, 3], [0, 0], False, True, None),
    case("_adaptive_avg_pool2d", T(2, 3, 9, 8), [1, 1]),
    case("_adaptive_avg_pool2d_backward", T(2, 3, 1, 1), T(2, 3, 9, 8)),
    case("max_pool3d_with_indices", T(2, 3, 9, 8, 7), [3, 3, 3], [2], [1], [1]),
    case("adaptive_max_pool2d", T(2, 3, 9, 8), [2, 2]),
    case("avg_pool3d", T(2, 3, 9, 8, 7), [2]),
    case("upsample_linear1d", T(2, 3, 9), [18], False),
    case("upsample_nearest2d", T(2, 3, 9, 8), [18, 16]),
    case("upsample_bilinear2d", half(2, 3, 9, 8), [4, 4], False),
    case("upsample_nearest2d_backward", T(2, 3, 18, 16), [18, 16], [2, 3, 9, 8]),
    case("upsample_bilinear2d_backward", T(2, 3, 18, 16), [18, 16], [2, 3, 9, 8], False),
    case(
        "max_pool2d_with_indices_backward",
        T(2, 3, 4, 4),
        T(2, 3, 8, 8),
        [2, 2],
        [2, 2],
        [0, 0],
        [1, 1],
        False,
        long(2, 3, 4, 4),
    ),
    # Losses.
    case("mse_loss", T(3, 4), T(3, 4)),
    case("mse_loss", half(3, 4), half(3, 4), 0),
    case("mse_loss_backward", T(), T(3, 4), T(3, 4), 1),
    case("binary_cross_entropy", T(3, 4), T(3, 4)),
    case("nll_loss_forward", T(8, 10), long(8), None, 1, -100),
    case("nll_loss_forward", half(8, 10), long(8), half(10), 0, -100),
    case("nll_loss_backward", T(), T(8, 10), long(8), None, 1, -100, T()),
    case("smooth_l1_loss", T(3, 4), T(3, 4)),
    case("huber_loss_backward", T(), T(3, 4), T(3, 4), 1, 1.0),
    case("binary_cross_entropy_backward", T(3, 4), T(3, 4), T(3, 4)),
    case("nll_loss2d_backward", T(), T(8, 10, 3, 2), long(8, 3, 2), None, 1, -100, T()),
    case("nll_loss2d_forward", T(8, 10, 3, 2), long(8, 3, 2), None, 1, -100),
    # Lists.
    case("_foreach_add.Scalar", [T(2), T(3, 4)], 1.0),
    case("_foreach_mul_.Scalar", [T(2), T(3, 4)], 1.0),
    case("_foreach_addcdiv_.Scalar", [T(2), T(3)], [T(2), T(3)], [T(2), T(3)], -0.1),
    case("_foreach_sqrt", [half(2)]),
    case("_foreach_norm.Scalar", [T(2), T(3)]),
    # Linear algebra.
    case("_cdist_forward", T(7, 5), T(2, 9, 5), 2.0, None),
    case("linalg_lu_factor_ex", T(2, 5, 5)),
    case("linalg_solve_triangular", T(5, 5), T(5, 3), upper=True),
    case("linalg_lu_solve", T(5, 5), T(5, dtype="int32"), T(5, 3)),
    case("_fft_r2c", T(4, 10), [1], 0, True),
    case("_fft_r2c", T(4, 10), [0, 1], 0, False),
    case("_fft_c2c", T(4, 10, dtype="complex64"), [1], 0, True),
    case("_fft_c2r", T(4, 6, dtype="complex64"), [1], 0, 10),
]


def operator_of(one: Any) -> str:
    """The operator of a case, without its overload."""
    return str(one.id).rpartition("-")[0].partition(".")[0]


def counted_results(operator: str) -> int | None:
    """Of attention states of random numbers, masks for debugging and an unwanted gradient are left out."""
    if "attention" not in operator:
        return None
    return {"_efficient_attention_backward": 3}.get(operator, None if "backward" in operator else 2)


# What reads or writes less than all of its tensors: see test_traffic.
PARTIAL = words(
    """
    copy_ fill_ zero_ uniform_ bernoulli_ gather index_select take embedding scatter scatter_ scatter_add
    index_add index_add_ index_copy embedding_dense_backward nll_loss_forward nll_loss2d_forward
    nll_loss_backward nll_loss2d_backward native_layer_norm_backward avg_pool2d_backward
    _adaptive_avg_pool2d_backward max_pool2d_with_indices_backward upsample_nearest2d convolution
    convolution_backward native_batch_norm cudnn_batch_norm _native_batch_norm_legit baddbmm
    """
)
# Where torch's count is wrong, see definitions.attention and definitions.convolutions.
MISCOUNTED = words(
    """
    _flash_attention_forward _efficient_attention_forward _flash_attention_backward
    _efficient_attention_backward convolution_backward
    """
)


@pytest.mark.parametrize("perform", CASES)
def test_results_are_those_of_torch(perform: Case, recorder: Any, stated: Any) -> None:
    performed = perform(recorder)
    effects = effects_by_rules(performed.call)
    assert effects is not None
    operator = performed.call.name.partition("::")[2]
    assert stated(effects.outputs) == performed.stated_outputs[: counted_results(operator)]


@pytest.mark.parametrize("perform", [one for one in CASES if operator_of(one) not in PARTIAL])
def test_every_byte_counts_once(perform: Case, recorder: Any, addressed_bytes: Any) -> None:
    performed = perform(recorder)
    operator = performed.call.name.partition("::")[2]
    cost = cost_by_rules(performed.call)
    assert cost is not None
    results = performed.outputs[: counted_results(operator)]
    tensors = performed.inputs
    if not all(_is_number(tensor) for tensor in tensors):
        tensors = tuple(tensor for tensor in tensors if not _is_number(tensor))
    assert cost.read_bytes == sum(map(addressed_bytes, tensors))
    assert cost.written_bytes == sum(map(addressed_bytes, results))
    assert cost.evidence is CostEvidence.SHAPE_RULES


def _is_number(tensor: Any) -> bool:
    return not tensor.shape and str(tensor.dtype) in ("torch.float64", "torch.int64", "torch.bool")


@pytest.mark.parametrize("perform", CASES)
def test_products_count_as_torch_counts_them(perform: Case, recorder: Any) -> None:
    from torch.utils.flop_counter import flop_registry

    performed = perform(recorder)
    operator = performed.call.name.partition("::")[2]
    cost = cost_by_rules(performed.call)
    assert cost is not None
    counted = {packet.__name__.rpartition(".")[2] for packet in flop_registry}
    if operator in counted and operator not in MISCOUNTED:
        assert (cost.flop_count, cost.flop_source) == (_counted(perform, recorder), FlopSource.REGISTRY)
    else:
        assert (cost.flop_source is FlopSource.REGISTRY) == (operator == "addmm_")


def test_calls_that_are_nearly_right_have_a_cost_or_a_reason(recorder: Any) -> None:
    """Arguments of one call take the place of another's, or are missing."""
    calls = [one.values[0](recorder).call for one in CASES]
    pool = [argument for call in calls for argument in call.arguments]
    chance = random.Random(20)
    for _ in range(20_000):
        call = chance.choice(calls)
        arguments = list(call.arguments)
        for _ in range(chance.randint(1, 2)):
            arguments[chance.randrange(len(arguments))] = chance.choice([*pool, None])
        if chance.random() < 0.2:
            arguments = arguments[: chance.randrange(1, 1 + len(arguments))]
        cost = cost_by_rules(replace(call, arguments=tuple(arguments)))
        if cost is not None:
            counts = (cost.flop_count, cost.read_bytes, cost.written_bytes)
            assert all(count is None or count >= 0 for count in counts)
            assert (None in counts) == (cost.reason is not None)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("transposes", [False, True])
def test_torch_counts_gradients_of_grouped_weights_too_often(
    recorder: Any, groups: int, transposes: bool
) -> None:
    """Once for each group; the hand count is that of the forward pass for each of the two gradients."""
    weight = (6, 4 // groups, 3, 3) if transposes else (4, 6 // groups, 3, 3)
    data, steps = (2, 6, 9, 8), ([1, 1], [0, 0], [1, 1], transposes, [0, 0], groups)
    result = (2, 4, 11, 10) if transposes else (2, 4, 7, 6)
    places = data if transposes else result
    by_hand = 2 * 2 * places[2] * places[3] * math.prod(weight)

    def perform(recorder: Any) -> Any:
        tensors = [recorder.meta(*shape) for shape in (result, data, weight)]
        return recorder.run("convolution_backward", *tensors, None, *steps, [True, True, False])

    cost = cost_by_rules(perform(recorder).call)
    assert cost is not None
    assert cost.flop_count == 2 * by_hand
    assert _counted(perform, recorder) == (1 + groups) * by_hand


def _counted(perform: Case, recorder: Any) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        perform(recorder)
    return counter.get_total_flops()
