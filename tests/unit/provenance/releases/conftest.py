"""Catalogs of small tables, packaged in a folder of the test."""

import pytest

from opscope.provenance import packaged as packaged_data
from opscope.provenance.torch_releases import UNITS_FORMAT, Unit
from torch_tables.libraries import build_table


@pytest.fixture
def make_table():
    """A table of kernels, each with the paths or names of its units."""

    def make(kernels, version="2.11.0", **facts):
        located = {name: [unit_of(label) for label in labels] for name, labels in kernels.items()}
        return build_table(located, version, **facts)

    return make


def forget_tables():
    UNITS_FORMAT.releases.cache_clear()
    UNITS_FORMAT.of_release.cache_clear()


@pytest.fixture
def packaged(tmp_path, monkeypatch, make_table):
    """Packages tables, in place of the real ones."""
    folder = tmp_path / "packaged"
    folder.mkdir()
    monkeypatch.setattr(packaged_data, "packaged_releases", lambda: folder)
    forget_tables()

    def package(version, kernels, **facts):
        file = folder / version / UNITS_FORMAT.file
        file.parent.mkdir()
        file.write_bytes(UNITS_FORMAT.encode(make_table(kernels, version, **facts)))
        forget_tables()
        return file

    yield package
    forget_tables()


def unit_of(label):
    name = label.rpartition("/")[2]
    return Unit(name) if name == label else Unit(name, label)
