from __future__ import annotations

import subprocess
import sys

import pytest

from opscope.errors import InputError
from opscope.workloads import runtime


def test_importing_the_layers_does_not_import_torch():
    program = (
        "import sys\n"
        "import opscope.benchmarking.timer, opscope.capture.calls, opscope.capture.cycle\n"
        "import opscope.capture.sweep\n"
        "import opscope.workloads.spec, opscope.testing\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


@pytest.mark.parametrize(("name", "dtype"), [("fp32", "float32"), ("BF16", "bfloat16"), ("half", "float16")])
def test_dtype_aliases(name, dtype):
    assert runtime.resolve_dtype(name) == dtype


def test_other_dtypes_are_refused():
    with pytest.raises(InputError, match="'int8' is not a dtype"):
        runtime.resolve_dtype("int8")


@pytest.mark.torch
class TestWithTorch:
    torch = None

    @pytest.fixture(autouse=True)
    def load(self):
        type(self).torch = pytest.importorskip("torch")

    @pytest.mark.parametrize("name", ["gpu", "cpu:0", "cuda:x", ""])
    def test_what_is_no_device(self, name):
        with pytest.raises(InputError, match="is not a device"):
            runtime.resolve_device(name)

    def test_auto_and_cpu(self):
        assert runtime.resolve_device("cpu") == "cpu"
        assert runtime.resolve_device("auto") == ("cuda:0" if self.torch.cuda.is_available() else "cpu")

    def test_cuda_without_a_device_says_what_to_do(self, monkeypatch):
        monkeypatch.setattr(self.torch.cuda, "is_available", lambda: False)
        with pytest.raises(InputError, match=r"finds no CUDA device.*--device cpu"):
            runtime.resolve_device("cuda")

    def test_a_device_beyond_the_last(self, monkeypatch):
        monkeypatch.setattr(self.torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(self.torch.cuda, "device_count", lambda: 2)
        assert runtime.resolve_device("cuda:1") == "cuda:1"
        with pytest.raises(InputError, match="cuda:0 to cuda:1"):
            runtime.resolve_device("cuda:2")

    def test_a_dtype_the_device_cannot_compute(self, monkeypatch):
        def refuse(*args, **kwargs):
            raise RuntimeError("\"layer_norm\" not implemented for 'Half'")

        runtime.check_dtype("bfloat16", "cpu")
        monkeypatch.setattr(self.torch.nn.functional, "layer_norm", refuse)
        with pytest.raises(InputError, match="cannot compute in float16"):
            runtime.check_dtype("float16", "cpu")

    def test_seeds_are_fixed_inside_and_restored_after(self):
        torch = self.torch
        torch.manual_seed(1)
        expected = torch.rand(1)
        torch.manual_seed(1)
        with runtime.seeded(7, "cpu"):
            first = torch.rand(1)
        assert torch.equal(torch.rand(1), expected)
        with runtime.seeded(7, "cpu"):
            assert torch.equal(torch.rand(1), first)

    def test_out_of_memory_in_all_its_forms(self):
        torch = self.torch
        assert runtime.is_out_of_memory(MemoryError())
        assert runtime.is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
        assert runtime.is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"))
        with pytest.raises(RuntimeError) as caught:
            torch.empty(2**60, dtype=torch.uint8)
        assert runtime.is_out_of_memory(caught.value)
        assert not runtime.is_out_of_memory(RuntimeError("shape mismatch"))
        assert not runtime.is_out_of_memory(None)

    def test_every_device_in_use_is_waited_for_and_no_other(self, monkeypatch):
        waited = []
        monkeypatch.setattr(self.torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(self.torch.cuda, "device_count", lambda: 3)
        monkeypatch.setattr(self.torch.cuda, "synchronize", waited.append)
        has_context = [True, False, True].__getitem__
        monkeypatch.setattr(self.torch._C, "_cuda_hasPrimaryContext", has_context, raising=False)
        runtime.synchronize()
        assert waited == [0, 2]
