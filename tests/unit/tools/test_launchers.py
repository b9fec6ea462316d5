"""Which functions of `.cu` files C++ code calls: only those whose name can mean nothing else."""

import pytest

from torch_tables.operator_table import Places, native_function

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
def index(index_of):
    return index_of(FILES)


def test_a_function_names_those_that_one_cu_file_alone_defines(index):
    assert native_function(index, "caller").launchers == ("launch_one", "launch_two")
    # A function of a `.cu` file is at the device already.
    assert native_function(index, "launch_two").launchers == ()


def test_launchers_are_located(index):
    """Of overloads in one file the line stays open."""
    _, _, launched = Places(index, None, None, {}).function("caller", "CUDA", [], "CUDA")
    assert [(one.name, one.file, one.place and one.place.line) for one in launched] == [
        ("launch_one", f"{CUDA}/One.cu", None),
        ("launch_two", f"{CUDA}/Two.cu", 1),
    ]
