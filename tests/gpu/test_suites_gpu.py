"""Every implementation of every suite on a device: right in every dtype, at sizes that fit nothing evenly."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from opscope.benchmarking.check import check_output  # noqa: E402
from opscope.benchmarking.suites import SUITES, suite  # noqa: E402
from opscope.kernels.triton import load_triton  # noqa: E402
from opscope.model.benchmark import Engine, Status  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]  # of torch.compile and Triton

# Sizes no tile, vector or warp divides, and sizes that all of them do.
SHAPES = {
    "gelu": [(61, 67), (1024, 1024)],
    "square": [(61, 67), (1024, 1024)],
    "add": [(61, 67), (1024, 1024)],
    "softmax": [(61, 1003), (33, 8192), (5, 40001)],
    "layer_norm": [(61, 1003), (33, 8192), (5, 40001)],
    "matmul": [(131, 77, 53), (520, 264, 72), (1024, 1024, 512)],
    "cdist": [(61, 67, 5), (512, 256, 64)],
}

CASES = [
    (name, dtype, shape)
    for name, shapes in SHAPES.items()
    for dtype in suite(name).dtypes
    for shape in shapes
]


def problem(name, *, implementations=(), **values):
    return suite(name).problem(values, device="cuda", implementations=implementations)


def assert_right(made, implementation):
    outcome = check_output(implementation.build(), made, reference=None, tolerance=implementation.tolerance)
    assert (outcome.status, outcome.reason) == (Status.OK, None), implementation.name
    assert outcome.check is not None


@pytest.mark.parametrize(("name", "dtype", "shape"), CASES)
def test_every_implementation_is_right(name, dtype, shape):
    made = problem(name, dtype=dtype, shape=shape)
    for implementation in made.implementations:
        if implementation.engine is Engine.COMPILE:
            continue
        assert_right(made, implementation)
        assert not implementation.is_interpreted


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["gelu", "softmax", "layer_norm"])
def test_compiled_compositions_are_right(name, dtype):
    made = problem(name, dtype=dtype, shape=(61, 1003), implementations=("compile",))
    assert_right(made, made.implementations[0])


def test_the_exact_gelu_is_right():
    made = problem("gelu", shape=(61, 67), approximate="none")
    for implementation in made.implementations:
        assert_right(made, implementation)


@pytest.mark.parametrize("name", SUITES)
def test_default_problems_can_be_made(name):
    made = problem(name)
    assert (made.device, made.shape) == ("cuda:0", suite(name).cuda_shape)
    assert made.dtype == suite(name).cuda_dtype


def test_large_16_bit_products_are_made_by_tensor_descriptors():
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("the copy engine came with compute capability 9.0")
    module = load_triton("matmul")
    for dtype in (torch.float16, torch.bfloat16):
        for m, n, k in ((2048, 2048, 2048), (1000, 1032, 520), (136, 72, 8)):
            a, b = (torch.randn(shape, device="cuda", dtype=dtype) for shape in ((m, k), (k, n)))
            assert module.takes_descriptors(a, b)
            expected = a.double() @ b.double()
            for function in (module.matmul, module.matmul_by_pointers):
                assert (function(a, b) - expected).abs().max() < 0.02 * k**0.5


def test_products_that_are_not_aligned_go_by_pointers():
    module = load_triton("matmul")
    a, b = (torch.randn(64, 65, device="cuda", dtype=torch.float16) for _ in range(2))
    assert not module.takes_descriptors(a, b.t().contiguous())


def test_tf32_is_put_back_as_it_was():
    before = torch.backends.cuda.matmul.allow_tf32
    made = problem("matmul", dtype="float32", shape=(64, 64, 64), implementations=("torch_tf32",))
    made.implementations[0].build()(*made.make_inputs(0))
    assert torch.backends.cuda.matmul.allow_tf32 == before


@pytest.mark.parametrize("name", ["square", "square_teaching"])
def test_more_elements_than_32_bits_count(name):
    size = 2**31 + 100
    if torch.cuda.mem_get_info()[0] < 6 * size:
        pytest.skip("needs 13 GB of free device memory")
    x = torch.zeros(size, device="cuda", dtype=torch.bfloat16)
    x[-100:] = 3
    output = getattr(load_triton("elementwise"), name)(x)
    assert (output[-100:] == 9).all()
    assert not output[:-100].any()


@pytest.mark.parametrize("name", ["softmax", "softmax_teaching"])
def test_rows_that_begin_past_32_bits(name):
    rows, columns = 2**16 + 1, 2**15
    if torch.cuda.mem_get_info()[0] < 6 * rows * columns:
        pytest.skip("needs 13 GB of free device memory")
    x = torch.zeros(rows, columns, device="cuda", dtype=torch.bfloat16)
    output = getattr(load_triton("softmax"), name)(x)
    assert (output[-1] == 1 / columns).all()
    assert (output[0] == 1 / columns).all()


def test_kernels_run_on_the_current_stream():
    x = torch.ones(1 << 22, device="cuda")
    square = load_triton("elementwise").square
    square(x)  # tuned and compiled
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        y = x + 1
        output = square(y)
    stream.synchronize()
    assert (output == 4).all()
