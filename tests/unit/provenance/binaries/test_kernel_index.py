import pytest
from hypothesis import given
from hypothesis import strategies as st

from opscope.provenance.binaries.library import KernelIndex

NAMES = st.text(st.characters(exclude_characters="\0"), min_size=1, max_size=30)


@given(st.dictionaries(NAMES, st.frozensets(st.integers(0, 9), max_size=4), max_size=20), st.lists(NAMES))
def test_every_name_is_found_with_its_units_and_no_other_is(kernels, others):
    index = KernelIndex.of(kernels, kernels)
    assert {name: index.find(name) for name in kernels} == {
        name: tuple(sorted(units)) for name, units in kernels.items()
    }
    assert all(index.find(name) is None for name in others if name not in kernels)
    assert index.list_names() == list(kernels)


def test_names_to_list_may_differ_from_those_to_find():
    index = KernelIndex.of({"_Z1av": frozenset({1}), "a()": frozenset({1})}, ["a()"])
    assert (index.list_names(), index.find("_Z1av"), index.find("a()")) == (["a()"], (1,), (1,))


@pytest.mark.parametrize("name", ["", "a"])
def test_an_empty_index_finds_nothing(name):
    index = KernelIndex.of({}, [])
    assert (index.find(name), index.list_names()) == (None, [])
