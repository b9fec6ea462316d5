"""The category of an operator, by the patterns of `categories.toml`, and of a kernel, by its family.

An operator is told by its name, else by its tags, else by the kernels it launched; a kernel by its family.
Kernels come decoded: this module reads no kernel names and imports nothing that does.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from opscope.data import packaged_toml

if TYPE_CHECKING:
    from opscope.provenance.kernel_names.decoded_kernel import DecodedKernel


OTHER = "other"
# The backward node of an operator: `AddmmBackward0`, `autograd::engine::evaluate_function: MmBackward0`.
_AUTOGRAD_NODE = re.compile(r"(?:^|[: ])(\w+)Backward\d*$")
# Tags of native_functions.yaml that say what kind of work an operator is.
_TAG_CATEGORIES = {"pointwise": "elementwise", "reduction": "reduction"}
# A kernel fused from several operators counts as the most telling kind of work in it.
_FUSED_PRECEDENCE = ("normalization", "loss", "activation", "pooling", "sort_scan", "random")
# A pointwise or reduction kernel does none of this: it prepares or takes over the data of such operators.
_NEVER_FUSED = frozenset(("matrix", "attention", "convolution", "communication"))


class Category(msgspec.Struct, frozen=True):
    """One kind of work; `pattern` matches the core names of its operators."""

    name: str
    title: str
    pattern: re.Pattern[str]


@cache
def categories() -> tuple[Category, ...]:
    """All categories of operators in the order in which they are tried."""
    return tuple(
        Category(entry["name"], entry["title"], re.compile("|".join(f"(?:{p})" for p in entry["patterns"])))
        for entry in packaged_toml(__package__, "categories.toml")["category"]
    )


@cache
def category_of(operator: str, tags: tuple[str, ...] = ()) -> str:
    """Category name of an operator, e.g. `matrix` for `aten::addmm`; `other` if nothing tells."""
    node = _AUTOGRAD_NODE.search(operator)
    if node:
        core = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", node.group(1)).lower()
    else:
        core = operator.rpartition("::")[2].strip("_")
        core = re.sub(r"(_double)?_backward(_data|_weight|_input|_all)?$", "", core)
        core = re.sub(r"_out$", "", core).strip("_")
    for category in categories():
        if category.pattern.fullmatch(core) or category.pattern.fullmatch(operator):
            return category.name
    return next((_TAG_CATEGORIES[tag] for tag in tags if tag in _TAG_CATEGORIES), OTHER)


def kernel_category(kernel: DecodedKernel) -> str:
    """Category name of a kernel, by its family; `other` if its name tells none.

    Of fused operators the most telling kind of work counts; memory if data is only moved.
    """
    if kernel.family is None or kernel.category is None:
        return OTHER
    if kernel.family == "memcpy" and kernel.copy_direction == "device_to_device":
        return "memory"
    if kernel.family in ("fused_pointwise", "fused_reduction") and kernel.fused_operators:
        found = {category_of(operator) for operator in kernel.fused_operators} - _NEVER_FUSED
        for name in _FUSED_PRECEDENCE:
            if name in found:
                return name
        if "embedding" in found and "elementwise" not in found:
            return "embedding"
        return "memory" if found and found <= {"memory", "copy_transfer"} else kernel.category
    return kernel.category


@cache
def category_title(name: str) -> str:
    document = packaged_toml(__package__, "categories.toml")
    titles = {entry["name"]: entry["title"] for entry in document["category"] + document["kernel_category"]}
    return str(titles.get(name, "Other"))
