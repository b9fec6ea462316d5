"""Signals that end a process, as errors: what is open is closed, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["Terminated", "ending_signals_raise", "interrupted_by"]

_NAMES = ("SIGTERM", "SIGHUP")
_handlers: set[Any] = set()
_last = int(signal.SIGINT)


class Terminated(KeyboardInterrupt):  # it ends a program as Ctrl-C does, and is no error
    """Another program, or the end of the terminal, ends this one."""


def interrupted_by() -> int:
    """Number of the signal that raised in the block now running; SIGINT if none did."""
    return _last


@contextmanager
def ending_signals_raise(raised: Callable[[int], BaseException] = Terminated) -> Iterator[None]:
    """Inside the block SIGTERM and SIGHUP raise in the main thread; the innermost block holds.

    Signals that are ignored (`nohup`) or that have a handler of somebody else's stay as they are. Processes
    forked off keep the default: they must not close what is their parent's.

    Args:
        raised: Makes the error of the signal's number.
    """
    global _last  # noqa: PLW0603 - the engine drops errors that are raised while it computes
    owner = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        global _last  # noqa: PLW0603
        if os.getpid() == owner:
            _last = number
            raise raised(number)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        numbers = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
        before = {number: signal.getsignal(number) for number in numbers}
    taken = {n: handler for n, handler in before.items() if handler is signal.SIG_DFL or handler in _handlers}
    _handlers.add(end)
    for number in taken:
        signal.signal(number, end)
    try:
        yield
    finally:
        _last = int(signal.SIGINT)
        _handlers.discard(end)
        for number, handler in taken.items():
            if signal.getsignal(number) is end:
                signal.signal(number, handler)
