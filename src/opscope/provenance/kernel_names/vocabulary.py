"""Words of kernel names that mean something by themselves (`vocabulary.toml`), above all element types.

A type that tells only its size (`OpaqueType<4>`) or none of data (`TensorInfo<…>`) has no short name.
"""

from __future__ import annotations

from functools import cache

from opscope.provenance.packaged import packaged_toml

_WORDS = packaged_toml("kernel_names", "vocabulary.toml")
LETTERS: dict[str, str] = _WORDS["letters"]
_BY_SPELLING: dict[str, str] = {
    spelling: short for short, every in _WORDS["element_types"].items() for spelling in every
}


@cache
def words(name: str) -> frozenset[str]:
    """A set of words: `data`, `index_first`, `integer_data`."""
    return frozenset(_WORDS["words"][name].split())


FLOATING = words("floating")


def element_type(spelling: str) -> str | None:
    """Short name (`f32`, `bf16`, `e4m3`) of a type as it is spelled in a name; None if it is no element type.

    `const`, pointers and references are looked through.
    """
    short = _BY_SPELLING.get(spelling)
    if short is None and spelling[-1:] in "*&t ":
        short = _BY_SPELLING.get(spelling.rstrip("*& ").removesuffix(" const").rstrip("*& "))
    return short


def letter_type(letters: str) -> str | None:
    """Type of a BLAS-like letter, `s` for f32."""
    return LETTERS.get(letters)


@cache
def type_positions(kernel: str) -> dict[str, int] | None:
    """Field → position of the template argument, for kernels of ATen whose types have their own order."""
    listed = _WORDS["type_positions"].get(kernel)
    if listed is None:
        return None
    return {f"{field}_type": position for position, field in enumerate(listed.split()) if field != "-"}
