from __future__ import annotations

from pathlib import Path

import pytest

from opscope.errors import InputError
from opscope.provenance.releases import git_version, release, release_versions
from opscope.provenance.releases.catalog import added_table, forget_tables
from opscope.provenance.releases.table_file import encode_table


@pytest.fixture
def add(make_table):
    def added(label: str, kernels, **facts) -> Path:
        file = added_table(label)
        file.parent.mkdir(parents=True)
        file.write_bytes(encode_table(make_table(kernels, label, **facts)))
        forget_tables()
        return file

    return added


def test_versions_are_in_order_of_age_and_names_come_last(packaged, add):
    for version in ("2.11.0", "2.6.0"):
        packaged(version, {})
    add("ours", {})
    add("2.9.1", {})
    assert release_versions() == ("2.6.0", "2.9.1", "2.11.0", "ours")


@pytest.mark.parametrize("label", ["2.11.0", "2.11.0+cu130", "v2.11", "2.11.0rc1"])
def test_a_build_of_a_release_is_answered_from_its_table(packaged, label):
    packaged("2.11.0", {}, git_version="a" * 40, cuda="13.0")
    table = release(label)
    assert (table.version, table.git_version, table.cuda) == ("2.11.0", "a" * 40, "13.0")
    assert release(label) is table
    assert git_version(label) == "a" * 40


def test_a_table_of_just_that_label_comes_before_its_releases(packaged, add):
    packaged("2.12.0", {}, git_version="a" * 40)
    add("2.12.0.dev20260101", {})
    assert release("2.12.0.dev20260101").version == "2.12.0.dev20260101"
    assert git_version("2.12.0.dev20260101") is None


@pytest.mark.parametrize("label", ["2.9.1", "nightly"])
def test_a_version_without_a_table_is_an_error_that_lists_what_there_is(packaged, label):
    packaged("2.11.0", {})
    with pytest.raises(InputError, match=rf"no kernel table of PyTorch {label}; there are: 2\.11\.0"):
        release(label)
    assert git_version(label) is None


def test_the_users_kernels_come_before_the_packaged_ones_of_that_version(packaged, add):
    packaged("2.11.0", {"at::f()": ["aten/F.cu"], "at::g()": ["aten/G.cu"]}, git_version="a" * 40)
    add("2.11.0", {"at::f()": ["Own.cu"], "at::h()": ["G.cu"]})
    table = release("2.11.0")
    assert table.units_of("at::f()") == ("Own.cu",)
    assert table.units_of("at::g()") == ("aten/G.cu",)
    assert table.units_of("at::h()") == ("aten/G.cu",)  # the one file of that name
    assert table.git_version == "a" * 40


def test_a_key_on_which_the_two_disagree_answers_nothing(packaged, add):
    packaged("2.11.0", {"void at::f<int>()": ["F.cu"], "void at::g<int>()": ["G.cu"]})
    add("2.11.0", {"void at::f<long>()": ["Own.cu"], "void at::h<long>()": ["H.cu"]})
    table = release("2.11.0")
    assert table.loose_units_of("void at::f<float>()") == ()
    assert table.loose_units_of("void at::g<float>()") == ("G.cu",)
    assert table.loose_units_of("void at::h<float>()") == ("H.cu",)


@pytest.mark.parametrize("kind", ["packaged", "added"])
def test_a_damaged_file_is_named(packaged, add, kind):
    file = packaged("2.11.0", {})
    if kind == "added":
        file = add("2.11.0", {})
    file.write_bytes(file.read_bytes()[:-3])
    forget_tables()
    with pytest.raises(InputError, match="damaged") as raised:
        release("2.11.0")
    assert raised.value.source == str(file)
