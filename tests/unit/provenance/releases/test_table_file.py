import msgspec
import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from opscope.errors import InputError
from opscope.provenance import packaged
from opscope.provenance.torch_releases import UNITS_FORMAT, HashMap, packed_map, text_hash

ENTRIES = st.dictionaries(st.integers(0, 2**48 - 1), st.integers(0, 2**16 - 1), max_size=30)


@given(ENTRIES, st.lists(st.integers(0, 2**48 - 1), max_size=5))
def test_contains_says_of_many_what_get_says_of_one(entries, others):
    wanted = [*entries, *others]
    built = HashMap(packed_map(entries))
    found = built.contains(np.array(wanted, dtype=np.uint64))
    assert found.tolist() == [built.get(key) is not None for key in wanted]


def test_hashes_are_those_of_every_machine():
    assert text_hash("kernel") == 0xE2550544DEE2
    assert text_hash("\ud800") != text_hash("kernel")


KERNELS = {"void at::f<int>()": ["aten/F.cu"], "void at::g<int>()": ["aten/F.cu", "G.cu"]}


def test_what_is_encoded_is_decoded_and_always_the_same(make_table):
    table = make_table(KERNELS, git_version="a" * 40, cuda="13.0")
    assert UNITS_FORMAT.decode(UNITS_FORMAT.encode(table), "here") == table
    assert UNITS_FORMAT.encode(
        make_table(dict(reversed(KERNELS.items())), git_version="a" * 40, cuda="13.0")
    ) == UNITS_FORMAT.encode(table)


@pytest.mark.parametrize(
    "damage", [b"", b"nothing of the sort", lambda content: content[:-9], lambda c: c[:40] + c]
)
def test_a_damaged_file_is_named(make_table, damage):
    content = damage(UNITS_FORMAT.encode(make_table(KERNELS))) if callable(damage) else damage
    with pytest.raises(InputError, match=r"damaged|not a kernel table") as raised:
        UNITS_FORMAT.decode(content, "releases/2.11.0/units.msgpack.zst")
    assert raised.value.source == "releases/2.11.0/units.msgpack.zst"
    assert "Delete the file" in str(raised.value)


def test_other_formats_and_files_larger_than_any_table_are_refused(make_table, monkeypatch, tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        UNITS_FORMAT.read(tmp_path / "none")
    content = zstandard.compress(msgspec.msgpack.encode({"format_version": 2, "units": "unheard of"}))
    with pytest.raises(InputError, match="format 2; this opscope reads format 1"):
        UNITS_FORMAT.decode(content, "here")
    content = UNITS_FORMAT.encode(make_table(KERNELS))
    monkeypatch.setattr(packaged, "_LARGEST_BYTES", 100)
    with pytest.raises(InputError):
        UNITS_FORMAT.decode(content, "here")
