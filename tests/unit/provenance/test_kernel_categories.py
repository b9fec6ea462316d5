"""The category of a kernel, and of operators that only their tags or kernels tell."""

from case_tables import cases
from opscope.provenance.categories import OTHER, category_of, category_title, kernel_category
from opscope.provenance.kernel_names.decoder import decode


@cases("name", "expected")
def test_the_category_of_a_kernel(name, expected):
    assert kernel_category(decode(name)) == expected


def test_tags_tell_what_a_name_does_not_and_kernels_have_a_category_of_their_own():
    assert category_of("mine::special", ("core", "pointwise")) == "elementwise"
    assert category_of("mine::special", ("reduction",)) == "reduction"
    assert category_of("mine::special", ("core",)) == OTHER
    assert category_of("aten::gelu", ("pointwise",)) == "activation"
    assert category_title("control") == "Control and waiting"


@cases("category", "name")
def test_rarer_operators(category, name):
    assert category_of(name) == category
