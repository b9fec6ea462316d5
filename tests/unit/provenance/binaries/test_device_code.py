import io
import struct

import pytest

from case_tables import cases
from opscope.errors import InputError
from opscope.model.origin import RecordedUnit
from opscope.provenance.binaries import device_code
from opscope.provenance.binaries.device_code import (
    InternalName,
    UnitKernels,
    code_of,
    containers,
    cubin_names,
    embedded_kernels,
    most_telling,
    with_source_paths,
)
from opscope.provenance.binaries.elf import ElfFile


@pytest.mark.parametrize("many_sections", [False, True])
def test_kernels_are_the_functions_with_the_flag(write, many_sections):
    hidden = write.internal("/src/a.cu")
    image = write.cubin(["_Z1av", "plain"], ["_Z6devicev", hidden], many_sections=many_sections)
    kernels, units = cubin_names(ElfFile(io.BytesIO(image), "libsmall.so"))
    assert kernels == {"_Z1av", "plain"}
    assert units == {InternalName(write.module_id("/src/a.cu"), "a_cu")}


def test_errors_name_the_section_and_the_place_in_the_library(write):
    image = write.elf([write.Part(".symtab", write.symbol(5, 0x12, 0x10), write.SYMTAB, link=77)])
    with pytest.raises(InputError, match="section 77"):
        cubin_names(ElfFile(io.BytesIO(image), "libsmall.so"))
    library = ElfFile(io.BytesIO(write.elf([])), "libsmall.so")
    with pytest.raises(InputError, match="not an ELF file") as caught:
        library.embedded(b"no cubin", 12345)
    assert (caught.value.source, caught.value.byte_offset) == ("libsmall.so", 12345)


@pytest.fixture
def opened(write):
    """Opens a library with this content of `.nv_fatbin`."""

    def open_library(content):
        file = ElfFile(io.BytesIO(write.elf([write.Part(".nv_fatbin", content)])), "libsmall.so")
        return file, file.sections[".nv_fatbin"]

    return open_library


def contents(file, section):
    """Every entry, uncompressed, by container."""
    return [[code_of(file, code) for code in codes] for codes in containers(file, section)]


def test_entries_are_uncompressed_whatever_their_form(write, opened):
    texts = [bytes([number]) * 5000 for number in range(3)]
    codes = [
        write.Code(text, flags=flags)
        for text, flags in zip(texts, (0, write.LZ4, write.ZSTANDARD), strict=True)
    ]
    assert contents(*opened(write.container(*codes))) == [texts]


@pytest.mark.parametrize("padding", [0, 8, 61, 5 << 20])
def test_containers_follow_each_other_at_any_distance(write, opened, padding):
    gap = bytes(padding)
    parts = [write.container(write.Code(b"first")), write.container(write.Code(b"second"))]
    content = gap + parts[0] + gap + parts[1] + gap
    assert [[text[:6] for text in texts] for texts in contents(*opened(content))] == [[b"first"], [b"second"]]


def test_the_architecture_with_most_entries_is_read_then_the_most_frequent_then_the_newest(write, opened):
    def architectures(*rows):
        codes = [write.container(*(write.Code(b"x", architecture) for architecture in row)) for row in rows]
        return [
            [code.architecture for code in kept]
            for kept in most_telling(containers(*opened(b"".join(codes))))
        ]

    assert architectures([80, 90, 90]) == [[90, 90]]
    assert architectures([80, 90], [80]) == [[80], [80]]
    assert architectures([80, 90]) == [[90]]


def test_text_is_read_only_where_there_is_no_binary(write, opened):
    both = write.container(
        write.Code(b"x", 80), write.Code(b"y", 90, write.PTX), write.Code(b"z", 90, write.PTX)
    )
    only = write.container(write.Code(b"y", 90, write.PTX), write.Code(b"?", 90, kind=8))
    none = write.container(write.Code(b"?", 90, kind=8))
    kept = list(most_telling(containers(*opened(both + only + none))))
    assert [[(code.kind, code.architecture) for code in codes] for codes in kept] == [
        [(write.CUBIN, 80)], [(write.PTX, 90)],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (8, struct.pack("<Q", 1 << 63)),  # size of the container
        (6, struct.pack("<H", 0xFFFF)),  # where its entries begin
        (6, struct.pack("<H", 0)),
        (16 + 4, struct.pack("<I", 0)),  # where the entry's code begins
        (16 + 4, struct.pack("<I", 1 << 31)),
        (16 + 8, struct.pack("<Q", (1 << 64) - 1)),  # its size with padding
        (16 + 16, struct.pack("<I", 1 << 31)),  # its size compressed
    ],
)
def test_sizes_beyond_what_holds_them_are_refused(write, opened, position, value):
    content = bytearray(write.container(write.Code(b"code" * 100)))
    content[position : position + len(value)] = value
    with pytest.raises(InputError, match="beyond its") as caught:
        contents(*opened(bytes(content)))
    assert caught.value.byte_offset is not None


@pytest.mark.parametrize("flags", [0x2000, 0x8000])
def test_damaged_code_is_refused(write, opened, flags):
    content = bytearray(write.container(write.Code(b"some code " * 50, flags=flags)))
    content[80:90] = b"\xff" * 10
    with pytest.raises(InputError, match="cannot be uncompressed") as caught:
        contents(*opened(bytes(content)))
    assert caught.value.byte_offset == 64 + 80


A, B = "/src/a.cu", "/src/b.cu"


# Containers of a library, each with one cubin (its kernels; the files whose internal names it has), those of
# relocatable code behind the linked ones; and the kernels of each unit.
INTERNAL = "kernel of A's own"


@pytest.mark.parametrize(
    ("linked", "relocatable", "expected"),
    [
        # A container belongs to the unit that its internal names tell, a kernel in two to both.
        ([(["_Z1av"], A), (["_Z1bv", "_Z1cv"], B)], [], {A: ["_Z1av"], B: ["_Z1bv", "_Z1cv"]}),
        ([(["_Z1av"], A), (["_Z1av"], B)], [], {A: ["_Z1av"], B: ["_Z1av"]}),
        # Of a container of several units only internal kernels have one.
        ([(["_Z1av", INTERNAL], A, B)], [], {None: ["_Z1av"], A: [INTERNAL]}),
        # Linked code takes the units of its relocatable parts: its own names are of one unit only.
        ([(["_Z1av", "_Z1bv"], A)], [(["_Z1av"], A), (["_Z1bv"],)], {A: ["_Z1av"], None: ["_Z1bv"]}),
        # A separate unit beside linked code keeps its own.
        ([(["_Z1av"], A), (["_Z1bv"], B)], [(["_Z1av"], A)], {A: ["_Z1av"], B: ["_Z1bv"]}),
    ],
)
def test_kernels_by_unit(write, linked, relocatable, expected):
    own = write.internal(A, "6kernelv")

    def container(kernels, *paths):
        symbols = [own if kernel == INTERNAL else kernel for kernel in kernels]
        return write.container(write.Code(write.cubin(symbols, [write.internal(path) for path in paths])))

    code, parts = (b"".join(container(*one) for one in group) for group in (linked, relocatable))
    found = read(write.library([], device_code=code, relocatable=parts))
    units = {path: RecordedUnit(path.rpartition("/")[2], write.module_id(path)) for path in (A, B)}
    assert found == {
        units.get(path): [own if kernel == INTERNAL else kernel for kernel in kernels]
        for path, kernels in expected.items()
    }


def read(content):
    """Kernels by unit."""
    found = embedded_kernels(ElfFile(io.BytesIO(content), "libsmall.so"))
    return {kernels.unit: sorted(kernels.kernels) for kernels in found}


def test_units_have_the_names_of_their_file_symbols(write):
    dense, sparse, mine = "/pytorch/cuda/SoftMax.cu", "/pytorch/sparse/SoftMax.cu", "/home/me/my-kernels.cpp"
    internal = write.internal(sparse, "1bv")
    units = [
        write.Unit("Sort", ["_Z4sortPi", "_Z5emptyv"], ["_ZN4cuda3stdE"]),
        # Units of one name are told apart by their module ids, and internal names know the extension.
        write.Unit("SoftMax", ["_Z1av"], [write.internal(dense)]),
        write.Unit("SoftMax", [internal]),
        write.Unit("my-kernels", ["_Z5emptyv"], [write.internal(mine)]),
        # An internal name of another file says nothing.
        write.Unit("Tables", [], ["_Z5tablePi", write.internal(dense)]),
    ]
    assert read(write.library(units)) == {
        RecordedUnit("Sort.cu"): ["_Z4sortPi", "_Z5emptyv"],
        RecordedUnit("SoftMax.cu", write.module_id(dense)): ["_Z1av"],
        RecordedUnit("SoftMax.cu", write.module_id(sparse)): [internal],
        RecordedUnit("my-kernels.cpp", write.module_id(mine)): ["_Z5emptyv"],
        RecordedUnit("Tables.cu"): [],
    }
    bare = read(write.library(units, stripped=True))
    assert bare[None] == ["_Z4sortPi", "_Z5emptyv"]
    assert bare[RecordedUnit("my_kernels.cpp", write.module_id(mine))] == ["_Z5emptyv"]


@cases("file_symbol", "name")
def test_file_symbols(write, monkeypatch, file_symbol, name):
    monkeypatch.setattr(write.Unit, "file_symbol", file_symbol)
    (unit,) = read(write.library([write.Unit("any", ["_Z1av"])]))
    assert (unit.name if unit else None) == name


ATEN = "/build/pytorch/aten/src/ATen"


@pytest.fixture
def locate(write):
    """Name and path of units, located in a library with these strings."""

    def locate_units(*units, strings=(), source="/usr/lib/libsmall.so", is_name_exact=True):
        file = ElfFile(io.BytesIO(write.library([], strings=strings)), source)
        found = with_source_paths(file, [UnitKernels(unit, frozenset(), is_name_exact) for unit in units])
        return [kernels.unit and (kernels.unit.name, kernels.unit.source_path) for kernels in found]

    return locate_units


@pytest.fixture
def unit(write):
    """The unit of a path, named as the host side names it, or otherwise."""
    return lambda path, name=None: RecordedUnit(name or path.rpartition("/")[2], write.module_id(path))


def test_a_unit_lies_in_the_folder_that_gives_its_module_id(locate, unit):
    strings = [f"{ATEN}/native/cuda/Copy.cu", f"{ATEN}/native/sparse/cuda/Sum.cu", "/usr/include/vector.h"]
    units = [unit(f"{ATEN}/native/sparse/cuda/SoftMax.cu"), unit(f"{ATEN}/native/cuda/SoftMax.cu")]
    assert locate(*units, strings=strings) == [
        ("SoftMax.cu", "aten/src/ATen/native/sparse/cuda/SoftMax.cu"),
        ("SoftMax.cu", "aten/src/ATen/native/cuda/SoftMax.cu"),
    ]


@cases("path", "shown", "strings")
def test_folders_that_are_tried(locate, unit, path, shown, strings):
    found = locate(unit(path), strings=strings, source="/home/me/ext/build/lib/ext.so")
    assert found == [(path.rpartition("/")[2], shown)]


@pytest.mark.parametrize("name", ["cub-RadixSortPairs-f16-8.cu", "my_kernels-fast.cu", "a-b-c-d-e-f-g-h.cu"])
def test_hyphens_that_device_code_hides_are_restored(locate, unit, name):
    path = f"{ATEN}/cuda/{name}"
    found = locate(unit(path, name.replace("-", "_")), strings=[f"{ATEN}/cuda/Sum.cu"], is_name_exact=False)
    assert found == [(name, f"aten/src/ATen/cuda/{name}")]


def test_without_a_module_id_the_only_path_of_that_name_is_taken(locate):
    strings = ["/magma/chemv.cu", "csrc/relative.cu", "/a/twice.cu", "/b/twice.cu"]
    expected = {"chemv.cu": "/magma/chemv.cu", "relative.cu": "csrc/relative.cu"}
    expected |= {"twice.cu": None, "absent.cu": None}
    assert locate(*map(RecordedUnit, expected), strings=strings) == list(expected.items())


def test_units_of_one_name_do_not_share_a_path(locate):
    units = [RecordedUnit("a.cu", "00000001"), RecordedUnit("a.cu", "00000002")]
    assert locate(*units, strings=["/src/a.cu"]) == [("a.cu", None)] * 2


@pytest.mark.parametrize("string", ["a.cu", "my folder/a.cu", "text: src/a.cu", "/" + "x" * 2000 + "/a.cu"])
def test_a_string_that_is_no_certain_path_is_none(locate, string):
    assert locate(RecordedUnit("a.cu"), strings=[string]) == [("a.cu", None)]


def test_attempts_are_bounded(locate, unit, monkeypatch):
    monkeypatch.setattr(device_code, "_MOST_ATTEMPTS", 5)
    strings = [f"/folder{number}/x.cu" for number in range(50)]
    assert locate(unit("/folder20/a.cu"), strings=strings) == [("a.cu", None)]
