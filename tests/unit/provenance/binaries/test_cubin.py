import io

import pytest

from opscope.errors import InputError
from opscope.provenance.binaries.elf import ElfFile
from opscope.provenance.binaries.embedded import cubin_names, ptx_names
from opscope.provenance.binaries.translation_unit import InternalName


@pytest.mark.parametrize("many_sections", [False, True])
def test_kernels_are_the_functions_with_the_flag(write, many_sections):
    hidden = write.internal("/src/a.cu")
    image = write.cubin(["_Z1av", "plain"], ["_Z6devicev", hidden], many_sections=many_sections)
    names = cubin_names(ElfFile(io.BytesIO(image), "libsmall.so"))
    assert names.kernels == {"_Z1av", "plain"}
    assert names.units == {InternalName(write.module_id("/src/a.cu"), "a_cu")}


def test_kernels_of_text(write):
    names = ptx_names(write.ptx(["_Z1av", "_Z1bv"], [write.internal("/src/a.cu")]))
    assert names.kernels == {"_Z1av", "_Z1bv"}
    assert names.units == {InternalName(write.module_id("/src/a.cu"), "a_cu")}


def test_a_symbol_table_without_its_strings_is_refused(write):
    image = write.elf([write.Part(".symtab", write.symbol(5, 0x12, 0x10), write.SYMTAB, link=77)])
    with pytest.raises(InputError, match="section 77"):
        cubin_names(ElfFile(io.BytesIO(image), "libsmall.so"))


def test_an_error_in_an_embedded_file_names_its_place_in_the_library(write):
    library = ElfFile(io.BytesIO(write.elf([])), "libsmall.so")
    with pytest.raises(InputError, match="not an ELF file") as caught:
        library.embedded(b"no cubin", 12345)
    assert (caught.value.source, caught.value.byte_offset) == ("libsmall.so", 12345)
