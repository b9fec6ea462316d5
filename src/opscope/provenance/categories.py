"""The category of an operator, from its name and a data file of patterns (`categories.toml`)."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["OTHER", "Category", "categories", "category_of", "category_title"]

OTHER = "other"
# The backward node of an operator: `AddmmBackward0`, `autograd::engine::evaluate_function: MmBackward0`.
_AUTOGRAD_NODE = re.compile(r"(?:^|[: ])(\w+)Backward\d*$")


@dataclass(frozen=True)
class Category:
    """One kind of work; `pattern` matches the core names of its operators."""

    name: str
    title: str
    pattern: re.Pattern[str]


@cache
def categories() -> tuple[Category, ...]:
    """All categories in the order in which they are tried."""
    text = resources.files(__package__).joinpath("categories.toml").read_text(encoding="utf-8")
    document: dict[str, Any] = tomllib.loads(text)
    return tuple(
        Category(entry["name"], entry["title"], re.compile("|".join(f"(?:{p})" for p in entry["patterns"])))
        for entry in document["category"]
    )


@cache
def category_of(operator: str) -> str:
    """Category name of an operator, e.g. `matrix` for `aten::addmm`; `other` if no pattern matches."""
    core = _core_name(operator)
    for category in categories():
        if category.pattern.fullmatch(core) or category.pattern.fullmatch(operator):
            return category.name
    return OTHER


def category_title(name: str) -> str:
    """Title of a category for people."""
    return next((category.title for category in categories() if category.name == name), "Other")


def _core_name(operator: str) -> str:
    node = _AUTOGRAD_NODE.search(operator)
    if node:
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", node.group(1)).lower()
    core = operator.rpartition("::")[2].strip("_")
    core = re.sub(r"(_double)?_backward(_data|_weight|_input|_all)?$", "", core)
    return re.sub(r"_out$", "", core).strip("_")
