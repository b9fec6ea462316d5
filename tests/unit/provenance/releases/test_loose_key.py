from __future__ import annotations

import pytest

from case_tables import cases
from opscope.provenance.releases.release_table import LooseKeys, loose_keys


@cases("name", "owner", "launch")
def test_who_owns_the_code_and_what_is_launched(name, owner, launch):
    assert loose_keys(name) == LooseKeys(owner, launch)


@cases("name", "same_as")
def test_what_changes_between_releases_is_left_out(name, same_as):
    keys = loose_keys(name)
    assert keys == loose_keys(same_as)
    assert keys.launch is not None
    assert "at::F" in keys.launch


def test_a_template_librarys_kernel_without_a_functor_is_anybodys():
    assert loose_keys("void cub::DeviceScanKernel<cub::Policy<float>, std::plus<float> >(int)").launch is None
    assert loose_keys("void cub::DeviceScanKernel<cub::Policy<float>, mine::Op>(int)").launch is not None


@pytest.mark.parametrize("piece", ["<", "a<b,", "{lambda(", "a::", "(", "f()::{lambda()#1}::"])
def test_a_long_unbalanced_name_has_no_owner(piece):
    assert loose_keys("void at::k<" + piece * (8192 // len(piece))) is not None
