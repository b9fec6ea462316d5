import pytest
from hypothesis import given
from hypothesis import strategies as st

from case_tables import cases
from opscope.provenance.kernel_names import cxx_name as demangle_module
from opscope.provenance.kernel_names.cxx_name import demangle, demangle_all

pytestmark = pytest.mark.skipif(demangle_module._runtime() is None, reason="no C++ runtime here")


@cases("mangled", "text")
def test_the_text_kineto_shows(mangled, text):
    assert demangle(mangled) == text


def test_long_and_absurd_names_are_left_alone():
    name = "_Z8191" + "a" * 8191 + "v"
    assert demangle(name) is None
    assert demangle("_Z1000" + "a" * 1000 + "v") == "a" * 1000 + "()"
    assert demangle("\ud800") is None
    assert len(demangle(doubling(8))) > 5000
    assert demangle(doubling(60)) is None


def test_many_names_keep_their_order_and_without_a_runtime_have_no_text(monkeypatch):
    long = "b" * 900
    names = ["_Z1av", f"_Z900{long}v", "plain", "_Z1cv"]
    assert demangle_all(names) == ["a()", f"{long}()", None, "c()"]
    monkeypatch.setattr(demangle_module, "_runtime", lambda: None)
    assert demangle_all(["_Z1av", "plain"]) == [None, None]


def doubling(levels):
    """A name of a few hundred characters whose text doubles with each level."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    references = [f"S{digits[number // 36]}{digits[number % 36]}_" if number >= 36 else f"S{digits[number]}_" for number in range(levels + 2)]  # fmt: skip  # noqa: E501
    return "_Z1f1a1PIS_S_E" + "".join(
        f"S0_I{references[number]}{references[number]}E" for number in range(1, levels + 1)
    )


@given(st.text(st.sampled_from("_ZNSTIELKPi0123456789abC"), max_size=60).map(lambda text: "_Z" + text))
def test_no_name_fails(name):
    assert demangle(name) is None or isinstance(demangle(name), str)
