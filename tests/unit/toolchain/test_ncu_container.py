"""The blocks of report files written here byte by byte."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opscope.errors import InputError
from opscope.toolchain.ncu_reading import MAGIC, read_container
from opscope.toolchain.ncu_report import Process


def varint(value: int) -> bytes:
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def integer(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def text(number: int, value: str | bytes) -> bytes:
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


def prefixed(message: bytes) -> bytes:
    return struct.pack("<I", len(message)) + message


def block(*, results: int = 0, payload: bytes = b"", session: bytes = b"", process: int = 7) -> bytes:
    of = integer(1, process) + text(2, "127.0.0.1") + text(3, "/usr/bin/python3")
    header = integer(1, 0) + integer(2, results) + integer(5, len(payload)) + text(6, of)
    return prefixed(header + (text(3, session) if session else b"")) + payload


def software(name: str, version: str) -> bytes:
    return text(8, text(1, name) + text(2, version))


def write(path: Path, *blocks: bytes, version: int = 7) -> Path:
    path.write_bytes(MAGIC + prefixed(integer(1, version)) + b"".join(blocks))
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "a.ncu-rep"


def test_processes_of_every_result_the_writer_and_the_command(file: Path) -> None:
    session = software("Nsight Compute Target", "2025.3.1.0 (build 1)") + software("CUDA Version", "13.0")
    write(
        file,
        block(session=session),
        block(session=text(11, "/opt/ncu --set full python x.py ")),
        block(results=2, payload=b"x" * 300, process=7),
        block(results=1, payload=b"y", process=300),
    )
    found = read_container(file)
    one, other = Process(7, "/usr/bin/python3"), Process(300, "/usr/bin/python3")
    assert found.processes == (one, one, other)
    assert (found.ncu_version, found.cuda_version) == ("2025.3.1.0", "13.0")
    assert found.command == "/opt/ncu --set full python x.py"


def test_a_report_without_results_is_whole(file: Path) -> None:
    found = read_container(write(file, block()))
    assert (found.format_version, found.processes, found.command) == (7, (), None)


def test_of_a_format_unknown_only_the_version_is_told(file: Path) -> None:
    found = read_container(write(file, b"whatever follows", version=8))
    assert (found.format_version, found.processes) == (8, None)


@pytest.mark.parametrize("content", [b"", b"NV", b"\x7fELF" + bytes(64), b"{}"])
def test_what_is_no_report(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(InputError, match="not a report of Nsight Compute"):
        read_container(file)


@given(cut=st.integers(min_value=1, max_value=499))
def test_every_cut_is_noticed(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    file = tmp_path_factory.mktemp("cut") / "a.ncu-rep"
    whole = write(
        file, block(results=1, payload=b"x" * 200), block(results=1, payload=b"y" * 300)
    ).read_bytes()
    file.write_bytes(whole[:-cut])
    second = len(MAGIC) + len(prefixed(integer(1, 7))) + len(block(results=1, payload=b"x" * 200))
    if len(whole) - cut == second:  # the end of the first block: a whole file with one result
        assert len(read_container(file).processes or ()) == 1
        return
    with pytest.raises(InputError, match="cut off") as caught:
        read_container(file)
    assert caught.value.byte_offset == len(whole) - cut


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff\xff" * 4, prefixed(b"\x0f\x01"), prefixed(b"\x2a\x7f")])
def test_what_is_no_header_is_damage_and_says_where(file: Path, garbage: bytes) -> None:
    good = write(file, block(results=1, payload=b"x")).read_bytes()
    file.write_bytes(good + garbage)
    with pytest.raises(InputError, match="damaged") as caught:
        read_container(file)
    assert caught.value.byte_offset == len(good)
