"""Signals that end a process, as errors: what is open is closed, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from types import FrameType
from typing import Any
from weakref import WeakSet

_NAMES = ("SIGTERM", "SIGHUP")
_handlers: set[Any] = set()
_came: list[int] = []  # signals that end the block now running, whoever was told

# What computes in one call of C for any time, in which Python handles no signal; each has `interrupt()`.
interrupts: WeakSet[Any] = WeakSet()


class Terminated(KeyboardInterrupt):  # it ends a program as Ctrl-C does, and is no error
    """Another program, or the end of the terminal, ends this one."""


def raise_if_interrupted(error: Exception) -> None:
    """Raise what a signal raised in code that the engine called: the engine has an error of its own for it.

    Raises:
        KeyboardInterrupt: The error is that of a signal.
    """
    text = str(error)
    if is_of_signal(error) or KeyboardInterrupt.__name__ in text or Terminated.__name__ in text:
        raise KeyboardInterrupt from error


def is_of_signal(error: BaseException | None) -> bool:
    """Whether an error is a signal's, or follows one that ends the block now running."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return bool(_came) or error is not None


def interrupted_by() -> int:
    """Number of the signal that raised in the block now running; SIGINT if none did."""
    return _came[-1] if _came else int(signal.SIGINT)


@cache
def _leave_signals_to_children() -> None:
    """Once for this process: what is registered stays."""

    def apart() -> None:
        with suppress(ValueError):  # forked off by another thread than the main one
            signal.set_wakeup_fd(-1)

    os.register_at_fork(after_in_child=apart)


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Inside the block a signal that Python handles ends what the engine computes, so that it is handled.

    A single operator of a query may compute for hours without a look at signals. Signals of processes forked
    off are theirs alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    ended = threading.Event()
    ending = {getattr(signal, name, None) for name in ("SIGINT", *_NAMES)}

    def look() -> None:
        while (number := os.read(reader, 1)[0]) and not ended.is_set():
            if number in ending:
                _came.append(number)
            for one in tuple(interrupts):
                one.interrupt()

    # What a signal raises on the way into a callback of the engine reaches nobody, and Python would print it;
    # the query is interrupted all the same.
    hooks = sys.excepthook, sys.unraisablehook
    sys.excepthook = lambda kind, error, trace: None if is_of_signal(error) else hooks[0](kind, error, trace)
    sys.unraisablehook = lambda args: None if is_of_signal(args.exc_value) else hooks[1](args)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    _leave_signals_to_children()
    thread = threading.Thread(target=look, name="opscope-signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        sys.excepthook, sys.unraisablehook = hooks
        ended.set()
        os.write(writer, b"\0")
        thread.join()
        _came.clear()
        os.close(writer)
        os.close(reader)


@contextmanager
def ending_signals_raise(raised: Callable[[int], BaseException] = Terminated) -> Iterator[None]:
    """Inside the block SIGTERM and SIGHUP raise in the main thread; the innermost block holds.

    Signals that are ignored (`nohup`) or that have a handler of somebody else's stay as they are. Processes
    forked off keep the default: they must not close what is their parent's.

    Args:
        raised: Makes the error of the signal's number.
    """
    owner = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() == owner:
            _came.append(number)
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
        _came.clear()
        _handlers.discard(end)
        for number, handler in taken.items():
            if signal.getsignal(number) is end:
                signal.signal(number, handler)
