"""The queries of this package."""

from __future__ import annotations

from functools import partial

from opscope.model import queries

__all__ = ["sql"]

sql = partial(queries.sql, __package__)
