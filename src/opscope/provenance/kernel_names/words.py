"""Reading words of a kernel's name: direction, and families by the rules of `family_rules.toml`.

Answers are kept, since a program has far fewer functions than instances of them.
"""

from __future__ import annotations

import re
import sys
from functools import cache, lru_cache
from importlib import resources

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["FamilyRules", "direction_of"]

_BACKWARD = re.compile(
    r"[bB]ackward|[bB]prop|[dwDW]grad|dot_do_o|convert_dq|dbias|_bwd|bwd_|Bwd|[gG]rad_?[iI]nput|gradinput|grad_weight|maxgrad|_bw_|_bw$|_bp\d?_?"
    r"|GradKernel|accGrad|GammaBeta|InternalGradients|layer_norm_grad|_grad_|_grad$|dbn_|^flash_bwd|bwtr|Grad[A-Z_]"
)
_FORWARD = re.compile(
    r"[fF]orward|[fF]prop|_fwd|fwd_|Fwd|[uU]pdate_?[oO]utput|_fw_|_fw$|_fp$|_fp_|fwtr|bn_fw|^flash_fwd|_out_frame"
)


@lru_cache(maxsize=4096)
def direction_of(text: str) -> str | None:
    """`backward` or `forward` if the words of the text say so."""
    if _BACKWARD.search(text):
        return "backward"
    return "forward" if _FORWARD.search(text) else None


class FamilyRules:
    """The rules of one section of `family_rules.toml`, read when first asked."""

    def __init__(self, section: str) -> None:
        self.section = section
        self.find = lru_cache(maxsize=4096)(self._find)

    def _find(self, text: str) -> str | None:
        """The family of the first rule that is found in the text; None if none is."""
        return next((family for family, pattern in _rules()[self.section] if pattern.search(text)), None)


@cache
def _rules() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    text = resources.files(__package__).joinpath("family_rules.toml").read_text(encoding="utf-8")
    return {
        section: [(rule["family"], re.compile("|".join(rule["patterns"]))) for rule in rules]
        for section, rules in tomllib.loads(text).items()
    }
