"""Qualified names of C++: their parts, and whether a namespace in a symbol is the one in the source."""

from __future__ import annotations

import re

from opscope.provenance.sources.definitions import Definition

__all__ = ["is_member", "matches_scope", "split_name"]

# What stands for an anonymous namespace: c++filt's words, or the unit's own name as nvcc writes it.
_ANONYMOUS = re.compile(r"\(anonymous namespace\)|_(?:INTERNAL|GLOBAL__N)_\w*|_NV_ANON_NAMESPACE")
# A namespace named by a macro, `namespace FLASH_NAMESPACE`, may be any.
_MACRO = re.compile(r"[A-Z][A-Z0-9_]+")


def split_name(name: str) -> tuple[str, str]:
    """Scope and last part of a qualified name without template arguments."""
    scope, _, plain = name.strip().removeprefix("::").rpartition("::")
    return scope, plain


def matches_scope(written: str, symbol: str) -> bool:
    """Whether the scope in a source file may be the one in a symbol; anonymous namespaces do not count."""
    source, target = _parts(written), _parts(symbol)
    if not any(_MACRO.fullmatch(part) for part in source):
        return source == target
    plain = [part for part in source if not _MACRO.fullmatch(part)]
    return plain == target or (
        len(source) == len(target)
        and all(_MACRO.fullmatch(mine) or mine == theirs for mine, theirs in zip(source, target, strict=True))
    )


def is_member(definition: Definition) -> bool:
    """Whether the scope ends in a class, as far as PyTorch's spelling tells: classes begin with a capital."""
    last = definition.scope.rpartition("::")[2]
    return last[:1].isupper() and not _MACRO.fullmatch(last)


def _parts(scope: str) -> list[str]:
    return [part for part in scope.split("::") if part and not _ANONYMOUS.fullmatch(part)]
