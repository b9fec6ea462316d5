"""What a runtime call does to the host, by its name and by the copy it made.

Blocking is what NVIDIA documents, not what a long duration suggests: a launch is long too where the launch
queue is full, and then the device is busy.

Source: CUDA runtime API, "API synchronization behavior" (13.0): synchronous copies from and to the host wait;
an `Async` copy of pageable memory may wait for its stream and stages the bytes by the host itself; a copy
within the device does not wait. CUDA C++ programming guide, "Implicit synchronization": freeing waits.
"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache

__all__ = ["CallRole", "is_graph_launch", "role_of"]


class CallRole(IntEnum):
    """What a call does to the host thread that makes it."""

    OTHER = 0
    WAITS = 1
    ALLOCATES = 2
    FREES = 3
    COPIES = 4
    COPIES_ASYNC = 5


# Names of HIP are CUDA's with another prefix; `_ptds`, `_ptsz` and `_v2` are endings of the same functions.
_ROLES = (
    (CallRole.WAITS, r"(?:cuda|hip|cu)(?:Stream|Device|Event|Thread|Ctx)Synchronize"),
    (CallRole.COPIES_ASYNC, r"(?:cuda|hip|cu)Memcpy\w*(?:Async|Peer)"),
    (CallRole.COPIES, r"(?:cuda|hip|cu)Memcpy"),
    (CallRole.OTHER, r"(?:cuda|hip)(?:Malloc|Free)(?:From)?\w*Async|cuMem(?:Alloc|Free)\w*Async"),
    (CallRole.FREES, r"(?:cuda|hip)(?:Free|HostFree)|cuMemFree"),
    (
        CallRole.ALLOCATES,
        r"(?:cuda|hip)(?:Malloc|ExtMalloc|Host(?:Alloc|Malloc|Register|Unregister))"
        r"|cuMem(?:Alloc|Host(?:Alloc|Register|Unregister)|Create|Map|Unmap|SetAccess|Address|Release)",
    ),
)
_PATTERNS = tuple((role, re.compile(pattern)) for role, pattern in _ROLES)


@lru_cache(maxsize=4096)
def role_of(name: str) -> CallRole:
    """The role of a call of this name, before it is known what it copied."""
    return next((role for role, pattern in _PATTERNS if pattern.match(name)), CallRole.OTHER)


def is_graph_launch(name: str) -> bool:
    """Whether a call of this name replays a CUDA graph."""
    return "GraphLaunch" in name
