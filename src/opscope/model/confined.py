"""Libraries that read a stranger's file do so in a process of their own, of bounded time and memory.

What goes wrong inside one, be it that it finds no end, takes all memory or crashes, ends that process alone
and is an error of the file.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from opscope.errors import InputError, OpscopeError

R = TypeVar("R")

_CPU_S = 10
_BYTES_PER_S = 20 << 20
_MEMORY_BYTES = 1 << 30
_MEMORY_PER_BYTE = 8
# A machine may be busy with other work.
_WALL_PER_CPU = 12
# Modules are found where this process finds them.
_CHILD = """
import pickle, sys
sys.path[:] = pickle.load(sys.stdin.buffer)
pickle.load(sys.stdin.buffer)()
"""


def confined(read: Callable[[Path], R], file: Path, *, reader: str) -> R:
    """What a module's function makes of a file, in a process of its own; errors call it `reader`.

    The process may compute for 10 s and one more for every 20 MB of the file, and take 1 GB and eight times
    its size. An InputError says that it took more, or crashed; else what the function raised is raised.
    """
    if not sys.executable:  # embedded in another program
        return read(file)
    size = file.stat().st_size
    cpu_s, memory_bytes = _CPU_S + size // _BYTES_PER_S, _MEMORY_BYTES + _MEMORY_PER_BYTE * size
    call = partial(_serve, read, file, cpu_s, memory_bytes)
    answer: tuple[bool, Any] = (False, f"found no end of it within {cpu_s} s")
    with suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            [sys.executable, "-I", "-c", _CHILD],
            input=pickle.dumps(sys.path) + pickle.dumps(call),
            capture_output=True,
            timeout=_WALL_PER_CPU * cpu_s,
            check=False,
        )
        if done.returncode == 0:
            answer = pickle.loads(done.stdout)
        elif done.returncode not in (-signal.SIGXCPU, -signal.SIGKILL):
            said = done.stderr.decode(errors="replace").strip().splitlines() or [
                f"exit code {done.returncode}"
            ]
            answer = (False, f"crashed on it ({said[-1]})")
    succeeded, found = answer
    if succeeded:
        result: R = found
        return result
    if isinstance(found, OpscopeError):
        raise found
    raise InputError(
        f"{reader} {found}", source=file, hint="It is damaged: copy it again, or have it written anew"
    )


def _serve(read: Callable[[Path], Any], file: Path, cpu_s: int, memory_bytes: int) -> None:
    """What the process does: bound itself, call the function, and answer. What else it prints is lost."""
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    with suppress(ImportError, OSError, ValueError):
        import resource  # noqa: PLC0415 - of POSIX alone

        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    found: tuple[bool, Any]
    try:
        found = True, read(file)
    except OpscopeError as error:
        found = False, error
    except MemoryError:
        found = False, f"took more than {memory_bytes >> 20:,} MB of memory for it"
    except Exception as error:  # noqa: BLE001 - whatever a library raises is told of the file
        found = False, f"failed on it ({type(error).__name__}: {error})"
    with answer:
        pickle.dump(found, answer)
