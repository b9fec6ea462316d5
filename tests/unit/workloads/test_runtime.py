import pytest

from case_tables import cases
from opscope.errors import InputError
from opscope.workloads import runtime


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.mark.torch
@cases("name", "count", "expected")
def test_names_of_devices(torch, monkeypatch, name, count, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    if expected in {"cpu", "cuda:1"}:
        assert runtime.resolve_device(name) == expected
        return
    with pytest.raises(InputError, match=expected):
        runtime.resolve_device(name)


@pytest.mark.torch
def test_a_dtype_the_device_cannot_compute(torch, monkeypatch):
    def refuse(*args, **kwargs):
        raise RuntimeError("\"layer_norm\" not implemented for 'Half'")

    runtime.check_dtype("bfloat16", "cpu")
    monkeypatch.setattr(torch.nn.functional, "layer_norm", refuse)
    with pytest.raises(InputError, match="cannot compute in float16"):
        runtime.check_dtype("float16", "cpu")


@pytest.mark.torch
def test_seeds_are_fixed_inside_and_restored_after(torch):
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    with runtime.seeded(7, "cpu"):
        first = torch.rand(1)
    assert torch.equal(torch.rand(1), expected)
    with runtime.seeded(7, "cpu"):
        assert torch.equal(torch.rand(1), first)


@pytest.mark.torch
def test_out_of_memory_in_all_its_forms(torch):
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    of_cublas = RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling")
    for error in (MemoryError(), torch.OutOfMemoryError("CUDA out of memory"), of_cublas, caught.value):
        assert runtime.is_out_of_memory(error)
    assert not runtime.is_out_of_memory(RuntimeError("shape mismatch"))
    assert not runtime.is_out_of_memory(None)


@pytest.mark.torch
def test_every_device_in_use_is_waited_for_and_no_other(torch, monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    has_context = [True, False, True].__getitem__
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", has_context, raising=False)
    runtime.synchronize()
    assert waited == [0, 2]
