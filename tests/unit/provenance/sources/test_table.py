from hypothesis import given
from hypothesis import strategies as st

from opscope.provenance.sources import INDEX_FORMAT, Definition
from torch_tables.definitions import index_of

KERNEL = Definition("kernel", "k", "at::native", "b.cu", 7, 12, ("T", "", "Ts..."), "T*, int", ("s",), True)
FUNCTION = Definition("function", "f", "", "a.cpp", 3, 3, launchers=("l", "m"))
ENTRY = ("s", "CUDA", "f", "b.cu", 9)


def table(*definitions):
    return index_of("2.6.0", "a" * 40, (definitions, [ENTRY]))


def decoded(content):
    return INDEX_FORMAT.decode(content, "x.zst")


def test_encoding_is_lossless():
    again = decoded(INDEX_FORMAT.encode(table(KERNEL, FUNCTION)))
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
def test_any_definitions_come_back(definitions):
    again = decoded(INDEX_FORMAT.encode(table(*definitions)))
    assert sorted(again, key=repr) == sorted(definitions, key=repr)
    for name in {one.name for one in definitions}:
        assert sorted(again.named(name), key=repr) == sorted(
            (d for d in definitions if d.name == name), key=repr
        )
