from __future__ import annotations

import msgspec
import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from opscope.errors import InputError
from opscope.provenance.sources.index import _FORMAT, Definition, Registration, SourceIndex

KERNEL = Definition("kernel", "k", "at::native", "b.cu", 7, 12, ("T", "", "Ts..."), "T*, int", ("s",), True)
FUNCTION = Definition("function", "f", "", "a.cpp", 3, 3, launchers=("l", "m"))
ENTRY = Registration("s", "CUDA", "f", "b.cu", 9)


def table(*definitions: Definition) -> SourceIndex:
    return SourceIndex.from_definitions("2.6.0", "a" * 40, definitions, [ENTRY])


def decoded(content: bytes, source: str = "x.zst") -> SourceIndex:
    return SourceIndex.decoded(_FORMAT.decode(content, source))


def test_encoding_is_lossless() -> None:
    again = decoded(table(KERNEL, FUNCTION).encode())
    assert list(again) == [FUNCTION, KERNEL]
    assert (again.version, again.git_version, again.registrations) == ("2.6.0", "a" * 40, (ENTRY,))


_NAMES = st.sampled_from(["f", "g", "operator<", "h"])
_DEFINITIONS = st.builds(
    lambda kind, name, file, line, length, parameters: Definition(
        kind, name, "at", file, line, line + length, parameters
    ),
    st.sampled_from(["function", "class", "kernel"]),
    _NAMES,
    st.sampled_from(["a.cu", "b.cu", "c.h"]),
    st.integers(1, 100_000),
    st.integers(0, 5000),
    st.sampled_from([(), ("",), ("T", "Ts...")]),
)


@given(st.lists(_DEFINITIONS, max_size=30))
def test_any_definitions_come_back(definitions: list[Definition]) -> None:
    again = decoded(table(*definitions).encode())
    assert sorted(again, key=repr) == sorted(definitions, key=repr)
    for name in {one.name for one in definitions}:
        assert sorted(again.named(name), key=repr) == sorted(
            (d for d in definitions if d.name == name), key=repr
        )


def _recoded(change: object) -> bytes:
    """A table's bytes after `change(document)`."""
    document = msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(table(KERNEL).encode()))
    change(document)  # type: ignore[operator]
    return bytes(zstandard.ZstdCompressor().compress(msgspec.msgpack.encode(document)))


class TestDamage:
    @pytest.mark.parametrize(
        "content",
        [b"", b"no table", zstandard.ZstdCompressor().compress(b"\xc1"), table(KERNEL).encode()[:40]],
    )
    def test_no_table_at_all(self, content: bytes) -> None:
        with pytest.raises(InputError, match="not a source index"):
            decoded(content, "x.zst")

    def test_another_format(self) -> None:
        with pytest.raises(InputError, match="format 99"):
            decoded(_recoded(lambda document: document.__setitem__(0, 99)))

    @pytest.mark.parametrize("column", ["name", "scope", "kind", "template", "launchers"])
    def test_a_row_that_points_nowhere(self, column: str) -> None:
        def change(document: list[dict[str, bytes]]) -> None:
            document[4][column] = np.array([77], dtype="<u4").tobytes()

        with pytest.raises(InputError, match="damaged"):
            decoded(_recoded(change))

    def test_columns_of_different_lengths(self) -> None:
        with pytest.raises(InputError, match="damaged"):
            decoded(_recoded(lambda document: document[4].update(line=b"")))
        with pytest.raises(InputError, match="damaged"):
            decoded(_recoded(lambda document: document[4].pop("line")))
