import pytest

from opscope.provenance.sources import Definition, StoredLines
from torch_tables.definitions import index_of
from torch_tables.libraries import _calls, contradicted, segments

FILE = "aten/src/ATen/native/cuda/A.cu"
TEXTS = b"\0f\0/pytorch/" + FILE.encode() + b"\0not a function\0"
BASE, STRINGS = 0x1000, 0x2000
FUNCTION_AT, FILE_AT, OTHER_AT = STRINGS + 1, STRINGS + 3, STRINGS + len(TEXTS) - 15
CALL = b"\xe8\x10\x20\x00\x00"
FIRST, SECOND, THIRD = b"\x48\x8d\x3d", b"\x48\x8d\x35", b"\x48\x8d\x15"


def code(*instructions):
    """Machine code: addresses are loaded relative to the next instruction."""
    text = b""
    for one in instructions:
        if isinstance(one, tuple):
            text += one[0] + (one[1] - (BASE + len(text) + 7)).to_bytes(4, "little", signed=True)
        else:
            text += one
    return text + bytes(16)


def line(number, register=0xBA):
    return bytes([register]) + number.to_bytes(4, "little")


@pytest.mark.parametrize(
    "instructions",
    [
        ((SECOND, FILE_AT), line(77), (FIRST, FUNCTION_AT), CALL),
        (line(77), (FIRST, FUNCTION_AT), (SECOND, FILE_AT), CALL),
        ((THIRD, FUNCTION_AT), line(77, 0xB9), (SECOND, FILE_AT), CALL),  # a launch check
        (line(5), CALL, line(77), (FIRST, FUNCTION_AT), (SECOND, FILE_AT), CALL, line(6)),
    ],
)
def test_a_check_names_file_function_and_line(instructions):
    assert list(_calls(code(*instructions), BASE, [(STRINGS, TEXTS)])) == [(FILE, "f", 77)]


@pytest.mark.parametrize(
    "instructions",
    [
        ((SECOND, FILE_AT), (FIRST, FUNCTION_AT)),
        ((SECOND, FILE_AT), line(77), (FIRST, OTHER_AT)),
        ((SECOND, FILE_AT), CALL, line(77), (FIRST, FUNCTION_AT)),
        ((SECOND, FUNCTION_AT), line(77), (FIRST, FILE_AT)),
        ((SECOND, FILE_AT), line(1 << 20), (FIRST, FUNCTION_AT)),
    ],
    ids=["no line", "no function", "of two calls", "swapped", "no line of a file"],
)
def test_what_is_no_check(instructions):
    assert list(_calls(code(*instructions), BASE, [(STRINGS, TEXTS)])) == []


def test_checks_that_both_releases_have_in_order_and_moved_with_others():
    old = {(10, "f"), (20, "g"), (30, "h")}
    new = {(10, "f"), (15, "new"), (27, "g"), (37, "h")}
    assert segments(old, new) == ((10, 10, 0), (20, 30, 7))
    old = {(10, "f"), (20, "g"), (22, "g"), (30, "h")}
    new = {(10, "f"), (20, "g"), (21, "g"), (24, "g"), (32, "h")}
    assert segments(old, new) == ((10, 20, 0), (30, 30, 2))


def test_a_line_that_checks_contradict_without_telling_another():
    names = {30: "f", 50: "g", 80: "h", 90: "twice", 95: "twice", 99: "operator()"}
    rows = [Definition("function", name, "", FILE, at, at + 5) for at, name in names.items()]
    index = index_of("2.6.0", None, (rows, ()))
    untold, told = (StoredLines(1, "2.6.0", of) for of in ({}, {FILE: ((1, 99, 0),)}))
    for checks, wrong in (
        ([(55, "g"), (5, "operator()"), (5, "twice"), (5, "of_another_file")], ()),
        ([(45, "g")], (50,)),  # its own, before it
        ([(60, "f")], (50,)),  # one of a function before it, behind it
        ([(25, "h")], (30, 50, 80)),
    ):
        assert contradicted(index, untold, {FILE: checks}).get(FILE, ()) == wrong
        assert not contradicted(index, told, {FILE: checks})
