"""DuckDB, for all that uses it: imported when it is first asked for something, and not before.

That takes a while, in which a trace is read already.
"""

from __future__ import annotations

import sys
from importlib.util import LazyLoader, find_spec, module_from_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb as duckdb  # noqa: PLC0414 - it is for others
elif "duckdb" in sys.modules:
    duckdb = sys.modules["duckdb"]
else:
    _spec = find_spec("duckdb")
    _spec.loader = LazyLoader(_spec.loader)
    duckdb = sys.modules["duckdb"] = module_from_spec(_spec)
    _spec.loader.exec_module(duckdb)
