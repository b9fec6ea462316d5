"""Stacks as files that flame graph viewers read: speedscope's JSON, and collapsed stacks.

Weights are whole numbers and none is lost: those of a file sum to what the profiles hold.
Source: https://www.speedscope.app/file-format-schema.json (`sampled` profiles); collapsed stacks as in
Brendan Gregg's FlameGraph, `stackcollapse.pl`: one line `outer;…;inner WEIGHT` per stack.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from opscope._version import __version__
from opscope.analysis.program.stacks import StackProfile
from opscope.model.location import parse_frame
from opscope.visible_text import visible

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_UNNAMED = "[unnamed]"


def speedscope_document(profiles: Sequence[StackProfile], *, name: str) -> dict[str, Any]:
    """A speedscope file: one sampled profile per trace, all of them of the same frames."""

    def described(name: str) -> dict[str, Any]:
        parsed = parse_frame(name)
        return (
            {"name": name or _UNNAMED}
            if parsed is None
            else {"name": name, "file": parsed.file, "line": parsed.line}
        )

    used = sorted({frame for profile in profiles for stack in profile.stacks for frame in stack})
    position = {frame: index for index, frame in enumerate(used)}
    names = profiles[0].names if profiles else ()
    return {
        "$schema": _SCHEMA,
        "exporter": f"opscope@{__version__}",
        "name": name,
        "activeProfileIndex": 0,
        "shared": {"frames": [described(names[frame]) for frame in used]},
        "profiles": [
            {
                "type": "sampled",
                "name": profile.name,
                "unit": profile.unit,
                "startValue": 0,
                "endValue": profile.total,
                "samples": [[position[frame] for frame in stack] for stack in profile.stacks],
                "weights": list(profile.weights),
            }
            for profile in profiles
        ],
    }


def collapsed_text(profiles: Sequence[StackProfile]) -> str:
    """One line per stack, in order; where there are several profiles, each under its name."""
    weights: dict[str, int] = {}
    for profile in profiles:
        root = [_word(profile.name)] if len(profiles) > 1 else []
        words = [_word(name) for name in profile.names]
        for stack, weight in zip(profile.stacks, profile.weights, strict=True):
            line = ";".join((*root, *(words[frame] for frame in stack)))
            weights[line] = weights.get(line, 0) + weight
    return "".join(f"{line} {weight}\n" for line, weight in weights.items())


def _word(name: str) -> str:
    """A name without what separates frames and lines; the format has no escapes."""
    return visible(re.sub(r"\s+", " ", name.replace(";", ":")).strip(), most=len(name)) or _UNNAMED
