"""Which kernel of one side took the place of which of the other, within one operator.

Kernels of the same name need no pairing. The rest is paired by what their names decode to, the surest sign
first: the same function and functor (only template arguments changed), the same fused operators under another
number, the same function, the same family of algorithms.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence

from opscope.analysis.provenance import KernelFacts

__all__ = ["describe_replacement", "pair_kernels"]

_COUNTER = re.compile(r"(?:_\d+)+$")
# Fields of a name that say how a kernel of the same family computes, with their words.
_TOLD = {
    "operand_type": "operands", "tile": "tile", "stages": "stages", "cluster": "cluster", "layout": "layout",
    "vector_width": "vector width", "variant": "form", "architecture": "architecture", "split_k": "split K",
    "tensor_core": "tensor cores", "epilogue": "epilogue", "mma_shape": "matrix instruction",
    "head_dimension": "head dimension", "library": "library", "copy_direction": "direction",
    "host_memory": "host memory",
}  # fmt: skip
_MOST_TOLD = 4


def pair_kernels(
    removed: Mapping[str, int], added: Mapping[str, int], facts: Callable[[str], KernelFacts]
) -> list[tuple[str, str]]:
    """Pairs (removed, added) of one operator's kernels of one kind; each kernel is in one pair at most.

    Args:
        removed: Time of each kernel only the reference has, by name.
        added: Time of each kernel only the candidate has.
        facts: What is known of a name.
    """
    pairs: list[tuple[str, str]] = []
    left, right = dict(removed), dict(added)
    for sign in (_same_code, _same_fusion, _same_function, _same_family):
        for old, new in _pair_by(sign, left, right, facts):
            pairs.append((old, new))
            del left[old], right[new]
    return pairs


def _pair_by(
    sign: Callable[[KernelFacts], Hashable],
    removed: Mapping[str, int],
    added: Mapping[str, int],
    facts: Callable[[str], KernelFacts],
) -> list[tuple[str, str]]:
    """Pairs of the same sign, the longest with the longest."""
    groups = [_grouped(sign, side, facts) for side in (removed, added)]
    return [
        pair for key, names in groups[0].items() for pair in zip(names, groups[1].get(key, ()), strict=False)
    ]


def _grouped(
    sign: Callable[[KernelFacts], Hashable], times_ns: Mapping[str, int], facts: Callable[[str], KernelFacts]
) -> dict[Hashable, list[str]]:
    groups: dict[Hashable, list[str]] = defaultdict(list)
    for name in sorted(times_ns, key=lambda name: (-times_ns[name], name)):
        key = sign(facts(name))
        if key is not None:
            groups[key].append(name)
    return groups


def _same_code(facts: KernelFacts) -> Hashable:
    return facts.function and (facts.function, facts.fields.get("functor"))


def _same_fusion(facts: KernelFacts) -> Hashable:
    if not facts.fields.get("fused_operators"):
        return None
    return facts.fields.get("variant"), _COUNTER.sub("", facts.name)


def _same_function(facts: KernelFacts) -> Hashable:
    return facts.function


def _same_family(facts: KernelFacts) -> Hashable:
    return facts.family and (facts.family, facts.fields.get("direction"))


def describe_replacement(old: KernelFacts, new: KernelFacts) -> str:
    """What the names say changed: `operands f32 → bf16, tile 128x64x8 → 192x128x64`."""
    told = [
        f"{words} {_word(old.fields.get(name))} → {_word(new.fields.get(name))}"
        for name, words in _TOLD.items()
        if old.fields.get(name) != new.fields.get(name)
    ]
    if told:
        return ", ".join(told[:_MOST_TOLD])
    if _same_code(old) is not None and _same_code(old) == _same_code(new):
        return _arguments(old, new)
    if _same_fusion(old) is not None and _same_fusion(old) == _same_fusion(new):
        return "renumbered"
    return f"another kernel of the family {new.family}" if new.family else "another kernel"


def _arguments(old: KernelFacts, new: KernelFacts) -> str:
    pairs = zip(old.template_arguments, new.template_arguments, strict=False)
    changed = [(name, before, after) for (name, before), (_, after) in pairs if before != after]
    if not changed or any(len(before) + len(after) > 60 for _, before, after in changed):
        return "other template arguments"
    return ", ".join(
        f"{name or 'argument'} {before} → {after}" for name, before, after in changed[:_MOST_TOLD]
    )


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(map(str, value))
    return "–" if value is None else str(value)
