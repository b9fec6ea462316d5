"""Data shipped with opscope: one real trace, so that every command can be tried without a GPU; and TOML.

What the trace is and how it was recorded: README.md beside this file.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import tomli

__all__ = ["example_trace"]


@cache
def packaged_toml(package: str, name: str) -> dict[str, Any]:
    """A TOML file of a package, by its path there; not to be changed by callers."""
    document: dict[str, Any] = tomli.loads(packaged_text(package, name))
    return document


def packaged_text(package: str, name: str) -> str:
    return (pkgutil.get_data(package, name) or b"").decode()


def example_trace() -> Path:
    """Path of a Kineto trace recorded on an NVIDIA H200: three steps of BERT-base inference in fp32."""
    return Path(str(files(__name__) / "bert_h200.json.gz"))
