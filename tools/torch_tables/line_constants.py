"""Where checks stand in the sources of a build: file, function and line, as its code passes them on.

`TORCH_CHECK` calls `torchCheckFail(function, file, line, …)`, a launch check
`c10_cuda_check_implementation(error, file, function, line, …)`. Both load the two texts relative to the
instruction and the line as a constant, within a few instructions of each other and before the call:
registers of System V's x86-64 ABI tell which is which. Nothing is disassembled: a combination that is not
such a call would have to name a source file, a C++ identifier and a small number in the right registers.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np

from opscope.provenance.binaries.elf import open_elf
from opscope.provenance.sources.at_hand import Segment

# lea rsi / rdi / rdx, [rip + displacement]; mov edx / ecx, constant.
_LEA_FIRST, _LEA_THIRD = b"\x48\x8d\x3d", b"\x48\x8d\x15"
_MOV_THIRD, _MOV_FOURTH = b"\xba", b"\xb9"
_STRINGS, _CODE = (".rodata", ".lrodata"), (".text", ".ltext")  # the latter ones of large libraries
_WINDOW = 48
_CALL = 0xE8
_NEAR = frozenset((0x00, 0x01, 0x02, 0x03, 0xFC, 0xFD, 0xFE, 0xFF))
_LARGEST_LINE = 30_000
_PATH = re.compile(rb"/(?:[\w.+-]+/)*?((?:aten/src|torch/csrc|c10)/[\w./+-]+\.(?:cuh?|cpp|h))\0")
_IDENTIFIER = re.compile(rb"([A-Za-z_]\w*|operator\(\))\0")

Sites = dict[str, set[tuple[int, str]]]
"""By file, (line, function)."""


def sites_of(library: Path) -> Sites:
    sites: Sites = defaultdict(set)
    with open_elf(library) as elf:
        sections = {name: elf.sections[name] for name in (*_STRINGS, *_CODE) if name in elf.sections}
    with library.open("rb") as stream:
        contents: dict[str, bytes] = {}
        for name, section in sections.items():
            stream.seek(section.offset)
            contents[name] = stream.read(section.size_bytes)
    texts = [(sections[name].address, contents[name]) for name in _STRINGS if name in contents]
    for name in _CODE:
        if name in contents:
            for file, function, line in _calls(contents[name], sections[name].address, texts):
                sites[file].add((line, function))
    return dict(sites)


def _calls(code: bytes, base: int, texts: list[tuple[int, bytes]]) -> Iterator[tuple[str, str, int]]:
    octets = np.frombuffer(code, np.uint8)
    is_lea = (octets[:-7] == 0x48) & (octets[1:-6] == 0x8D) & (octets[2:-5] == 0x35)
    for at in np.flatnonzero(is_lea).tolist():
        file = _text(_target(code, at, base), texts, _PATH)
        if file is None:
            continue
        start, end = max(0, at - _WINDOW), min(len(code) - 8, at + _WINDOW)
        for lea, move in ((_LEA_FIRST, _MOV_THIRD), (_LEA_THIRD, _MOV_FOURTH)):
            function_at = _nearest(code, lea, start, end, at)
            line_at = _nearest(code, move, start, end, at)
            if function_at is None or line_at is None:
                continue
            function = _text(_target(code, function_at, base), texts, _IDENTIFIER)
            line = int.from_bytes(code[line_at + 1 : line_at + 5], "little")
            if function is not None and 0 < line < _LARGEST_LINE:
                yield file, function, line
                break


def _target(code: bytes, at: int, base: int) -> int:
    return base + at + 7 + int.from_bytes(code[at + 3 : at + 7], "little", signed=True)


def _text(address: int, texts: list[tuple[int, bytes]], pattern: re.Pattern[bytes]) -> str | None:
    for start, content in texts:
        if start <= address < start + len(content):
            found = pattern.match(content, address - start)
            return None if found is None else found[1].decode()
    return None


def _nearest(code: bytes, instruction: bytes, start: int, end: int, at: int) -> int | None:
    """The nearest place of an instruction that no call separates from `at`."""
    places = []
    position = code.find(instruction, start, end)
    while position >= 0:
        if position != at and not _has_call(code[min(position, at) + 5 : max(position, at)]):
            places.append(position)
        position = code.find(instruction, position + 1, end)
    return min(places, key=lambda one: abs(one - at), default=None)


def _has_call(between: bytes) -> bool:
    """Whether a `call` stands there: its target is within 64 MiB, as other bytes' would seldom be."""
    return any(octet == _CALL and between[index + 4] in _NEAR for index, octet in enumerate(between[:-4]))


Anchor = tuple[int, int]
"""A line of one release and the line of another where the same check stands."""


def anchors(old: set[tuple[int, str]], new: set[tuple[int, str]]) -> list[Anchor]:
    """Checks of a file that two releases have in common, in their order.

    Checks of one function cannot be told apart: where their number differs, which one is new is open, and
    only those count that moved as far as a check of another function beside them.
    """
    before, after = sorted(old), sorted(new)
    names, others = [name for _, name in before], [name for _, name in after]
    counts, other_counts = Counter(names), Counter(others)
    matcher = SequenceMatcher(None, names, others, autojunk=False)
    pairs = [
        (before[block.a + index], after[block.b + index])
        for block in matcher.get_matching_blocks()
        for index in range(block.size)
    ]
    certain = [counts[one[1]] == other_counts[one[1]] for one, _ in pairs]
    moved = [there[0] - here[0] for here, there in pairs]
    kept = []
    for index, (here, there) in enumerate(pairs):
        beside = [at for at in (index - 1, index + 1) if 0 <= at < len(pairs)]
        if certain[index] or any(certain[at] and moved[at] == moved[index] for at in beside):
            kept.append((here[0], there[0]))
    return kept


def segments(found: list[Anchor]) -> tuple[Segment, ...]:
    """The same in short: runs of checks that moved equally far."""
    runs: list[Segment] = []
    for here, there in found:
        if runs and runs[-1][2] == there - here:
            runs[-1] = (runs[-1][0], here, there - here)
        else:
            runs.append((here, here, there - here))
    return tuple(runs)
