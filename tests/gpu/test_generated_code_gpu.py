"""Generated code of kernels that run on a GPU: of Triton and of torch.compile."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

from opscope.errors import MeasurementError  # noqa: E402
from opscope.kernels.code import CodeKind, generated_code  # noqa: E402

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


@pytest.fixture
def needs_triton():
    if triton is None:
        pytest.skip("no Triton")


def test_code_of_torch_compile(needs_triton):
    x = torch.randn(1000, device="cuda")
    compiled = torch.compile(lambda x: functional.gelu(x) * 2)
    graph = generated_code(CodeKind.TRITON, compiled, (x,))
    assert any("tl.store" in text.text for text in graph)
    (ptx,) = generated_code(CodeKind.PTX, compiled, (x,))
    assert ptx.title.startswith("triton_")
    assert ".entry" in ptx.text
    (sass,) = generated_code(CodeKind.SASS, compiled, (x,))
    assert "STG" in sass.text


def test_code_of_a_triton_kernel(needs_triton):
    x = torch.randn(8192, device="cuda")  # with another remainder, masks would forbid wide accesses
    source, *forms = generated_code(CodeKind.TRITON, triple, (x,))
    assert source.title == "triple_kernel: source"
    assert "tl.store" in source.text
    assert [form.language for form in forms] == ["mlir", "mlir"]
    (ptx,) = generated_code(CodeKind.PTX, triple, (x,))
    assert ".entry triple_kernel" in ptx.text
    (sass,) = generated_code(CodeKind.SASS, triple, (x,))
    assert "LDG.E.128" in sass.text


def test_kernels_of_torch_itself_have_no_code_to_show():
    x = torch.randn(1000, 512, device="cuda")
    with pytest.raises(MeasurementError, match="launches no compiled Triton kernel"):
        generated_code(CodeKind.SASS, torch.square, (x,))
