"""Words of kernel names that mean something by themselves: element types, families, directions.

From `vocabulary.toml`, `families.toml` and `family_rules.toml`. A type that tells only its size
(`OpaqueType<4>`) or none of data (`TensorInfo<…>`) has no short name. Answers are kept, since a program has
far fewer functions than instances of them.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import Any

from opscope.data import packaged_toml
from opscope.provenance.packaged import lazy_pattern

_WORDS = packaged_toml(__package__, "vocabulary.toml")
LETTERS: dict[str, str] = _WORDS["letters"]  # types by BLAS-like letters, `s` for f32
# Libraries by the namespaces of their kernels
NAMESPACES: dict[str, str] = {space: name for name, every in _WORDS["namespaces"].items() for space in every}
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


@cache
def type_positions(kernel: str) -> dict[str, int] | None:
    """Field → position of the template argument, for kernels of ATen whose types have their own order."""
    listed = _WORDS["type_positions"].get(kernel)
    if listed is None:
        return None
    return {f"{field}_type": position for position, field in enumerate(listed.split()) if field != "-"}


# Generic kernels of ATen, and how each is given its functor
LAUNCHERS: dict[str, dict[str, Any]] = _WORDS["launchers"]


_FAMILIES = packaged_toml(__package__, "families.toml").items()
CATEGORY_OF_FAMILY = {name: category for category, members in _FAMILIES for name in members}
MEANING_OF_FAMILY = {name: meaning for _, members in _FAMILIES for name, meaning in members.items()}

_BACKWARD = lazy_pattern(
    r"[bB]ackward|[bB]prop|[dwDW]grad|dot_do_o|convert_dq|dbias|_bwd|bwd_|Bwd|[gG]rad_?[iI]nput|gradinput"
    r"|grad_weight|maxgrad|_bw_|_bw$|_bp\d?_?|GradKernel|accGrad|GammaBeta|InternalGradients|layer_norm_grad"
    r"|_grad_|_grad$|dbn_|^flash_bwd|bwtr|Grad[A-Z_]"
)
_FORWARD = lazy_pattern(
    r"[fF]orward|[fF]prop|_fwd|fwd_|Fwd|[uU]pdate_?[oO]utput|_fw_|_fw$|_fp$|_fp_|fwtr|bn_fw|^flash_fwd|_out_frame"
)


@lru_cache(maxsize=4096)
def direction_of(text: str) -> str | None:
    if _BACKWARD.search(text):
        return "backward"
    return "forward" if _FORWARD.search(text) else None


@lru_cache(maxsize=65536)
def rule_of(section: str, text: str) -> dict[str, Any] | None:
    """The first rule in a section of `family_rules.toml` that occurs in the text; None if none does."""
    fit = (rule for rule, words, rest in _rules(section) if any(map(text.count, words)) or rest.search(text))
    return next(fit, None)


def family_by_rules(section: str, text: str) -> str | None:
    rule = rule_of(section, text)
    return None if rule is None else rule["family"]


# Most patterns are words: to compile hundreds takes longer than to read all names of a trace.
@cache
def _rules(section: str) -> list[tuple[dict[str, Any], list[str], re.Pattern[str]]]:
    return [
        (
            rule,
            [one for one in rule["patterns"] if one.isidentifier()],
            lazy_pattern("|".join(one for one in rule["patterns"] if not one.isidentifier()) or "(?!)"),
        )
        for rule in packaged_toml(__package__, "family_rules.toml")[section]
    ]
