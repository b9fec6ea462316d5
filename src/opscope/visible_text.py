"""What may be shown: of strangers' names nothing invisible, of commands no passwords."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Controls, soft hyphens and zero widths, marks that turn the direction of text, lone surrogates.
_UNSEEN = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\ufff9-\ufffb]"
)


def visible(text: str, most: int = 4_000) -> str:
    """The text with what cannot be seen as code points, and the middle of a very long one as a count."""
    if len(text) > most:
        end = min(200, most // 4)
        left_out = len(text) - most
        text = f"{text[: most - end]} … {left_out:,} characters … {text[len(text) - end :]}"
    return _UNSEEN.sub(lambda found: f"⟨U+{ord(found.group()):04X}⟩", text)


# Options and variables whose values are nobody's business, and values that say themselves what they are.
_SECRET_NAME = re.compile(
    r"(?i)(?:^|[-_.])"
    r"(?:apikey|key|token|secret|password|passwd|passphrase|pwd|pat|auth|bearer|credentials?)$"
)
_SECRET_VALUE = re.compile(
    r"^(?:sk-|hf_|gh[opsu]_|github_pat_|glpat-|xox[abp]-|AKIA|ASIA|AIza|eyJ)[\w.-]{12,}$|://[^/\s:@]+:[^/\s@]+@"
)
_HIDDEN = "…"


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """The arguments of a command, what looks like a password or a key left out.

    By the name of the option (`--api-key VALUE`, `TOKEN=VALUE`) or by the value's own form; a secret under
    another name stays.
    """
    shown: list[str] = []
    is_secret = False
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if is_secret and not argument.startswith("-"):
            shown.append(_HIDDEN)
        elif equals and (_SECRET_NAME.search(name) or _SECRET_VALUE.search(value)):
            shown.append(f"{name}={_HIDDEN}")
        else:
            shown.append(_HIDDEN if _SECRET_VALUE.search(argument) else argument)
        is_secret = not equals and argument.startswith("-") and _SECRET_NAME.search(argument) is not None
    return shown


BETWEEN_SHOWN = r"[<>\s]*…[<>\s]*| [(]\d+[)]$"  # what stands between the pieces of a shortened name


def is_shown_as(name: str, shown: str) -> bool:
    """Whether reports may shorten a name to a text: all that stands around its ellipses is in the name."""
    pieces = re.split(BETWEEN_SHOWN, shown)
    return len(pieces) > 1 and all(piece in name for piece in pieces)


def first_lines(lines: Sequence[str], most: int = 30) -> str:
    """What a compiler said, shortened: the first lines, and how many follow."""
    left_out = len(lines) - most
    return "\n".join([*lines[:most], f"… and {left_out} more lines"] if left_out > 0 else lines)
