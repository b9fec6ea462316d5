"""The packaged tables of native functions and the files that may define them."""

import pytest

from opscope.errors import InputError
from opscope.provenance.torch_releases import git_version, release, release_versions


def test_versions_are_in_order_of_age(packaged):
    for version in ("2.11.0", "2.6.0", "2.9.1"):
        packaged(version, {})
    assert release_versions() == ("2.6.0", "2.9.1", "2.11.0")


@pytest.mark.parametrize("label", ["2.11.0", "2.11.0+cu130", "v2.11", "2.11.0rc1"])
def test_a_build_of_a_release_is_answered_from_its_table(packaged, label):
    packaged("2.11.0", {}, git_version="a" * 40, cuda="13.0")
    table = release(label)
    assert (table.version, table.git_version, table.cuda) == ("2.11.0", "a" * 40, "13.0")
    assert release(label) is table
    assert git_version(label) == "a" * 40


@pytest.mark.parametrize("label", ["2.9.1", "nightly"])
def test_a_version_without_a_table_is_an_error_that_lists_what_there_is(packaged, label):
    packaged("2.11.0", {})
    with pytest.raises(InputError, match=rf"no kernel table of PyTorch {label}; there are: 2\.11\.0"):
        release(label)
    assert git_version(label) is None
