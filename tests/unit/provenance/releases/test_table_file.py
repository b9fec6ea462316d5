from __future__ import annotations

import msgspec
import pytest
import zstandard

from opscope.errors import InputError
from opscope.provenance import table_format
from opscope.provenance.releases.table_file import decode_table, encode_table, hash_map

KERNELS = {"void at::f<int>()": ["aten/F.cu"], "void at::g<int>()": ["aten/F.cu", "G.cu"]}


def test_what_is_encoded_is_decoded_and_always_the_same(make_table):
    table = make_table(KERNELS, git_version="a" * 40, cuda="13.0")
    assert decode_table(encode_table(table), "here") == table
    assert encode_table(
        make_table(dict(reversed(KERNELS.items())), git_version="a" * 40, cuda="13.0")
    ) == encode_table(table)


@pytest.mark.parametrize(
    "damage", [b"", b"nothing of the sort", lambda content: content[:-9], lambda c: c[:40] + c]
)
def test_a_damaged_file_is_named(make_table, damage):
    content = damage(encode_table(make_table(KERNELS))) if callable(damage) else damage
    with pytest.raises(InputError, match=r"damaged|not a kernel table") as raised:
        decode_table(content, "releases/2.11.0/units.msgpack.zst")
    assert raised.value.source == "releases/2.11.0/units.msgpack.zst"
    assert "Delete the file" in str(raised.value)


@pytest.mark.parametrize(
    "change",
    [
        {"exact": hash_map({1: 7}).packed()},
        {"loose": hash_map({1: 7}).packed()},
        {"unit_sets": ((0,), (0, 7))},
        {"unit_sets": ((0,), (-1,))},
        {"unit_sets": ((0,), ())},
        {"exact": msgspec.structs.replace(hash_map({1: 0}).packed(), count=2)},
    ],
    ids=["kernel", "loose key", "unit set", "negative", "empty set", "lengths"],
)
def test_what_refers_to_nothing_is_refused(make_table, change):
    table = msgspec.structs.replace(make_table(KERNELS), **change)
    with pytest.raises(InputError, match="damaged"):
        decode_table(encode_table(table), "here")


def test_another_format_is_named_whatever_else_it_holds():
    content = zstandard.compress(msgspec.msgpack.encode({"format_version": 2, "units": "unheard of"}))
    with pytest.raises(InputError, match="format 2; this opscope reads format 1"):
        decode_table(content, "here")


def test_a_file_that_unpacks_to_more_than_any_table_is_refused(make_table, monkeypatch):
    content = encode_table(make_table(KERNELS))
    monkeypatch.setattr(table_format, "_LARGEST_BYTES", 100)
    with pytest.raises(InputError):
        decode_table(content, "here")
