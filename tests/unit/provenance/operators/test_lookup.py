from __future__ import annotations

import subprocess
import sys
from importlib.machinery import ModuleSpec

import msgspec
import pytest
import zstandard

from opscope.errors import InputError
from opscope.model.evidence import Grade
from opscope.provenance import installation
from opscope.provenance.operators import (
    decode_table,
    encode_table,
    installed_table,
    packaged_table,
    packaged_versions,
    table_for,
)
from opscope.provenance.operators import (
    table as lookup,
)

FUNCTIONS = "- func: mine(Tensor self) -> Tensor\n"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for function in (lookup.packaged_table, lookup._cached_table):
        function.cache_clear()
    yield tmp_path / "cache/opscope"
    for function in (lookup.packaged_table, lookup._cached_table):
        function.cache_clear()


@pytest.fixture
def install(write_yaml, tmp_path, monkeypatch):
    """Pretends that a PyTorch is installed."""

    def make(version, git_version="abc", functions=FUNCTIONS):
        packaged = write_yaml(functions)
        torch = tmp_path / "torch"
        torch.mkdir(exist_ok=True)
        (torch / "version.py").write_text(
            f"__version__ = '{version}'\ncuda: Optional[str] = None\ngit_version = '{git_version}'\n"
        )
        folders = {"torch": torch, "torchgen": packaged.parent}

        def find_spec(name):
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations.append(str(folders[name]))
            return spec

        monkeypatch.setattr(installation, "find_spec", find_spec)
        return packaged

    return make


@pytest.fixture
def nothing_installed(monkeypatch):
    """Pretends that no PyTorch is installed."""
    monkeypatch.setattr(installation, "find_spec", lambda name: None)


def test_the_installed_table_is_built_once_and_cached(install, cache):
    packaged = install("2.13.0+cu130")
    table = installed_table()
    assert (table.version, table.git_version, table.grade) == ("2.13.0+cu130", "abc", Grade.EXACT)
    assert [entry.name for entry in table.functions] == ["aten::mine"]
    (stored,) = (cache / "operators").iterdir()
    lookup._cached_table.cache_clear()
    assert installed_table().functions == table.functions
    stored.write_bytes(b"damaged")
    lookup._cached_table.cache_clear()
    assert installed_table().functions == table.functions
    (packaged / "ATen/native/native_functions.yaml").write_text(FUNCTIONS.replace("mine", "other"))
    assert installed_table().functions[0].name == "aten::other"
    assert len(list((cache / "operators").iterdir())) == 2


def test_a_cache_that_cannot_be_written_is_no_error(install, cache):
    install("2.13.0")
    cache.parent.mkdir()
    cache.write_text("a file where the folder should be")
    assert installed_table().functions[0].name == "aten::mine"


@pytest.mark.parametrize("functions", ["[]", "- func: f", "- [1"])
def test_a_broken_installation_counts_as_none(install, functions):
    install("2.13.0", functions=functions)
    assert installed_table() is None
    assert table_for("2.13.0").grade is Grade.RELEASE_INDEX


def test_a_missing_file_counts_as_no_installation(install):
    (install("2.13.0") / "autograd/derivatives.yaml").unlink()
    assert installed_table() is None


def test_a_spec_that_cannot_be_found_counts_as_no_installation(monkeypatch):
    def fail(name):
        raise ValueError(f"{name}.__spec__ is None")

    monkeypatch.setattr(installation, "find_spec", fail)
    assert installed_table() is None


@pytest.mark.parametrize(
    ("installed", "version", "commit", "grade"),
    [
        ("2.13.0+cpu", "2.13.0+cu130", None, Grade.EXACT),
        ("2.13.0+cpu", "2.13.0", "abc", Grade.EXACT),
        ("2.13.0+cpu", "2.13.0", "def", Grade.RELEASE_INDEX),
        ("2.13.0+cpu", "2.6.0", None, Grade.RELEASE_INDEX),
        ("2.13.0+cpu", None, None, Grade.NEIGHBOR_VERSION),
        ("2.13.0+cpu", None, "abc", Grade.EXACT),
        ("2.13.0a0+git1", "2.13.0a0+git1", None, Grade.EXACT),
        ("2.13.0a0+git1", "2.13.0a0+git2", None, Grade.NEIGHBOR_VERSION),
        ("2.13.0a0+git1", "2.13.0", None, Grade.RELEASE_INDEX),
    ],
)
def test_the_grade_says_how_near_the_table_is(install, installed, version, commit, grade):
    install(installed)
    assert table_for(version, commit).grade is grade


@pytest.mark.parametrize(
    ("version", "nearest"),
    [
        ("2.4.1", "2.6.0"),
        ("1.9.0", "2.6.0"),
        ("2.8.0+cu126", "2.6.0"),
        ("2.9.0", "2.11.0"),
        ("2.12.1", "2.13.0"),
        ("2.13.1", "2.13.0"),
        ("2.14.0", "2.14.1"),
        ("2.6.0a0+ecf3bae40a.nv25.01", "2.6.0"),
        ("3.0.0", "2.14.1"),
        ("unknown", "2.14.1"),
        (None, "2.14.1"),
    ],
)
def test_the_nearest_release(nothing_installed, version, nearest):
    assert installation.nearest_release(version, ("2.6.0", "2.11.0", "2.13.0", "2.14.1")) == nearest


def test_a_neighbor_is_graded_as_one(nothing_installed):
    table = table_for("2.4.1")
    assert (table.version, table.grade) == (packaged_versions()[0], Grade.NEIGHBOR_VERSION)


def test_packaged_releases():
    assert {"2.6.0", "2.11.0", "2.13.0", "2.14.1"} <= set(packaged_versions())
    for version in packaged_versions():
        table = packaged_table(version)
        assert (table.version, len(table.git_version)) == (version, 40)
        assert len(table.functions) > 3000
        assert len(table.derivatives) > 600
    assert packaged_table("2.12.0a0") is None
    assert packaged_table(None) is None


def test_an_installation_without_packaged_tables_says_so(nothing_installed, monkeypatch):
    monkeypatch.setattr(lookup, "release_files", lambda name: {})
    with pytest.raises(InputError, match="no operator table is packaged"):
        table_for("2.13.0")


def test_a_table_that_cannot_be_read_is_named(cache):
    path = cache / "releases/2.12.99" / lookup.TABLE_FILE
    path.mkdir(parents=True)
    with pytest.raises(InputError, match="cannot be read") as caught:
        packaged_table("2.12.99")
    assert caught.value.source == str(path)


def test_an_installation_of_unknown_version(install, tmp_path):
    install("2.13.0")
    (tmp_path / "torch/version.py").unlink()
    table = installed_table()
    assert (table.version, table.git_version) == (None, None)
    assert table_for("2.13.0").grade is Grade.RELEASE_INDEX


def test_a_release_added_by_the_user(make_table, nothing_installed, cache):
    path = cache / "releases/2.12.99" / lookup.TABLE_FILE
    path.parent.mkdir(parents=True)
    path.write_bytes(encode_table(make_table(FUNCTIONS, version="2.12.99")))
    assert "2.12.99" in packaged_versions()
    table = table_for("2.12.99+cu126")
    assert (table.grade, len(table.functions)) == (Grade.RELEASE_INDEX, 1)
    path.write_bytes(b"damaged")
    lookup.packaged_table.cache_clear()
    with pytest.raises(InputError, match="not an operator table"):
        packaged_table("2.12.99")


def test_stored_tables_are_what_was_stored(table):
    content = encode_table(table)
    again = decode_table(content, source="x", grade=Grade.INFERRED)
    assert (again.functions, again.derivatives) == (table.functions, table.derivatives)
    assert (again.version, again.git_version, again.grade) == ("2.13.0", table.git_version, Grade.INFERRED)
    assert "2.13.0" in repr(again)
    assert content == encode_table(again)


def test_a_table_of_another_format_is_refused():
    content = zstandard.compress(msgspec.msgpack.encode([99, "2.13.0", None, [], []]))
    with pytest.raises(InputError, match="format 99"):
        decode_table(content, source="x", grade=Grade.EXACT)


def test_a_table_that_claims_to_be_huge_is_refused():
    claim = b"\x28\xb5\x2f\xfd" + b"\xe0" + (1 << 40).to_bytes(8, "little")
    with pytest.raises(InputError, match="too large"):
        decode_table(claim, source="x", grade=Grade.EXACT)


def test_neither_torch_nor_torchgen_is_imported():
    program = (
        "import sys; from opscope.provenance.operators import table_for\n"
        "table_for('2.13.0'); table_for(None)\n"
        "print([name for name in ('torch', 'torchgen') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
