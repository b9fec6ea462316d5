"""Tensors inside nested arguments and results: lists, tuples, named tuples, mappings, dataclasses.

Mappings are walked in the order of their keys' text, so that two results of the same keys pair up whatever
order they were filled in. Anything else that is not a tensor is left as it is. Imports torch lazily.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

from opscope.workloads.runtime import require_torch

__all__ = ["map_tensors", "named_tensors", "tensors_of"]


def tensors_of(value: Any) -> list[Any]:
    """Every tensor inside a value, in order; one that occurs twice is there twice."""
    return [tensor for _, tensor in named_tensors(value)]


def named_tensors(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every tensor inside a value with its place in it, e.g. `[0]['loss']`; `""` for the value itself."""
    if isinstance(value, require_torch().Tensor):
        yield name, value
    else:
        for key, child in _children(value):
            yield from named_tensors(child, f"{name}{key}")


def map_tensors(fn: Callable[[Any], Any], value: Any) -> Any:
    """The value with every tensor replaced by `fn(tensor)`; containers are new, other objects the same."""
    if isinstance(value, require_torch().Tensor):
        return fn(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(fn, child) for child in value))
    if isinstance(value, list | tuple):
        return type(value)(map_tensors(fn, child) for child in value)
    if isinstance(value, MutableMapping):
        changed = copy.copy(value)  # of the same type, whatever its constructor takes
        changed.update({key: map_tensors(fn, child) for key, child in value.items()})
        return changed
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {key: map_tensors(fn, child) for key, child in _fields(value)}
        return dataclasses.replace(value, **fields)
    return value


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list | tuple):
        yield from ((f"[{index}]", child) for index, child in enumerate(value))
    elif isinstance(value, Mapping):
        yield from ((f"[{key!r}]", value[key]) for key in sorted(value, key=repr))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from ((f".{key}", child) for key, child in _fields(value))


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    return ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value) if field.init)
