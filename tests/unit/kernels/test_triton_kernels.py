"""Every Triton kernel beside float64, in Triton's interpreter, at sizes that fill programs or do not."""

import os

import numpy as np
import pytest

from case_tables import cases

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from opscope.errors import InputError  # noqa: E402
from opscope.kernels.triton import load_triton  # noqa: E402

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="with a GPU the kernels are compiled, see tests/gpu"
)

HALVES = [torch.float16, torch.bfloat16]

# One rounding of the result. The interpreter cuts float32 off to bfloat16 instead of rounding it.
ROUNDING = {torch.float32: 5e-6, torch.float16: 6e-4, torch.bfloat16: 8e-3}

# Every size in float32, the types of 16 bits at one that does not fill its programs.
SIZES = [(size, torch.float32) for size in (1, 127, 4096, 10001)] + [(127, half) for half in HALVES]
ROWS = [
    (shape, torch.float32) for shape in ((1, 1), (3, 7), (5, 100), (2, 3, 1024), (2, 20000), (2, 33000))
] + [((5, 100), half) for half in HALVES]
PRODUCTS = [(sizes, torch.float32) for sizes in ((1, 1, 1), (64, 64, 64), (130, 70, 50), (65, 300, 129))] + [
    ((130, 70, 50), torch.float16)
]
DESCRIBED = [(64, 64, 64), (200, 264, 72), (130, 520, 136)]


def kernel(module, name):
    return np.errstate(all="ignore")(getattr(load_triton(module, interpret=True), name))


def normal(*shape, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def assert_right(output, expected, dtype):
    assert (output.dtype, output.shape) == (dtype, expected.shape)
    scale = torch.maximum(expected.abs(), expected.square().mean().sqrt())
    assert ((output.double() - expected).abs() / scale).max() < ROUNDING[dtype]


@pytest.mark.parametrize(("size", "dtype"), SIZES)
@pytest.mark.parametrize("name", ["gelu", "gelu_teaching"])
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(name, approximate, size, dtype):
    x = normal(size, dtype=dtype)
    expected = torch.nn.functional.gelu(x.double(), approximate=approximate)
    assert_right(kernel("elementwise", name)(x, approximate), expected, dtype)


def test_gelu_of_large_values_neither_overflows_nor_loses_its_sign():
    x = torch.tensor([-1e6, -50.0, -0.0, 0.0, 50.0, 1e6])
    for approximate in ("none", "tanh"):
        assert kernel("elementwise", "gelu")(x, approximate).tolist() == [0, 0, 0, 0, 50, 1e6]


@pytest.mark.parametrize(("size", "dtype"), SIZES)
@pytest.mark.parametrize("suffix", ["", "_teaching"])
def test_square_and_add(suffix, size, dtype):
    x, y = normal(size, dtype=dtype), normal(size, dtype=dtype, seed=1)
    assert_right(kernel("elementwise", f"square{suffix}")(x), x.double() ** 2, dtype)
    assert_right(kernel("elementwise", f"add{suffix}")(x, y), x.double() + y.double(), dtype)


@pytest.mark.parametrize(("shape", "dtype"), ROWS)
@pytest.mark.parametrize("name", ["softmax", "softmax_teaching"])
def test_softmax(name, shape, dtype):
    x = normal(*shape, dtype=dtype) * 2
    assert_right(kernel("softmax", name)(x), x.double().softmax(-1), dtype)


@pytest.mark.parametrize("columns", [5, 40000])
def test_softmax_of_values_that_overflow_or_are_minus_infinity(columns):
    x = normal(2, columns, dtype=torch.float32) + 1e4
    for name in ("softmax", "softmax_teaching"):
        assert_right(kernel("softmax", name)(x), x.double().softmax(-1), torch.float32)
    x = torch.zeros(1, columns)
    x[0, ::2] = -torch.inf
    output = kernel("softmax", "softmax")(x)
    assert not output[0, ::2].any()
    assert torch.allclose(output.sum(), torch.tensor(1.0))


@pytest.mark.parametrize(("shape", "dtype"), ROWS)
@pytest.mark.parametrize("name", ["layer_norm", "layer_norm_teaching"])
def test_layer_norm(name, shape, dtype):
    x = normal(*shape, dtype=dtype)
    weight, bias = (normal(shape[-1], dtype=dtype, seed=seed) for seed in (1, 2))
    expected = torch.nn.functional.layer_norm(
        x.double(), shape[-1:], weight.double(), bias.double(), eps=1e-3
    )
    assert_right(kernel("layer_norm", name)(x, weight, bias, 1e-3), expected, dtype)


@pytest.mark.parametrize("columns", [1000, 40000])
def test_layer_norm_of_values_far_from_zero_keeps_its_variance(columns):
    x = normal(2, columns, dtype=torch.float32) + 1000
    weight, bias = torch.ones(columns), torch.zeros(columns)
    expected = torch.nn.functional.layer_norm(x.double(), (columns,))
    for name in ("layer_norm", "layer_norm_teaching"):
        output = kernel("layer_norm", name)(x, weight, bias)
        assert (output.double() - expected).abs().max() < 1e-3


@pytest.mark.parametrize(
    ("name", "sizes", "dtype"),
    [
        *((name, *one) for name in ("matmul", "matmul_by_pointers") for one in PRODUCTS),
        *(("matmul_by_tensor_descriptors", sizes, torch.float16) for sizes in DESCRIBED),
    ],
)
def test_matmul(name, sizes, dtype):
    if name == "matmul_by_tensor_descriptors":
        pytest.importorskip("triton.tools.tensor_descriptor")
    m, n, k = sizes
    a, b = normal(m, k, dtype=dtype), normal(k, n, dtype=dtype, seed=1)
    assert_right(kernel("matmul", name)(a, b), a.double() @ b.double(), dtype)


@cases("module", "name", "inputs")
def test_nothing_is_launched_for_empty_tensors(module, name, inputs):
    output = kernel(module, name)(*(torch.ones(shape) for shape in inputs))
    assert output.numel() == 0


def test_a_product_over_no_elements_is_zero():
    assert not kernel("matmul", "matmul")(torch.ones(3, 0), torch.ones(0, 2)).any()


@pytest.mark.parametrize(
    ("module", "name", "arguments", "message"),
    [
        ("elementwise", "square", [torch.ones(4, 4).t()[:2]], "x is not contiguous"),
        ("elementwise", "square", [torch.ones(4, dtype=torch.float64)], r"x is torch\.float64"),
        ("elementwise", "add", [torch.ones(4), torch.ones(4, dtype=torch.float16)], "y is torch.float16"),
        ("elementwise", "add", [torch.ones(4), torch.ones(5)], "shapes differ"),
        ("elementwise", "gelu", [torch.ones(4), "sigmoid"], "no form 'sigmoid'"),
        ("softmax", "softmax", [torch.tensor(1.0)], "has no rows"),
        ("layer_norm", "layer_norm", [torch.ones(2, 4), torch.ones(3), torch.ones(4)], "rows have 4"),
        ("matmul", "matmul", [torch.ones(2, 3), torch.ones(2, 3)], "cannot be multiplied"),
    ],
)
def test_arguments_a_kernel_cannot_take_are_refused(module, name, arguments, message):
    with pytest.raises(InputError, match=message):
        kernel(module, name)(*arguments)
