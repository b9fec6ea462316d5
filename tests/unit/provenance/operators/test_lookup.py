import pytest

from case_tables import cases
from opscope.errors import InputError
from opscope.provenance import native_functions as lookup
from opscope.provenance import packaged, torch_releases
from opscope.provenance.native_functions import packaged_table, packaged_versions, table_for


@pytest.fixture(autouse=True)
def forget():
    packaged_table.cache_clear()
    yield
    packaged_table.cache_clear()
    packaged_versions.cache_clear()


@cases("version", "recognized", "answers", "grade")
def test_the_grade_says_how_near_the_table_is(version, recognized, answers, grade):
    table = table_for(version, recognized=recognized)
    assert (table.version, table.grade) == (answers, grade)


@cases("version", "nearest")
def test_the_nearest_release(version, nearest):
    assert torch_releases.nearest_release(version, ("2.6.0", "2.11.0", "2.13.0", "2.14.1")) == nearest


def test_an_installation_without_packaged_tables_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(packaged, "packaged_releases", lambda: tmp_path)
    packaged_versions.cache_clear()
    with pytest.raises(InputError, match="no operator table is packaged"):
        table_for("2.12.99")


def test_what_is_stored_is_what_was_stored_with_a_ufuncs_header(table):
    content = lookup.TABLE_FORMAT.encode(table)
    again = lookup.TABLE_FORMAT.decode(content, "x")
    assert (again.functions, again.derivatives) == (table.functions, table.derivatives)
    assert (again.version, again.git_version) == ("2.13.0", table.git_version)
    assert "2.13.0" in repr(again)
    assert content == lookup.TABLE_FORMAT.encode(again)
    assert table.entry("aten::add_", "Tensor").served["CUDA"].header == "aten/src/ATen/native/ufunc/add.h"


@cases("name", "backend", "expected")
def test_what_serves_an_operator(table, name, backend, expected):
    served = table.entry(*name.split(".")).served.get(backend)
    assert (served and [served.key, served.function, served.kind, served.overload]) == expected
