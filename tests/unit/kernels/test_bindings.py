"""bindings.cpp, compiled by the host compiler against a torch without CUDA: what it can do without a GPU.

CUDA's functions stay unresolved: nothing here gets as far as calling one.
"""

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from opscope.hardware.driver import find_cuda_tool
from opscope.kernels.build import cuda_sources

torch = pytest.importorskip("torch")
# Compiling takes longer than any other test.
pytestmark = [pytest.mark.torch, pytest.mark.exhaustive]

# The one variable of libc10_cuda that the headers refer to. Functions are looked up when they are called.
STUB = "namespace c10::cuda::CUDACachingAllocator { void* allocator = nullptr; }\n"
PROGRAM = Path(__file__).with_name("cpu_bindings.py.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bindings")
    library = _compile(folder)
    (folder / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(folder / "program.py"), str(library)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _compile(folder):
    include = Path(torch.__file__).parent / "include"
    nvcc = find_cuda_tool("nvcc")
    toolkit = None if nvcc is None else _toolkit_include(nvcc)
    if torch.version.cuda is not None:
        pytest.skip("this torch has CUDA: the gpu tests build and load the whole extension")
    if (
        toolkit is None
        or not (include / "c10" / "cuda" / "CUDAStream.h").is_file()
        or shutil.which("g++") is None
    ):
        pytest.skip("no g++, no headers of the CUDA toolkit, or no c10/cuda in this torch")
    macros = folder / "c10" / "cuda" / "impl" / "cuda_cmake_macros.h"  # A torch without CUDA lacks it.
    macros.parent.mkdir(parents=True)
    macros.touch()
    (folder / "stub.cpp").write_text(STUB)
    library = folder / "bindings.so"
    includes = [
        include,
        include / "torch" / "csrc" / "api" / "include",
        toolkit,
        sysconfig.get_path("include"),
    ]
    bindings = cuda_sources()[0].parent / "bindings.cpp"
    command = ["g++", "-shared", "-fPIC", "-O0", "-std=c++20", "-Wall", "-Werror", f"-I{folder}"]
    command += [part for one in includes for part in ("-isystem", str(one))]
    command += [str(bindings), str(folder / "stub.cpp"), "-o", str(library)]
    command += [f"-L{include.parent / 'lib'}", "-ltorch_cpu", "-lc10"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return library


def _toolkit_include(nvcc):
    """The include folder of the toolkit that nvcc, or the script by that name, belongs to."""
    done = subprocess.run(
        [nvcc, "--dryrun", "-E", "-x", "cu", "/dev/null"], capture_output=True, text=True, check=False
    )
    tops = [line.partition("TOP=")[2] for line in done.stderr.splitlines() if "TOP=" in line]
    folders = [Path(top) / "include" for top in tops]
    return next((folder for folder in folders if (folder / "cuda_runtime_api.h").is_file()), None)


def test_every_operator_is_declared_and_knows_the_shape_of_its_output(answers):
    assert "opscope_kernels::gelu(Tensor x, str approximate='none') -> Tensor" in str(
        answers["schemas"]
    ).replace('"none"', "'none'")
    assert len(answers["schemas"]) == 11
    shapes = answers["shapes"]
    assert shapes.pop("matmul_teaching") == [3, 3]
    assert len(shapes) == 10
    assert set(map(tuple, shapes.values())) == {(3, 4)}
    assert answers["messages"] == [
        "x must be on a CUDA device, but is on cpu; use x.cuda()",
        "x must be on a CUDA device, but is on cpu; use x.cuda()",
        "a must be on a CUDA device, but is on cpu; use a.cuda()",
    ]
