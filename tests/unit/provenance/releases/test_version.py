from __future__ import annotations

import pytest

from opscope.provenance.releases.catalog import parse_version


@pytest.mark.parametrize(
    ("label", "name", "is_official"),
    [
        ("2.11.0", "2.11.0", True),
        ("2.11.0+cu130", "2.11.0", True),
        ("v2.6", "2.6.0", True),
        (" 2.6.0 ", "2.6.0", True),
        ("2.11.0+cpu", "2.11.0", False),
        ("2.6.0+rocm6.2.4", "2.6.0", False),
        ("2.6.0a0+ecf3bae40a.nv25.01", "2.6.0", False),
        ("2.12.0.dev20260101+cu130", "2.12.0", False),
        ("2.12.0rc2", "2.12.0", False),
        ("2.12.0.post1", "2.12.0", False),
        ("2.12.0a0+git1234567", "2.12.0", False),
    ],
)
def test_labels_that_are_versions(label, name, is_official):
    version = parse_version(label)
    assert version is not None
    assert (version.name, version.is_official) == (name, is_official)


@pytest.mark.parametrize("label", ["", "main", "2", "2.11.0.1.2", "nightly-2.11", "2.11.0+", "2.11.0 cu130"])
def test_labels_that_are_none(label):
    assert parse_version(label) is None


def test_major_versions_are_not_comparable():
    version = parse_version("2.9.1")
    assert version.distance(parse_version("2.11.0")) == (2, 1)
    assert version.distance(parse_version("1.13.1")) is None
