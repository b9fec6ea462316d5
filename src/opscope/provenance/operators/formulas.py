"""What a C++ formula of derivatives.yaml calls: operators, and functions of autograd's own."""

from __future__ import annotations

import re
from collections.abc import Collection

__all__ = ["called_functions"]

_CALL = re.compile(r"(?P<scope>(?:\w+::)*)(?P<name>[A-Za-z_]\w*)\s*\(")
_MEMBER = re.compile(r"(?:\.|->)\s*$")
_LITERAL = re.compile(r'"[^"]*"')
_TEMPLATE_CALL = re.compile(r"(\w+)<[^<>()]*>\s*(?=\()")
# Scopes in which operators are called; a name in any other (`std::`, `c10::`) is none.
_OPERATOR_SCOPES = {"", "at::"}
_NO_FUNCTIONS = re.compile(r"if|return|sizeof|not_implemented(_list)?|[A-Z]\w*")  # the last are types


def called_functions(
    formula: str, operators: Collection[str], declared: Collection[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Operators (C++ names) and other free functions that a formula calls, each once and in order.

    Args:
        formula: C++ expression.
        operators: C++ names that reach the dispatcher.
        declared: C++ names of all functions of native_functions.yaml; those among them that never reach the
            dispatcher are left out.
    """
    found: dict[str, None] = {}
    helpers: dict[str, None] = {}
    for call in _CALL.finditer(_TEMPLATE_CALL.sub(r"\1", _LITERAL.sub('""', formula))):
        scope, name = call["scope"], call["name"].removesuffix("_symint")
        if scope not in _OPERATOR_SCOPES:
            continue
        if name in operators:
            found[name] = None
        elif name not in declared and not _is_member(call) and not _NO_FUNCTIONS.fullmatch(name):
            helpers[call["name"]] = None
    return tuple(found), tuple(helpers)


def _is_member(call: re.Match[str]) -> bool:
    return _MEMBER.search(call.string[: call.start()]) is not None
