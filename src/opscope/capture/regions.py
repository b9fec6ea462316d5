"""Regions of a running program in which only some activities are recorded.

A stack of what is wanted, kept whether or not a window is open: a region that is open when a window opens
holds in it from its first moment. Imports nothing of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from opscope.errors import CaptureError, InputError

__all__ = ["KNOWN_ACTIVITIES", "Regions", "check_activities"]

KNOWN_ACTIVITIES = ("cpu", "cuda")


class Regions:
    """The open regions, innermost last.

    Args:
        apply: Called with what is wanted after every change; None is everything.
    """

    def __init__(self, apply: Callable[[frozenset[str] | None], None]) -> None:
        self._apply = apply
        self._open: list[frozenset[str]] = []

    @property
    def wanted(self) -> frozenset[str] | None:
        """What the innermost region wants recorded, or None outside all regions."""
        return self._open[-1] if self._open else None

    @contextmanager
    def only(self, wanted: frozenset[str]) -> Iterator[None]:
        """Inside the block record these activities and no other; after it, what was recorded before.

        Raises:
            CaptureError: The recording cannot be switched.
        """
        before = self.wanted
        self._apply(wanted)
        self._open.append(wanted)
        try:
            yield
        except BaseException:
            self._open.pop()
            self._restore_after_error(before)
            raise
        self._open.pop()
        self._apply(before)

    def _restore_after_error(self, before: frozenset[str] | None) -> None:
        try:
            self._apply(before)
        except (CaptureError, RuntimeError):
            return  # The device is as broken as the block's own error says, which must not be hidden.


def check_activities(names: tuple[str, ...]) -> frozenset[str]:
    """Names of activities as a set.

    Raises:
        InputError: None is named, or one is unknown.
    """
    unknown = [name for name in names if name not in KNOWN_ACTIVITIES]
    if unknown:
        raise InputError(f"'{unknown[0]}' is not an activity", hint="Use 'cpu' and 'cuda'")
    if not names:
        raise InputError("only() names no activity", hint="Name 'cpu' or 'cuda', or use off()")
    return frozenset(names)
