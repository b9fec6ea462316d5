"""Generated code of kernels that run on a GPU: of the CUDA extension, of Triton and of torch.compile."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

from opscope.errors import MeasurementError  # noqa: E402
from opscope.kernels.build import load_cuda_kernels  # noqa: E402
from opscope.kernels.code import (  # noqa: E402
    generated_code,
    kernel_libraries,
    library_symbols,
)

# Building and compiling warn of what does not matter here: architectures, precision, releases.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None
else:

    @triton.jit
    def triple_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):  # noqa: N803
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = offsets < n
        tl.store(y_ptr + offsets, 3 * tl.load(x_ptr + offsets, mask=mask), mask=mask)


def triple(x):
    y = torch.empty_like(x)
    triple_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y


@pytest.fixture(scope="module")
def kernels():
    return load_cuda_kernels()


@pytest.fixture
def needs_triton():
    if triton is None:
        pytest.skip("no Triton")


def test_ptx_and_machine_code_of_the_kernel_that_a_call_launches(kernels):
    x = torch.randn(1000, 512, device="cuda")
    (ptx,) = generated_code("ptx", kernels.softmax, (x,))
    assert ptx.title.startswith("softmax_kernel<float, 4, ")
    assert ".entry" in ptx.text
    assert ".v4." in ptx.text
    (sass,) = generated_code("sass", kernels.softmax, (x,))
    assert "LDG.E.128" in sass.text
    assert "STG.E.128" in sass.text
    assert "LDL" not in sass.text  # No local memory: the row is in registers.


def test_code_of_torch_compile(needs_triton):
    x = torch.randn(1000, device="cuda")
    compiled = torch.compile(lambda x: functional.gelu(x) * 2)
    graph = generated_code("triton", compiled, (x,))
    assert any("tl.store" in text.text for text in graph)
    (ptx,) = generated_code("ptx", compiled, (x,))
    assert ptx.title.startswith("triton_")
    assert ".entry" in ptx.text
    (sass,) = generated_code("sass", compiled, (x,))
    assert "STG" in sass.text


def test_symbols_are_those_of_a_profile(kernels):
    x = torch.randn(1000, 512, device="cuda")
    kernels.square(x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        kernels.square(x)
        torch.cuda.synchronize()
    names = {event.name for event in profiler.events() if "square_kernel" in event.name}
    (library,) = [path for path in kernel_libraries() if "opscope_kernels" in path.name]
    assert names
    assert names <= set(library_symbols(library))


def test_code_of_a_triton_kernel(needs_triton):
    x = torch.randn(8192, device="cuda")  # with another remainder, masks would forbid wide accesses
    source, *forms = generated_code("triton", triple, (x,))
    assert source.title == "triple_kernel: source"
    assert "tl.store" in source.text
    assert [form.language for form in forms] == ["mlir", "mlir"]
    (ptx,) = generated_code("ptx", triple, (x,))
    assert ".entry triple_kernel" in ptx.text
    (sass,) = generated_code("sass", triple, (x,))
    assert "LDG.E.128" in sass.text


def test_kernels_of_torch_itself_are_named_but_not_searched():
    x = torch.randn(1000, 512, device="cuda")
    with pytest.raises(MeasurementError, match="those of PyTorch and NVIDIA are not searched"):
        generated_code("sass", torch.square, (x,))
