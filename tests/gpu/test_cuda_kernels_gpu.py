"""The CUDA kernels on a GPU: right for every size, type and alignment, and clear about what they refuse."""

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

from opscope.kernels.build import load_cuda_kernels  # noqa: E402

# Building and compiling warn of what does not matter here: architectures, precision, releases.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# Half a unit in the last place of the type, and a few roundings in float.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 6e-4, torch.bfloat16: 5e-3}
COUNTS = [1, 2, 7, 8, 31, 1023, 1025, 4096, 4097, 16383, 16385, 1_000_003]
COLUMNS = [1, 2, 7, 8, 31, 32, 33, 100, 255, 256, 257, 511, 512, 513, 1023, 1024, 1025, 2048, 2049]
COLUMNS += [4096, 4097, 8191, 8192, 8193, 16384, 16385, 16392, 32768, 32769, 40000]
ROWS = [1, 7, 33]
VERSIONS = ["", "_teaching"]


@pytest.fixture(scope="module")
def kernels():
    return load_cuda_kernels()


@pytest.fixture(scope="module")
def random():
    return torch.Generator("cuda").manual_seed(5)


@pytest.fixture
def make(random):
    """A random tensor; with an offset, a contiguous view that does not begin at a multiple of 16 bytes."""

    def tensor(*shape, dtype=torch.float32, offset=0, scale=2.0, shift=0.0):
        elements = torch.Size(shape).numel()
        storage = torch.randn(elements + offset, device="cuda", generator=random) * scale + shift
        return storage.to(dtype)[offset:].view(shape)

    return tensor


def assert_close(actual, expected, dtype, *, tolerance=None, least=1e-30):
    """Not finite in the same places, and else equal within a tolerance of the largest expected magnitude.

    `least` is the smallest magnitude to refer to, for functions that subtract nearly equal numbers.
    """
    assert actual.dtype == dtype
    assert actual.shape == expected.shape
    actual = actual.double()
    finite = expected.isfinite()
    assert torch.equal(actual.isfinite(), finite)
    assert torch.equal(actual.isnan(), expected.isnan())
    if finite.any():
        error = (actual - expected)[finite].abs().max() / expected[finite].abs().max().clamp(min=least)
        assert error.item() <= (TOLERANCE[dtype] if tolerance is None else tolerance)


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_elementwise_operators(kernels, make, dtype, offset):
    for count in COUNTS:
        x, y = make(count, dtype=dtype, offset=offset), make(count, dtype=dtype)
        for version in VERSIONS:
            square, add = getattr(kernels, f"square{version}"), getattr(kernels, f"add{version}")
            assert torch.equal(square(x), (x.float() * x.float()).to(dtype))
            assert torch.equal(add(x, y), x + y)
            gelu = getattr(kernels, f"gelu{version}")
            for approximate in ("none", "tanh"):
                expected = functional.gelu(x.double(), approximate=approximate)
                assert_close(gelu(x, approximate), expected, dtype, least=1.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu_agrees_with_torch_at_every_magnitude(kernels, dtype):
    x = torch.cat([torch.linspace(-12, 12, 100_001), torch.tensor([0.0, -0.0, 1e-30, 300.0, -300.0])])
    x = x.to("cuda", dtype)
    for approximate in ("none", "tanh"):
        ours, torchs = kernels.gelu(x, approximate), functional.gelu(x, approximate=approximate)
        assert_close(ours, torchs.double(), dtype)
        torch.testing.assert_close(ours, torchs, rtol=2 * TOLERANCE[dtype], atol=1e-6)
    ends = torch.tensor([float("inf"), float("nan")], device="cuda", dtype=dtype)
    assert kernels.gelu(ends, "none").tolist()[0] == float("inf")
    assert kernels.gelu(ends, "none").isnan().tolist() == [False, True]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_of_any_row_length(kernels, make, dtype, offset, version):
    softmax = getattr(kernels, f"softmax{version}")
    for columns in COLUMNS:
        for rows in ROWS:
            x = make(rows, columns, dtype=dtype, offset=offset, scale=4.0)
            assert_close(softmax(x), torch.softmax(x.double(), -1), dtype)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("columns", [5, 256, 700, 8192, 20000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_of_rows_that_are_not_finite(kernels, make, dtype, columns, version):
    infinity = float("inf")
    x = make(6, columns, dtype=dtype)
    x[0] = -infinity
    x[1, : columns // 2] = -infinity
    x[2, columns - 1] = infinity
    x[3, 0] = float("nan")
    x[4] = 3e4 if dtype == torch.float16 else 1e30
    expected = torch.softmax(x.double(), -1)
    assert_close(getattr(kernels, f"softmax{version}")(x), expected, dtype)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_norm_of_any_row_length(kernels, make, dtype, offset, version):
    layer_norm = getattr(kernels, f"layer_norm{version}")
    for columns in COLUMNS:
        for rows in ROWS:
            x = make(rows, columns, dtype=dtype, offset=offset, shift=1.0)
            weight, bias = make(columns, dtype=dtype), make(columns, dtype=dtype, offset=offset)
            expected = functional.layer_norm(x.double(), (columns,), weight.double(), bias.double(), 1e-3)
            # Of two nearly equal elements the deviations keep few digits.
            tolerance = TOLERANCE[dtype] + 4e-5
            actual = layer_norm(x, weight, bias, 1e-3)
            assert_close(actual, expected, dtype, tolerance=tolerance, least=1.0)


@pytest.mark.parametrize("columns", [33, 1000, 8192, 40000])
def test_layer_norm_keeps_its_digits_far_from_zero(kernels, make, columns):
    x = make(5, columns, scale=1.0, shift=1000.0)
    weight, bias = torch.ones(columns, device="cuda"), torch.zeros(columns, device="cuda")
    expected = functional.layer_norm(x.double(), (columns,))
    torchs = functional.layer_norm(x, (columns,)).double()
    ours = kernels.layer_norm(x, weight, bias, 1e-5).double()
    assert (ours - expected).norm() <= 2 * (torchs - expected).norm() + 5e-4 * expected.norm()


@pytest.mark.parametrize("dtype", DTYPES)
def test_many_short_rows(kernels, make, dtype):
    x = make(300_001, 3, dtype=dtype)
    assert_close(kernels.softmax(x), torch.softmax(x.double(), -1), dtype)
    assert_close(kernels.softmax_teaching(x), torch.softmax(x.double(), -1), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_matrix_products(kernels, make, dtype):
    for m, n, k in [
        (1, 1, 1),
        (7, 5, 3),
        (16, 16, 16),
        (33, 47, 129),
        (1025, 1, 7),
        (1, 4097, 64),
        (255, 257, 1023),
    ]:
        a, b = make(m, k, dtype=dtype, scale=1.0), make(k, n, dtype=dtype, scale=1.0, offset=1)
        assert_close(
            kernels.matmul_teaching(a, b), a.double() @ b.double(), dtype, tolerance=3 * TOLERANCE[dtype]
        )


def test_a_matrix_product_over_nothing_is_zero(kernels):
    a, b = torch.empty(3, 0, device="cuda"), torch.empty(0, 4, device="cuda")
    assert torch.equal(kernels.matmul_teaching(a, b), torch.zeros(3, 4, device="cuda"))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (2, 0, 3)])
def test_an_empty_tensor_gives_an_empty_tensor(kernels, shape, version):
    x = torch.empty(shape, device="cuda")
    row = torch.empty(shape[-1], device="cuda")
    calls = {
        "gelu": (x, "tanh"),
        "square": (x,),
        "add": (x, x),
        "softmax": (x,),
        "layer_norm": (x, row, row, 1e-5),
    }
    for name, arguments in calls.items():
        assert getattr(kernels, name + version)(*arguments).shape == shape


def test_higher_dimensions_and_none(kernels, make):
    x = make(2, 3, 5, 7)
    assert_close(kernels.softmax(x), torch.softmax(x.double(), -1), torch.float32)
    assert kernels.softmax(torch.tensor(3.0, device="cuda")).item() == 1.0
    assert kernels.square(torch.tensor(3.0, device="cuda")).item() == 9.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda k, x: k.square(x.cpu()), r"x must be on a CUDA device, but is on cpu; use x.cuda\(\)"),
        (lambda k, x: k.add(x, x.cpu()), r"y must be on a CUDA device, but is on cpu"),
        (lambda k, x: k.softmax(x.t()), r"x must be contiguous; use x.contiguous\(\)"),
        (lambda k, x: k.gelu(x[:, ::2], "none"), r"x must be contiguous"),
        (lambda k, x: k.square(x.double()), r"x must be float32, float16 or bfloat16, but is Double"),
        (lambda k, x: k.square(x.int()), r"x must be float32, float16 or bfloat16, but is Int"),
        (lambda k, x: k.add(x, x.half()), r"x and y must have one dtype"),
        (lambda k, x: k.add(x, x[:2]), r"x and y must have one shape.*\[4, 6\] and \[2, 6\]"),
        (
            lambda k, x: k.gelu(x, "erf"),
            r"approximate must be 'none' \(the erf formula\) or 'tanh', but is 'erf'",
        ),
        (lambda k, x: k.layer_norm(x, x[0], x[0, :5], 1e-5), r"must have the shape \[6\]"),
        (lambda k, x: k.layer_norm(x[0, 0], x[0], x[0], 1e-5), r"at least one dimension"),
        (lambda k, x: k.matmul_teaching(x, x), r"columns of a must be as many as the rows of b"),
        (lambda k, x: k.matmul_teaching(x, x[0]), r"must be matrices"),
        (lambda k, x: k.square(x.clone().requires_grad_()), r"x requires a gradient.*torch.no_grad\(\)"),
    ],
)
def test_what_cannot_be_used_is_refused_with_what_to_do(kernels, make, call, message):
    with pytest.raises(RuntimeError, match=message):
        call(kernels, make(4, 6))


def test_a_tensor_that_requires_a_gradient_is_fine_without_gradients(kernels, make):
    x = make(10).requires_grad_()
    with torch.no_grad():
        assert torch.equal(kernels.square(x), x * x)


def test_kernels_run_on_the_current_stream(kernels, make):
    """What was queued before on that stream, and takes long, is finished first."""
    stream = torch.cuda.Stream()
    x = make(1 << 20)
    expected = x.double() + 1
    kernels.add(x, x)  # Loading a kernel waits for the device.
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        y = kernels.add(x + 1, torch.zeros_like(x))
        assert not stream.query()
    torch.cuda.current_stream().wait_stream(stream)
    assert_close(y, expected, torch.float32)


def test_more_than_two_to_the_31_elements(kernels):
    count = 2**31 + 4099
    if torch.cuda.mem_get_info()[0] < 6 * count:
        return  # Two tensors of 4.3 GB and some room.
    x = torch.empty(count, dtype=torch.bfloat16, device="cuda")
    x.fill_(1.0)
    x[-5000:] = torch.linspace(-2, 2, 5000, device="cuda").bfloat16()
    for version in VERSIONS:
        y = getattr(kernels, f"square{version}")(x)
        assert torch.equal(y[-5000:], x[-5000:] * x[-5000:])
        assert torch.equal(y[:5000], x[:5000])
        assert bool((y[2**31 - 20_000 : 2**31 - 10_000] == 1).all())
        del y


def test_rows_of_more_elements_than_two_to_the_31(kernels):
    rows, columns = 2**21 + 3, 1024
    if torch.cuda.mem_get_info()[0] < 6 * rows * columns:
        return  # Two tensors of 4.3 GB and some room.
    x = torch.zeros(rows, columns, dtype=torch.bfloat16, device="cuda")
    x[-1] = torch.linspace(-2, 2, columns, device="cuda").bfloat16()
    y = kernels.softmax(x)
    assert_close(y[-1], torch.softmax(x[-1].double(), -1), torch.bfloat16)
    assert bool((y[-2] == 1 / 1024).all())
    weight, bias = torch.ones(columns, device="cuda"), torch.zeros(columns, device="cuda")
    del y
    y = kernels.layer_norm(x, weight.bfloat16(), bias.bfloat16(), 1e-5)
    assert_close(y[-1], functional.layer_norm(x[-1].double(), (columns,)), torch.bfloat16)
