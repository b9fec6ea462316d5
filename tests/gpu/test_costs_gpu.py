"""Operations and least bytes of calls recorded here equal counts by hand."""

import re

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812 - as torch's own pages name it
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

import opscope  # noqa: E402
from opscope.hardware.devices import DataType  # noqa: E402
from opscope.operators.session_costs import fill_costs, read_costs  # noqa: E402

# A first backward pass, a first product: libraries warn of what does not matter here.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

PRODUCTS = re.compile(r"aten::(.*mm.*|.*attention.*|.*convolution.*|_conv_depthwise2d)")


@pytest.fixture
def costs(tmp_path):
    """Records one call of a function and returns the rows of its costs."""

    def record(step):
        _, session = opscope.profile_call(step, output_dir=tmp_path / "out", warmup=2, active=1)
        with session:
            fill_costs(session)
            return read_costs(session)

    return record


def product_flops(rows):
    """Operations of all matrix products, convolutions and attentions; each must be known."""
    products = [row for row in rows if PRODUCTS.fullmatch(row.name)]
    assert products
    assert all(row.cost.flop_count is not None for row in products), products
    return sum(row.calls * row.cost.flop_count for row in products)


def moved(rows, *names):
    """Bytes read and written by all calls of some operators; each must be known."""
    found = [row for row in rows if row.name.removeprefix("aten::") in names]
    assert found, [row.name for row in rows]
    assert all(row.cost.min_bytes is not None for row in found), found
    return (
        sum(row.calls * row.cost.read_bytes for row in found),
        sum(row.calls * row.cost.written_bytes for row in found),
    )


def data(*shape, dtype=torch.float32, grad=False):
    return torch.randn(shape, device="cuda", dtype=dtype, requires_grad=grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_matrix_products(costs, dtype):
    a, b, c = data(256, 512, dtype=dtype), data(512, 384, dtype=dtype), data(384, dtype=dtype)
    batch, other = data(8, 128, 64, dtype=dtype), data(8, 64, 96, dtype=dtype)

    def step():
        torch.mm(a, b)
        torch.addmm(c, a, b)
        torch.bmm(batch, other)

    rows = costs(step)
    assert product_flops(rows) == 2 * (2 * 256 * 512 * 384) + 2 * 8 * 128 * 64 * 96
    expected = {torch.float32: DataType.FP32, torch.bfloat16: DataType.BF16, torch.float16: DataType.FP16}
    assert {row.cost.data_type for row in rows if PRODUCTS.fullmatch(row.name)} == {expected[dtype]}
    item = a.element_size()
    assert moved(rows, "mm") == (item * (256 * 512 + 512 * 384), item * 256 * 384)


def test_a_linear_layer_forward_and_backward(costs):
    x = data(4, 128, 256, dtype=torch.bfloat16, grad=True)
    weight, bias = data(512, 256, dtype=torch.bfloat16, grad=True), data(512, dtype=torch.bfloat16, grad=True)
    gradient = data(4, 128, 512, dtype=torch.bfloat16)

    def step():
        F.linear(x, weight, bias).backward(gradient)
        x.grad = weight.grad = bias.grad = None

    assert product_flops(costs(step)) == 3 * 2 * (4 * 128) * 256 * 512


@pytest.mark.parametrize("groups", [1, 2, 64])
def test_a_convolution_forward_and_backward(costs, groups):
    x, weight = data(8, 64, 32, 32, grad=True), data(128, 64 // groups, 3, 3, grad=True)
    gradient = data(8, 128, 16, 16)

    def step():
        F.conv2d(x, weight, stride=2, padding=1, groups=groups).backward(gradient)
        x.grad = weight.grad = None

    one_pass = 2 * 8 * 128 * 16 * 16 * (64 // groups) * 3 * 3
    assert product_flops(costs(step)) == 3 * one_pass


def test_a_convolution_whose_input_needs_no_gradient(costs):
    x, weight, gradient = data(8, 16, 32, 32), data(32, 16, 3, 3, grad=True), data(8, 32, 30, 30)

    def step():
        F.conv2d(x, weight).backward(gradient)
        weight.grad = None

    assert product_flops(costs(step)) == 2 * (2 * 8 * 32 * 30 * 30 * 16 * 3 * 3)


BATCH, HEADS, LENGTH, SIZE = 2, 8, 256, 64
SCORES = 2 * BATCH * HEADS * LENGTH * LENGTH * SIZE  # operations of one of attention's products


@pytest.mark.parametrize(
    ("backend", "products"),
    [
        # Forward 2 products; backward 5 where scores are computed again, 4 where they were kept.
        (SDPBackend.FLASH_ATTENTION, 7),
        (SDPBackend.EFFICIENT_ATTENTION, 7),
        (SDPBackend.CUDNN_ATTENTION, 7),
        (SDPBackend.MATH, 6),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_forward_and_backward(costs, backend, products, is_causal):
    query, key, value = (data(BATCH, HEADS, LENGTH, SIZE, dtype=torch.bfloat16, grad=True) for _ in range(3))
    gradient = data(BATCH, HEADS, LENGTH, SIZE, dtype=torch.bfloat16)

    def step():
        with sdpa_kernel(backend):
            F.scaled_dot_product_attention(query, key, value, is_causal=is_causal).backward(gradient)
        query.grad = key.grad = value.grad = None

    assert product_flops(costs(step)) == products * SCORES


def test_attention_moves_its_arguments_once(costs):
    query, key, value = (data(BATCH, HEADS, LENGTH, SIZE, dtype=torch.bfloat16) for _ in range(3))

    def step():
        with torch.no_grad(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            F.scaled_dot_product_attention(query, key, value)

    one = 2 * BATCH * HEADS * LENGTH * SIZE
    # Flash attention always writes the sums of exponentials: fp32, one for each query and head.
    assert moved(costs(step), "_flash_attention_forward") == (3 * one, one + 4 * BATCH * HEADS * LENGTH)


ROWS, COLUMNS = 1024, 768
WHOLE = 4 * ROWS * COLUMNS


def test_softmax_and_gelu_read_and_write_once(costs):
    x = data(ROWS, COLUMNS)

    def step():
        torch.softmax(x, -1)
        F.gelu(x)

    rows = costs(step)
    assert moved(rows, "_softmax") == (WHOLE, WHOLE)
    assert moved(rows, "gelu") == (WHOLE, WHOLE)


def test_copies(costs):
    x, half = data(ROWS, COLUMNS), torch.empty(ROWS, COLUMNS, dtype=torch.float16, device="cuda")
    row = data(COLUMNS)

    def step():
        x.t().contiguous()
        half.copy_(x)
        row.expand(ROWS, COLUMNS).contiguous()
        x.clone()  # a copy by the driver
        x.cpu()

    transposed, converted, expanded, cloned, to_host = WHOLE, WHOLE, 4 * COLUMNS, WHOLE, WHOLE
    assert moved(costs(step), "copy_") == (
        transposed + converted + expanded + cloned + to_host,
        WHOLE + WHOLE // 2 + WHOLE + WHOLE,
    )


def test_layer_norm(costs):
    x, weight, bias = data(ROWS, COLUMNS), data(COLUMNS), data(COLUMNS)
    rows = costs(lambda: F.layer_norm(x, (COLUMNS,), weight, bias))
    assert moved(rows, "native_layer_norm") == (WHOLE + 2 * 4 * COLUMNS, WHOLE + 2 * 4 * ROWS)


def test_embedding_reads_the_rows_it_takes(costs):
    table = data(50_000, COLUMNS)
    indices = torch.randint(0, 50_000, (16, 64), device="cuda")
    rows = costs(lambda: F.embedding(indices, table))
    taken = 4 * 16 * 64 * COLUMNS
    read_bytes, written_bytes = moved(rows, "embedding", "index_select", "gather")
    assert (read_bytes, written_bytes) == (taken + 8 * 16 * 64, taken)


def test_optimizers_lists_are_those_of_the_gradients(costs):
    """More than 30 tensors: the recorder leaves the lists out."""
    layers = [torch.nn.Linear(size, 300, device="cuda") for size in range(200, 240)]
    model = torch.nn.ModuleList(layers)
    count = sum(parameter.numel() for parameter in model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)

    def step():
        sum(layer(torch.ones(8, layer.in_features, device="cuda")).sum() for layer in layers).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    # p - lr·g: parameters and gradients are read, parameters written.
    assert moved(costs(step), "_foreach_add_") == (2 * 4 * count, 4 * count)
