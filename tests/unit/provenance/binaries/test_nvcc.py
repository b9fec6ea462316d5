"""Libraries as nvcc makes them, and the installed PyTorch if it is a CUDA build."""

import shutil
import subprocess
import zlib
from pathlib import Path

import pytest

from opscope.provenance.binaries.library import read_library

NVCC, STRIP = shutil.which("nvcc"), shutil.which("strip")
needs_nvcc = pytest.mark.skipif(NVCC is None or STRIP is None, reason="no nvcc or strip here")

SOURCE = Path(__file__).with_name("several_kernels.cu").read_text(encoding="utf-8")
KERNELS = {
    "(anonymous namespace)::internal(int*)",
    "void mine::scale<float>(float*, int)",
    "void mine::scale<double>(double*, int)",
    "plain",
}


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Compiles the source with further options and returns source and library."""

    def compile_library(*options, name="my-kernels.cu"):
        folder = tmp_path_factory.mktemp("extension")
        source, library = folder / name, folder / "ext.so"
        source.write_text(SOURCE)
        command = [NVCC, "-shared", "-Xcompiler", "-fPIC", *options, "-o", str(library), str(source)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
        if done.returncode:
            pytest.skip(f"nvcc {' '.join(options)}: {done.stderr.strip()[-200:]}")
        return source, library

    return compile_library


def stripped(library):
    copy = library.with_name("stripped.so")
    subprocess.run([STRIP, "-o", str(copy), str(library)], check=True)
    return copy


def unit_facts(library):
    """Name, module id and path of the one unit of each kernel."""
    return {
        name: [(unit.name, unit.module_id, unit.source_path) for unit in library.units_of(name)]
        for name in KERNELS
    }


OPTIONS = [
    ("-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90,code=sm_90", "--compress-mode=size")
]
MORE_OPTIONS = [
    (),
    ("-Xcompiler", "-O2,-fno-plt", "-cudart", "shared"),
    ("-O2", "-cudart", "shared"),
    ("-Xcompiler", "-fcf-protection=full", "-cudart", "shared"),
    ("-Xlinker", "-z,now", "-cudart", "shared"),
    ("-gencode=arch=compute_90,code=compute_90",),
    ("--compress-mode=none",),
]
OPTIONS += [pytest.param(options, marks=pytest.mark.exhaustive) for options in MORE_OPTIONS]


@needs_nvcc
@pytest.mark.parametrize("options", OPTIONS, ids=" ".join)
def test_kernels_and_their_source_are_read_back_exactly(build, options):
    source, library = build(*options)
    expected = [(source.name, f"{zlib.crc32(str(source).encode()):08x}", str(source))]
    whole, bare = read_library(library), read_library(stripped(library))
    assert unit_facts(whole) == unit_facts(bare) == dict.fromkeys(KERNELS, expected)


@needs_nvcc
@pytest.mark.exhaustive
def test_a_linked_library_of_several_units(build, tmp_path):
    """Relocatable device code: the linked container holds the kernels of all units."""
    sources = []
    for stem in ("one", "two"):
        source = tmp_path / f"{stem}.cu"
        source.write_text(f"__global__ void {stem}(int* p) {{ *p = 1; }}\n"
                          f"void run_{stem}(int* p) {{ {stem}<<<1, 1>>>(p); }}\n")  # fmt: skip
        sources.append(str(source))
    library = tmp_path / "both.so"
    command = [NVCC, "-rdc=true", "-shared", "-Xcompiler", "-fPIC", "-o", str(library), *sources]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    whole, bare = read_library(library), read_library(stripped(library))
    for name in ("one(int*)", "two(int*)"):
        assert [unit.name for unit in whole.units_of(name)] == [f"{name[:3]}.cu"]
        assert name in bare
        assert {unit.name for unit in bare.units_of(name)} <= {f"{name[:3]}.cu"}
