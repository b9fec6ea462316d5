from importlib.machinery import ModuleSpec

import pytest

from case_tables import cases
from opscope.provenance import torch_releases
from opscope.provenance.torch_releases import installed_torch, package_folders, parse_version


@cases("text", "version")
def test_a_build_is_what_its_version_file_says(tmp_path, monkeypatch, text, version):
    monkeypatch.setattr(torch_releases, "package_folders", lambda name: (tmp_path,))
    assert installed_torch() is None
    (tmp_path / "version.py").write_text(text)
    assert installed_torch() == version


def test_without_torch_no_build_is_known(monkeypatch):
    monkeypatch.setattr(torch_releases, "package_folders", lambda name: ())
    assert installed_torch() is None


def test_a_package_that_is_not_installed_or_broken_has_no_folder(tmp_path, monkeypatch):
    assert package_folders("no_such_package_anywhere") == ()

    def fail(name):
        raise ValueError(name)

    monkeypatch.setattr(torch_releases, "find_spec", fail)
    assert package_folders("torch") == ()
    spec = ModuleSpec("torch", None)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(torch_releases, "find_spec", lambda name: spec)
    assert package_folders("torch") == (tmp_path,)


@cases("label", "name", "is_official")
def test_labels_that_are_versions(label, name, is_official):
    version = parse_version(label)
    assert (version.name, version.is_official) == (name, is_official)


@pytest.mark.parametrize("label", ["", "main", "2", "2.11.0.1.2", "nightly-2.11", "2.11.0+", "2.11.0 cu130"])
def test_labels_that_are_none(label):
    assert parse_version(label) is None
