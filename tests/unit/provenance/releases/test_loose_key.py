import pytest

from case_tables import cases
from opscope.provenance.torch_releases import loose_keys


@cases("name", "owner", "launch")
def test_who_owns_the_code_and_what_is_launched(name, owner, launch):
    keys = loose_keys(name)
    assert (keys.get("owner"), keys.get("launch")) == (owner, launch)


@cases("name", "same_as")
def test_what_changes_between_releases_is_left_out(name, same_as):
    keys = loose_keys(name)
    assert keys == loose_keys(same_as)
    assert "at::F" in keys["launch"]


def test_a_template_librarys_kernel_without_a_functor_is_anybodys():
    assert "launch" not in loose_keys(
        "void cub::DeviceScanKernel<cub::Policy<float>, std::plus<float> >(int)"
    )
    assert "launch" in loose_keys("void cub::DeviceScanKernel<cub::Policy<float>, mine::Op>(int)")


@pytest.mark.parametrize("piece", ["<", "a<b,", "{lambda(", "a::", "(", "f()::{lambda()#1}::"])
def test_a_long_unbalanced_name_launches_nothing(piece):
    assert "launch" not in loose_keys("void at::k<" + piece * (8192 // len(piece)))
