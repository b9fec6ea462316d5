"""The function in a mangled name: Itanium (`_ZN2at6native…`) and Microsoft (`??$kernel@…`) manglings.

A profiler prints the mangled form where demangling failed or was not tried. Only the qualified function is
read, without template arguments; None where the mangling is beyond this reader. Cost is linear in the length.
"""

from __future__ import annotations

import re

__all__ = ["is_mangled", "mangled_function"]

_ANONYMOUS = "(anonymous namespace)"
_LENGTH = re.compile(r"\d{1,4}")
_PREFIX = re.compile(r"_ZN?[rVK]*")
_SUBSTITUTION = re.compile(r"S(?:[0-9A-Z]*_|[tabsiod])|T[0-9]*_|A\d*_|Dv\d+_|DF\d+_")
# Inside template arguments: what opens a group that `E` ends, what stands for itself, and builtin types.
_ARGUMENT_TOKEN = re.compile(
    r"(?P<digits>\d{1,4})|(?P<substitution>S(?:[0-9A-Z]*_|[tabsiod])|T\d*_|A\d*_|Dv\d+_|DF\d+_)|(?P<literal>L)"
    r"|(?P<opening>[NIJXF]+)|(?P<ends>E+)|[^\dSTLNIJXFE]+|."
)
_LITERAL_VALUE = re.compile(r"n?[0-9a-f.]*E")
_MICROSOFT = re.compile(r"\?([A-Za-z_]\w*)@((?:[A-Za-z_]\w*@)*)@")
_MICROSOFT_TEMPLATE = re.compile(r"\?\?\$([A-Za-z_]\w*)@")


def is_mangled(text: str) -> bool:
    """The text looks like a mangled name."""
    return text.startswith(("_Z", "?"))


def mangled_function(text: str) -> str | None:
    """Qualified function of a mangled name; a Microsoft template gives its unqualified name."""
    if text.startswith("_Z"):
        return _itanium_function(text)
    if template := _MICROSOFT_TEMPLATE.match(text):
        return template.group(1)
    if plain := _MICROSOFT.match(text):
        return "::".join([*reversed(plain.group(2).split("@")[:-1]), plain.group(1)])
    return None


def _itanium_function(text: str) -> str | None:
    prefix = _PREFIX.match(text)
    if prefix is None:
        return None
    is_nested = "N" in prefix.group()
    position, parts = prefix.end(), []
    while position < len(text):
        if text.startswith("St", position):
            parts.append("std")
            position += 2
        elif text[position] == "L":  # internal linkage
            position += 1
        elif text[position] == "I":
            position = _after_arguments(text, position)
        elif text[position].isdigit():
            identifier, position = _identifier(text, position)
            if identifier is None:
                return None
            parts.append(identifier)
            if not is_nested:
                break
        else:
            break
    is_complete = position <= len(text) and (not is_nested or text.startswith("E", position))
    return "::".join(parts) if parts and is_complete else None


def _identifier(text: str, position: int) -> tuple[str | None, int]:
    """The length-prefixed identifier there and the position after it."""
    digits = _LENGTH.match(text, position)
    if digits is None:
        return None, position
    end = digits.end() + int(digits.group())
    identifier = text[digits.end() : end]
    if end > len(text) or not identifier:
        return None, position
    return (_ANONYMOUS if identifier.startswith("_GLOBAL__N_") else identifier), end


def _after_arguments(text: str, position: int) -> int:
    """Position after the template arguments that open there; past the text if they do not end."""
    depth = 0
    while token := _ARGUMENT_TOKEN.match(text, position):
        kind, position = token.lastgroup, token.end()
        if kind == "digits":
            position += int(token.group())
        elif kind == "literal":
            position = _after_literal(text, position)
        elif kind == "opening":
            depth += position - token.start()
        elif kind == "ends":
            ends = position - token.start()
            if ends >= depth:
                return token.start() + depth
            depth -= ends
    return len(text) + 1


def _after_literal(text: str, position: int) -> int:
    """Position after a literal argument (`Li128E`, `LN2at9ADAM_MODEE1E`), given the one after its `L`."""
    if text.startswith("_Z", position):
        position += 2  # the address of a function; its own E ends it
        return position
    if position < len(text) and text[position].isdigit():
        _, position = _identifier(text, position)
    elif text.startswith("N", position):
        position = _after_arguments(text, position)
    elif skipped := _SUBSTITUTION.match(text, position):
        position = skipped.end()
    else:
        position += 1
    value = _LITERAL_VALUE.match(text, position)
    return value.end() if value else len(text) + 1
