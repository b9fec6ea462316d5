"""Names of strangers: nothing in what is shown of them is invisible, reverses text or fills the file."""

from __future__ import annotations

import re

__all__ = ["visible"]

_LONGEST = 4_000
_END = 200
# Controls, soft hyphens and zero widths, marks that turn the direction of text, lone surrogates.
_UNSEEN = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\ufff9-\ufffb]"
)


def visible(text: str, most: int = _LONGEST) -> str:
    """The text with what cannot be seen as code points, and the middle of a very long one as a count."""
    if len(text) > most:
        end = min(_END, most // 4)
        left_out = len(text) - most
        text = f"{text[: most - end]} … {left_out:,} characters … {text[len(text) - end :]}"
    return _UNSEEN.sub(lambda found: f"⟨U+{ord(found.group()):04X}⟩", text)
