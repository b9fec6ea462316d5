"""Which functions of `.cu` files C++ code calls: only those whose name can mean nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from opscope.provenance.sources import SourceIndex, source_index

IndexOf = Callable[..., SourceIndex]

CUDA = "aten/src/ATen/native/cuda"
CALLER = """
    namespace at::native {
    void caller() {
      launch_one(self);
      shared(self);
      helper(self);
      Thing::member(self);
      if (self.defined()) { launch_two(self); }
    }
    }
"""
FILES = {
    f"{CUDA}/Caller.cpp": CALLER,
    f"{CUDA}/One.cu": "namespace at::native { void launch_one(int) {} void launch_one(float) {} "
    "void shared() {} }",
    f"{CUDA}/Two.cu": "namespace at::native { void launch_two() { launch_one(1); } }",
    f"{CUDA}/Member.cu": "namespace at::native { struct Thing { static void member() {} }; }",
    "aten/src/ATen/native/cpu/Shared.cpp": "namespace at::native { void shared() {} }",
    "aten/src/ATen/native/Helper.h": "namespace at::native { inline void helper() {} }",
}


@pytest.fixture
def index(index_of: IndexOf) -> SourceIndex:
    return index_of(FILES)


def test_a_function_names_those_that_one_cu_file_alone_defines(index: SourceIndex) -> None:
    caller = index.function("caller")
    assert caller is not None
    assert caller.launchers == ("launch_one", "launch_two")


def test_device_code_names_none(index: SourceIndex) -> None:
    """A function of a `.cu` file is at the device already."""
    two = index.function("launch_two")
    assert two is not None
    assert two.launchers == ()


def test_a_launcher_is_located(index: SourceIndex) -> None:
    two = index.launcher("launch_two")
    assert two is not None
    assert (two.file, two.line) == (f"{CUDA}/Two.cu", 1)


def test_of_overloads_in_one_file_the_line_stays_open(index: SourceIndex) -> None:
    one = index.launcher("launch_one")
    assert one is not None
    assert (one.file, one.line) == (f"{CUDA}/One.cu", None)


@pytest.mark.parametrize("name", ["helper", "nothing"])
def test_what_no_cu_file_defines_is_no_launcher(index: SourceIndex, name: str) -> None:
    assert index.launcher(name) is None


@pytest.mark.parametrize(
    ("function", "launchers"),
    [
        ("gelu_out_cuda", ("GeluCUDAKernelImpl",)),
        ("topk_out_cuda", ("launch_gather_topk_kernel", "sortKeyValueInplace")),
        ("softmax_cuda_out", ()),
    ],
)
def test_of_the_packaged_release(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object, function: str, launchers: tuple[str, ...]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    index = source_index("2.6.0")
    assert index is not None
    found = index.function(function)
    assert found is not None
    assert found.launchers == launchers
    assert all(index.launcher(name) is not None for name in launchers)
