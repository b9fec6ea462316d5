"""Names of the Triton kernels that torch.compile writes, `triton_per_fused_add_native_layer_norm_view_5`.

Documented by their generator. Source: torch/_inductor/codegen/triton.py (`define_kernel`),
torch/_inductor/utils.py (`get_fused_kernel_name`). The word after `triton_` is the kind of kernel. The
operators are sorted, without repeats and joined by underscores, of which their own names are full: taking
them apart is inference, and older releases kept ten at most.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import Any

from opscope.provenance.kernel_names.decoded_kernel import Reading

__all__ = ["KINDS", "fused_operators", "read_triton"]

KINDS = {
    "poi": ("fused_pointwise", "pointwise"),
    "red": ("fused_reduction", "looped"),
    "per": ("fused_reduction", "persistent"),
    "mix": ("fused_reduction", "mix_order"),
    "tem": ("fused_template", "template"),
    "for": ("foreach", "foreach"),
    "spl": ("scan", "split_scan"),
    "split_scan": ("scan", "split_scan"),
    "unk": (None, None),
}
# Ends in a number, and in older releases in the arguments' properties: `0d1d2de`.
_END = r"(?:_\d+)?(?:_*\d+d[\ddec]*)?"
_NAME = re.compile(rf"triton_(?P<kind>{'|'.join(KINDS)})(?:_fused)?(?:_(?P<operators>.*?))??{_END}")
_OLD_NAME = re.compile(rf"triton_(?:fused(?:_(?P<operators>.*?))??)?{_END}")
_MOST_OPERATORS = 10  # config.kernel_name_max_ops
_TEMPLATES = (
    ("attention", re.compile(r"flex_attention|scaled_dot_product")),
    ("convolution", re.compile(r"convolution|conv\dd")),
    ("grouped_gemm", re.compile(r"grouped_mm")),
    ("gemm", re.compile(r"(?:^|_)(?:b|add|badd|scaled_|int_)?b?mm(?:_|$)|matmul|linear")),
)


def read_triton(text: str) -> Reading | None:
    """What a generated name says; None if it is not one."""
    match = _NAME.fullmatch(text)
    kind = match.group("kind") if match else None
    if match is None:
        match = _OLD_NAME.fullmatch(text)
        if match is None or text == "triton_":
            return _template(text)
    family, variant = KINDS[kind] if kind else (None, None)
    joined = match.group("operators") or ""
    operators = fused_operators(joined)
    stated: dict[str, Any] = {"library": "triton", "family": family, "variant": variant}
    inferred: dict[str, Any] = {"fused_operators": operators}
    if operators:
        inferred["fused_operators_may_be_cut"] = len(operators) >= _MOST_OPERATORS
    if family == "fused_template":
        inferred["family"] = next((name for name, pattern in _TEMPLATES if pattern.search(joined)), None)
        if inferred["family"] is not None:
            del stated["family"]
    return Reading(stated, inferred)


def _template(text: str) -> Reading | None:
    """A template under its own name (`triton_mm`), as it is called while candidates are timed."""
    family = next((name for name, pattern in _TEMPLATES if pattern.search(text)), None)
    return Reading({"library": "triton"}, {"family": family}) if family is not None else None


def fused_operators(joined: str) -> tuple[str, ...]:
    """The operators of a joined name: the longest known ones, as long as their order stays ascending."""
    operators: list[str] = []
    position = 0
    while position < len(joined):
        operator = _next_operator(joined, position, operators[-1] if operators else "")
        if not operator:
            break
        operators.append(operator)
        position += len(operator) + 1
    return tuple(operators)


def _next_operator(joined: str, position: int, previous: str) -> str:
    """The longest known name there that sorts after the previous one; else the next word."""
    known, longest = _known_names()
    ends = [match.start() for match in re.finditer("_|$", joined[position : position + longest + 1])]
    names = [joined[position : position + end] for end in ends if end]
    if not names:
        return ""
    fitting = [name for name in names if name in known and name >= previous]
    if fitting:
        return fitting[-1]
    return next((name for name in names if not name.startswith("_")), names[-1])


@cache
def _known_names() -> tuple[frozenset[str], int]:
    """Operators whose names hold underscores, and the length of the longest."""
    text = resources.files(__package__).joinpath("fused_operator_names.txt").read_text(encoding="utf-8")
    names = frozenset(line for line in text.splitlines() if line and not line.startswith("#"))
    return names, max(map(len, names))
