"""The installed torch's libraries as evidence: whose kernel is it, if only one library holds it."""

from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from case_tables import cases
from opscope.errors import InputError
from opscope.provenance import installation
from opscope.provenance.binaries import library as local_libraries
from opscope.provenance.binaries.library import LocalLibraries, installed_libraries

KERNELS = {
    "libtorch_cuda.so": {"at::f", "shared"},
    "libtorch_cuda_linalg.so": {"at::g", "shared"},
    "libcublas.so": {"gemm", "at::f"},
}


@pytest.fixture
def read(monkeypatch):
    """Names of the libraries that were read; one of another name holds no device code."""
    names = []

    def cached(path, folder=None):
        names.append(path.name)
        if path.name not in KERNELS:
            raise InputError("no CUDA device code in it", source=path)
        return KERNELS[path.name]

    monkeypatch.setattr(local_libraries, "cached_library", cached)
    return names


TORCH = [Path("libtorch_cuda.so"), Path("libtorch_cuda_linalg.so")]


@cases("name", "library")
def test_the_only_holder_torchs_own_first(read, name, library):
    found = LocalLibraries(TORCH, [Path("libcublasLt_static.so"), Path("libcublas.so")]).holding(name)
    assert found is (None if library is None else KERNELS[library])


def test_vendors_are_read_only_for_what_torch_does_not_hold(read):
    libraries = LocalLibraries(TORCH, [Path("libcublas.so")])
    assert read == []
    libraries.holding("at::f")
    assert read == ["libtorch_cuda.so", "libtorch_cuda_linalg.so"]
    libraries.holding("gemm")
    libraries.holding("gemm")
    assert read == ["libtorch_cuda.so", "libtorch_cuda_linalg.so", "libcublas.so"]


def test_those_of_the_installation_are_found_without_importing_it(read, monkeypatch, tmp_path):
    monkeypatch.setattr(installation, "find_spec", lambda name: None)
    assert installed_libraries().holding("at::f") is None
    assert read == []
    library = tmp_path / "torch" / "lib" / "libtorch_cuda.so"
    library.parent.mkdir(parents=True)
    library.touch()
    spec = ModuleSpec("torch", None, is_package=True)
    spec.submodule_search_locations.append(str(tmp_path / "torch"))
    monkeypatch.setattr(installation, "find_spec", lambda name: spec)
    assert installed_libraries().holding("at::f") is KERNELS["libtorch_cuda.so"]
    assert read == ["libtorch_cuda.so"]
