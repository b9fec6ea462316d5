"""Looks at the memory of a process that has no steps at whose ends one could look.

A profiler can be detached only by the thread that attached it. So a thread of its own looks, and what is to
be done then is handed to the interpreter, which does it in the main thread between two of its instructions.
Importing this module does not import torch.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable


class SizeWatch:
    """Calls `then`, which must not raise, in the main thread, once, when a condition has come true.

    The condition is asked every tenth of a second, in another thread.
    """

    def __init__(self, is_large: Callable[[], bool], then: Callable[[], object]) -> None:
        self._is_large, self._then = is_large, then
        self._ended = threading.Event()

        def called(_: object) -> int:
            if not self._ended.is_set():
                self._ended.set()
                self._then()
            return 0

        # Kept, for the interpreter holds no reference to it.
        self._called = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(called)
        self._thread = threading.Thread(target=self._look, name="opscope-size", daemon=True)

    def start(self) -> None:
        """Look from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Look no longer, and call nothing."""
        self._ended.set()

    def _look(self) -> None:
        while not self._ended.wait(0.1):
            # The interpreter's list of calls may be full; then again.
            if self._is_large():
                ctypes.pythonapi.Py_AddPendingCall(self._called, None)
