"""Names of template parameters, and the arguments of an instantiation put beside them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

__all__ = ["fits", "named_arguments", "split_arguments", "template_parameter_names"]

PACK = "..."
_PARTNERS = {")": "(", "]": "[", "}": "{"}
# Arrows and comparisons that hold an angle are passed over.
_BRACKET_OR_COMMA = re.compile(r"[()\[\]{},]|->|[<>]=|<<(?=\s)|<|>")
_WORD = re.compile(r"[A-Za-z_]\w*")
_TYPES = """
    typename class struct template const volatile unsigned signed int bool char short long float double auto
    void size_t
"""
_TYPE_WORDS = frozenset(_TYPES.split())
_POINTER_NAME = re.compile(r"\(\s*[*&]\s*([A-Za-z_]\w*)\s*\)")


def split_arguments(text: str) -> list[str]:
    """The parts of a list between commas at its top level; brackets of all four kinds nest."""
    parts: list[str] = []
    open_brackets: list[str] = []
    start = 0
    for match in _BRACKET_OR_COMMA.finditer(text):
        character = match.group()
        if character == ",":
            if not open_brackets:
                parts.append(text[start : match.start()].strip())
                start = match.end()
        elif character in "([{<":
            open_brackets.append(character)
        elif character == ">":
            if open_brackets and open_brackets[-1] == "<":
                open_brackets.pop()
        elif character in ")]}":
            _close(open_brackets, _PARTNERS[character])
    parts.append(text[start:].strip())
    return parts if parts != [""] else []


def _close(open_brackets: list[str], opener: str) -> None:
    """Close a bracket, and what was taken for one of a list's `<` inside it."""
    while open_brackets and open_brackets[-1] == "<":
        open_brackets.pop()
    if open_brackets and open_brackets[-1] == opener:
        open_brackets.pop()


def template_parameter_names(text: str) -> tuple[str, ...]:
    """Names of the parameters in the text between `template <` and `>`.

    A pack's name ends in `...`; a parameter without a name is "".
    """
    return tuple(_name(part) for part in split_arguments(text))


def _name(parameter: str) -> str:
    declaration = _before_default(parameter)
    pack = PACK if PACK in declaration else ""
    pointer = _POINTER_NAME.search(declaration)
    if pointer:
        return pointer.group(1) + pack
    words = _WORD.findall(declaration)
    if not words or not declaration.rstrip().endswith(words[-1]):
        return pack
    is_typed = len(words) > 1 or not declaration.startswith(words[-1])
    is_named = is_typed and words[-1] not in _TYPE_WORDS and not _is_qualified(declaration, words)
    return words[-1] + pack if is_named else pack


def _is_qualified(declaration: str, words: list[str]) -> bool:
    """`std::size_t`, `typename T::type`: the last word belongs to the type."""
    return declaration[: -len(words[-1])].rstrip().endswith("::")


def _before_default(parameter: str) -> str:
    depth = 0
    for position, character in enumerate(parameter):
        if character in "([{<":
            depth += 1
        elif character in ")]}>":
            depth -= 1
        elif character == "=" and depth <= 0 and parameter[position + 1 : position + 2] != "=":
            return parameter[:position].rstrip()
    return parameter.rstrip()


def fits(parameters: Sequence[str], arguments: Sequence[str]) -> bool:
    """Whether so many arguments can instantiate a template with these parameters."""
    packs = sum(name.endswith(PACK) for name in parameters)
    if packs == 0:
        return len(arguments) == len(parameters)
    return packs == 1 and len(arguments) >= len(parameters) - 1


def named_arguments(parameters: Sequence[str], arguments: Sequence[str]) -> Mapping[str, str] | None:
    """Argument by parameter name, in the template's order; None if they do not fit each other.

    A pack takes all arguments that the others leave, joined by ", ". Parameters without a name are left out.
    """
    if not fits(parameters, arguments):
        return None
    named: dict[str, str] = {}
    surplus = len(arguments) - len(parameters) + 1
    position = 0
    for name in parameters:
        count = surplus if name.endswith(PACK) else 1
        value = ", ".join(arguments[position : position + count])
        position += count
        if name.removesuffix(PACK):
            named[name.removesuffix(PACK)] = value
    return named
