import pytest

from case_tables import cases
from opscope.errors import InputError
from opscope.provenance import torch_releases
from opscope.provenance.torch_releases import Unit
from torch_tables.libraries import build_table, unit_at


@cases("kernels", "answers")
def test_units_of_a_kernel(make_table, kernels, answers):
    table = make_table(kernels)
    assert {name: list(table.units_of(name)) for name in answers} == answers


@cases("kernels", "answers")
def test_the_unit_of_a_kernel_of_another_release(make_table, kernels, answers):
    table = make_table(kernels)
    assert {name: list(table.loose_units_of(name)) for name in answers} == answers


@pytest.mark.parametrize("of", ["text_hash", "loose_hash"])
def test_names_that_share_a_hash_are_found_when_the_table_is_made(monkeypatch, of):
    monkeypatch.setattr(torch_releases, of, lambda *_: 7)
    with pytest.raises(InputError, match="share a hash"):
        build_table({"at::f()": [Unit("F.cu")], "at::g()": [Unit("F.cu")]}, "2.11.0")


@cases("path", "label")
def test_what_a_builds_own_path_says(path, label):
    assert unit_at("U.cu", path).label == label
