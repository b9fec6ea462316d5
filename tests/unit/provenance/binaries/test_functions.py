"""Where a function's symbol lies tells the files that may define it; what is not certain is left out."""

import shutil
import subprocess
from pathlib import Path

import pytest

from case_tables import cases
from torch_tables.libraries import defining_files

COMPILER = shutil.which("g++") or shutil.which("clang++")

NATIVE = "aten/src/ATen/native"
A_CU, B_CU, C_CPP = f"{NATIVE}/cuda/A.cu", f"{NATIVE}/cuda/B.cu", f"{NATIVE}/C.cpp"
FUNCTION, FILE = 2, 4
LOCAL, GLOBAL = 0, 1
F = "_ZN2at6native1fEi"  # at::native::f(int)


def host_file(stem):
    return f"tmpxft_00001b9c_00000000-6_{stem}.compute_90.cudafe1.cpp"


@pytest.fixture
def library(write, save):
    """A library of symbols: files as text, functions as (name, address, binding, kind)."""

    def make(*symbols, strings=(), name="lib.so"):
        names, rows = write.Names(), write.symbol(0)
        for one in symbols:
            if isinstance(one, str):
                rows += write.symbol(names.add(one) if one else 0, FILE, 0, 0xFFF1)
            else:
                mangled, address, binding, *kind = one
                info = binding << 4 | (kind[0] if kind else FUNCTION)
                rows += write.symbol(names.add(mangled), info, 0, 1, (address, 8))
        constants = b"\0".join([b"", *(string.encode() for string in strings), b""])
        parts = [
            write.Part(".text", bytes(64), address=0x1000),
            write.Part(".rodata", constants, address=0x8000),
            write.Part(".strtab", bytes(names.content), write.STRTAB),
            write.Part(".symtab", rows, write.SYMTAB, link=3),
        ]
        return save(write.elf(parts), name)

    return make


def unit(file_symbol, *addresses):
    """A file with local functions at these addresses."""
    return (file_symbol, *((f"_ZL{address}local", address, LOCAL) for address in addresses))


A, B = unit(host_file("A"), 0x1000, 0x2000), unit(host_file("B"), 0x3000, 0x4000)
UNITS = (A_CU, B_CU)


@cases("symbols", "units", "expected")
def test_files_of_functions(library, symbols, units, expected):
    assert defining_files(library(*symbols), units) == {name: tuple(of) for name, of in expected.items()}


def test_a_host_file_is_found_by_the_paths_among_the_strings(library):
    strings = [f"/pytorch/{C_CPP}", f"/pytorch/{NATIVE}/D.cpp", "/usr/include/c++/vector.h"]
    path = library(*unit("C.cpp", 0x1000, 0x2000), (F, 0x1800, GLOBAL), strings=strings)
    assert defining_files(path) == {"f": (C_CPP,)}


@cases("mangled", "name")
def test_only_functions_right_in_at_native_have_a_name(library, mangled, name):
    path = library(*A, (mangled, 0x1800, GLOBAL))
    assert defining_files(path, UNITS) == ({} if name is None else {name: (A_CU,)})


def test_a_stripped_library_tells_nothing(write, save):
    assert defining_files(save(write.elf([write.Part(".text", bytes(64))]))) == {}
    assert defining_files(save(write.library([write.Unit("A", ["k"])], stripped=True))) == {}


SOURCE = Path(__file__).with_name("named_functions.cpp").read_text(encoding="utf-8")


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler here")
def test_a_compiled_library(tmp_path):
    folder = tmp_path / NATIVE
    folder.mkdir(parents=True)
    for name in ("first", "second"):
        (folder / f"{name.title()}.cpp").write_text(SOURCE.replace("NAME", name))
    sources = [str(folder / f"{name}.cpp") for name in ("First", "Second")]
    library = tmp_path / "lib.so"
    command = [COMPILER, "-O0", "-shared", "-fPIC", "-o", str(library), *sources]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    found = defining_files(library)
    assert found["first"] == (f"{NATIVE}/First.cpp",)
    assert found["second"] == (f"{NATIVE}/Second.cpp",)
    assert f"{NATIVE}/First.cpp" in found["place_first"]
