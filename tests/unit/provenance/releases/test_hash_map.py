from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opscope.provenance.releases.table_file import HashMap, PackedMap, hash_map, text_hash, text_hashes

ENTRIES = st.dictionaries(st.integers(0, 2**48 - 1), st.integers(0, 2**16 - 1), max_size=30)


@given(ENTRIES)
def test_what_is_packed_is_unpacked(entries):
    restored = HashMap.unpacked(hash_map(entries).packed())
    assert len(restored) == len(entries)
    assert {key: restored.get(key) for key in entries} == entries


@given(ENTRIES, st.lists(st.integers(0, 2**48 - 1), max_size=5))
def test_contains_says_of_many_what_get_says_of_one(entries, others):
    wanted = [*entries, *others]
    built = hash_map(entries)
    found = built.contains(np.array(wanted, dtype=np.uint64))
    assert found.tolist() == [built.get(key) is not None for key in wanted]


def test_hashes_are_those_of_every_machine():
    assert text_hash("kernel") == 0xE2550544DEE2
    assert text_hashes(["kernel", "\ud800"]).tolist() == [text_hash("kernel"), text_hash("\ud800")]
    assert text_hashes([]).tolist() == []


@pytest.mark.parametrize("value", [-1, 2**16])
def test_a_number_that_does_not_fit_is_refused(value):
    with pytest.raises(ValueError, match="not within"):
        hash_map({1: value})


@pytest.mark.parametrize(
    "damaged",
    [
        PackedMap(2, b"\0" * 12, b"\0" * 4),
        PackedMap(2, b"\xff" * 12, b"\0" * 4),
        PackedMap(1, b"\0" * 5, b"\0" * 2),
        PackedMap(1, b"\0" * 6, b"\0" * 3),
        PackedMap(-1, b"", b""),
    ],
    ids=["equal keys", "keys beyond 48 bits", "short keys", "long values", "negative count"],
)
def test_damaged_maps_are_refused(damaged):
    with pytest.raises(ValueError, match=r"map|negative"):
        HashMap.unpacked(damaged)


def test_sums_that_overflow_are_refused():
    count = 2**16 + 2
    packed = hash_map(dict.fromkeys(range(count), 0)).packed()
    with pytest.raises(ValueError, match="not sorted"):
        HashMap.unpacked(msgspec.structs.replace(packed, keys=b"\xff" * 6 * count))
