"""Names of the parameters that a template declares."""

from __future__ import annotations

from opscope.provenance.packaged import lazy_pattern
from opscope.provenance.sources.signatures import PACK, before_default, split_arguments

_WORD = lazy_pattern(r"[A-Za-z_]\w*")
_TYPES = """
    typename class struct template const volatile unsigned signed int bool char short long float double auto
    void size_t
"""
_TYPE_WORDS = frozenset(_TYPES.split())
_POINTER_NAME = lazy_pattern(r"\(\s*[*&]\s*([A-Za-z_]\w*)\s*\)")


def template_parameter_names(text: str) -> tuple[str, ...]:
    """Names of the parameters in the text between `template <` and `>`.

    A pack's name ends in `...`; a parameter without a name is "".
    """
    return tuple(_name(part) for part in split_arguments(text))


def _name(parameter: str) -> str:
    declaration = before_default(parameter)
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
