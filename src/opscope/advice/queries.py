"""The queries of this package: one `.sql` file each, whose head comment says what a row is."""

from __future__ import annotations

from importlib import resources

__all__ = ["sql"]


def sql(name: str) -> str:
    """The query in `NAME.sql`."""
    return resources.files(__package__).joinpath(f"{name}.sql").read_text(encoding="utf-8")
