"""What a reader in a process of its own may take, and what is said of a file in which it goes wrong."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from opscope.errors import InputError
from opscope.model import confined as room
from opscope.model.confined import confined


def length(file: Path) -> int:
    print("a library's own words")
    return len(file.read_bytes())


def refuses(file: Path) -> None:
    raise InputError("not of this kind", source=file, byte_offset=3, hint="Copy it again")


def never_ends(file: Path) -> None:
    while True:
        pass


def sleeps(file: Path) -> None:
    time.sleep(60)


def takes_all(file: Path) -> int:
    return len(bytearray(1 << 30))


def crashes(file: Path) -> None:
    os.abort()


def fails(file: Path) -> None:
    raise KeyError("a name")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"four")
    return path


def test_what_it_returns_comes_back(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert confined(length, file, reader="a reader") == 4
    assert capfd.readouterr() == ("", "")


def test_its_own_error_is_raised_as_it_was(file: Path) -> None:
    with pytest.raises(InputError) as caught:
        confined(refuses, file, reader="a reader")
    error = caught.value
    assert (error.message, error.source, error.byte_offset, error.hint) == (
        "not of this kind", str(file), 3, "Copy it again",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (never_ends, "a reader found no end of it within 1 s"),
        (sleeps, "a reader found no end of it within 1 s"),
        (takes_all, "a reader took more than 512 MB of memory for it"),
        (crashes, "a reader crashed on it"),
        (fails, "a reader failed on it .KeyError: 'a name'."),
    ],
)
@pytest.mark.exhaustive(few=False)
def test_what_goes_wrong_is_an_error_of_the_file(
    file: Path, read: object, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "_CPU_S", 1)
    monkeypatch.setattr(room, "_WALL_PER_CPU", 3)
    monkeypatch.setattr(room, "_MEMORY_BYTES", 512 << 20)
    with pytest.raises(InputError, match=said) as caught:
        confined(read, file, reader="a reader")  # type: ignore[arg-type]
    assert caught.value.source == str(file)
