"""Packaged queries: one `.sql` file each, whose head comment says what a row is."""

from __future__ import annotations

from functools import cache
from importlib import resources

__all__ = ["sql"]


@cache
def sql(name: str, package: str = "opscope.analysis") -> str:
    """The query in `NAME.sql` of a package; the name may lead through its folders, `timeline/calls`."""
    return resources.files(package).joinpath(f"{name}.sql").read_text(encoding="utf-8")
