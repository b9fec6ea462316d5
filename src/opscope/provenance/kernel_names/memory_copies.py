"""Names the driver's activity records give to copies and sets, `Memcpy DtoH (Device -> Pageable)`.

Source: libkineto src/CuptiActivity.cpp (`memcpyName`) and roctracer's names, which are alike or spell the
kind (`CopyDeviceToHost`, `FillBuffer`).
"""

from __future__ import annotations

import re

from opscope.provenance.kernel_names.decoded_kernel import Reading

__all__ = ["read_memory_copy"]

_COPY = re.compile(
    r"[Mm]emcpy(?: |\b)(?:(?P<from>[HDAP])to(?P<to>[HDAP]))?\s*(?:\((?P<source>\w+) -> (?P<target>\w+)\))?"
)
_AMD_COPY = re.compile(r"Copy(?P<source>Host|Device)To(?P<target>Host|Device)\w*|hipMemcpy\w*")
_SIDES = {"H": "host", "D": "device", "A": "device"}
_SET = re.compile(r"Memset\b|FillBuffer|hipMemset\w*")


def read_memory_copy(text: str) -> Reading | None:
    """What the name of a copy or set says; None if it is neither."""
    if _SET.match(text):
        return Reading({"library": "driver", "family": "memset"})
    amd = _AMD_COPY.fullmatch(text)
    if amd is not None:
        sides = [side.lower() for side in (amd.group("source"), amd.group("target")) if side]
        direction = "_to_".join(sides) if len(sides) == 2 else None
        return Reading({"library": "driver", "family": "memcpy", "copy_direction": direction})
    match = _COPY.match(text)
    if match is None:
        return None
    kinds = (match.group("from"), match.group("to"))
    direction = "peer_to_peer" if kinds == ("P", "P") else None
    if kinds[0] in _SIDES and kinds[1] in _SIDES:
        direction = f"{_SIDES[kinds[0]]}_to_{_SIDES[kinds[1]]}"
    memories = {match.group("source"), match.group("target")} & {"Pageable", "Pinned"}
    memory = memories.pop().lower() if len(memories) == 1 else None
    return Reading(
        {"library": "driver", "family": "memcpy", "copy_direction": direction, "host_memory": memory}
    )
