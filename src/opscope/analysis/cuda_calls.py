"""What a call of the CUDA runtime or driver does, by its name: the one table, for waits, memory and start-up.

HIP's names are CUDA's with another prefix; `_ptds`, `_ptsz` and `_v2` are endings of the same functions.
"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache

from opscope.model.session import Session


class CallRole(IntEnum):
    """What a call does, most of all to the host thread that makes it."""

    OTHER = 0
    WAITS = 1  # for the device
    ALLOCATES = 2
    FREES = 3
    COPIES = 4  # waits, unless within the device
    COPIES_ASYNC = 5  # waits, if the host's memory is pageable
    POOLS = 6  # memory taken or given back in stream order
    LOADS = 7  # code, into the device
    SETS_UP = 8  # contexts, handles and graphs are made; kernels are asked for, or what they need
    LAUNCHES = 9


_ANY = "(?:cuda|hip|cu)"
_ROLES = (
    (CallRole.WAITS, rf"{_ANY}(?:Stream|Device|Event|Thread|Ctx)Synchronize"),
    (CallRole.COPIES_ASYNC, rf"{_ANY}Memcpy\w*(?:Async|Peer)"),
    (CallRole.COPIES, rf"{_ANY}Memcpy"),
    (CallRole.POOLS, r"(?:cuda|hip)(?:Malloc|Free)(?:From)?\w*Async|cuMem(?:Alloc|Free)\w*Async"),
    (CallRole.FREES, r"(?:cuda|hip)(?:Free|HostFree)|cuMemFree"),
    (
        CallRole.ALLOCATES,
        r"(?:cuda|hip)(?:Malloc|ExtMalloc|Host(?:Alloc|Malloc|Register|Unregister))"
        r"|cuMem(?:Alloc|Host(?:Alloc|Register|Unregister)|Create|Map|Unmap|SetAccess|Address|Release)",
    ),
    (CallRole.LOADS, rf"{_ANY}(?:Module|Library)(?:Load|Unload)"),
    (
        CallRole.SETS_UP,
        rf"{_ANY}(?:Init|SetDevice|DevicePrimaryCtxRetain|CtxCreate|GetDeviceCount|GetDeviceProperties"
        r"|(?:Stream|Event)Create|Stream(?:Begin|End)Capture|GraphInstantiate|GraphUpload"
        r"|(?:Module|Library)Get|Func(?:Get|Set)|Occupancy)",
    ),
    (CallRole.LAUNCHES, rf"{_ANY}\w*Launch"),
)
_PATTERNS = tuple((role, re.compile(pattern)) for role, pattern in _ROLES)

OF_DRIVER_MEMORY = (CallRole.ALLOCATES, CallRole.FREES)
# What a program does once, and again only where something is not kept.
COME_ONCE = (*OF_DRIVER_MEMORY, CallRole.POOLS, CallRole.LOADS, CallRole.SETS_UP)
# What holds a thread up that is no part of launching.
HOLD_UP = (CallRole.WAITS, CallRole.COPIES, CallRole.COPIES_ASYNC, *OF_DRIVER_MEMORY, CallRole.LOADS)


@lru_cache(maxsize=4096)
def role_of(name: str) -> CallRole:
    """The role of a call of this name, before it is known what it copied."""
    return next((role for role, pattern in _PATTERNS if pattern.match(name)), CallRole.OTHER)


def is_graph_launch(name: str) -> bool:
    return "GraphLaunch" in name


def names_of(session: Session, *roles: CallRole) -> list[str]:
    names = session.query("SELECT DISTINCT name FROM runtime_calls WHERE name IS NOT NULL ORDER BY name")
    return [name for (name,) in names if role_of(name) in roles]
