"""Files that are whole whenever they are read, strangers' files read in processes of their own, and JSON.

Imports nothing that computes.
"""

from __future__ import annotations

import glob
import math
import os
import pickle
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from opscope.errors import InputError, OpscopeError

# What is raised of a stranger's JSON: malformed, of other types, not UTF-8, nested too deeply.
UNREADABLE_JSON: tuple[type[Exception], ...] = (msgspec.MsgspecError, ValueError, RecursionError)

_LEFT_BEHIND_S = 3600.0
_SAFE_BYTES, _MOST_RATIO = 100 << 20, 1000


def check_ratio(stream: BinaryIO, out: BinaryIO, name: str | os.PathLike[str]) -> None:
    """Give up on content that repeats itself as no recording does, before it fills the disk.

    That is where more than 1,000 bytes came out of each one read, and 100 MB in all.
    """
    size_bytes = out.tell()
    if size_bytes > _SAFE_BYTES and size_bytes > _MOST_RATIO * stream.tell():
        raise InputError(
            f"the compressed file holds more than {_MOST_RATIO:,} times its own size, "
            "which no recording does",
            source=name,
            hint="Decompress it yourself if it is one",
        )


@cache
def scratch_prefix() -> str:
    """How names of folders for temporary files begin: with this process.

    Asked first, it removes folders of killed processes: of this user, an hour old, their process gone. The
    processes of another container cannot be seen from here, so their folders have another name.
    """
    namespace = 0
    with suppress(OSError):
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    for folder in Path(tempfile.gettempdir()).glob(f"opscope-{namespace}-*"):
        if _is_left_behind(folder, folder.name.split("-")[2]):
            shutil.rmtree(folder, ignore_errors=True)
    return f"opscope-{namespace}-{os.getpid()}-"


def process_of(folder: str | os.PathLike[str]) -> int:
    """Number of the process that made a folder whose name begins with its `scratch_prefix`."""
    return int(Path(folder).name.split("-")[2])


def _is_left_behind(path: Path, pid: str) -> bool:
    """Whether the process that made a file or folder has ended, and some time ago."""
    try:
        status = path.lstat()
        if status.st_uid != os.getuid() or time.time() - status.st_mtime < _LEFT_BEHIND_S:
            return False
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError):
        return False
    return False


def _remove_left_behind(target: Path) -> None:
    """Remove what killed processes left of a file that they were writing, some time ago."""
    for left in target.parent.glob(f".{glob.escape(target.stem)}.*.partial{glob.escape(target.suffix)}*"):
        if _is_left_behind(left, left.name.removeprefix(f".{target.stem}.").partition(".")[0]):
            left.unlink(missing_ok=True)


@contextmanager
def claimed(target: str | os.PathLike[str]) -> Iterator[None]:
    """Inside the block no other process claims this file, which need not exist; its folder must.

    The claim is a lock on a hidden file beside it that names its holder, and ends with the process however
    that ends. Where the file system has no locks, nothing is claimed.
    """
    path = Path(target)
    lock = path.with_name(f".{path.name}.lock")
    with ExitStack() as stack:
        try:
            import fcntl  # noqa: PLC0415 - of POSIX alone

            while True:
                file = stack.enter_context(lock.open("a+"))
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The one who had it before may have removed the file meanwhile.
                if lock.exists() and os.path.samestat(os.fstat(file.fileno()), lock.stat()):
                    break
            stack.callback(lock.unlink, missing_ok=True)
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()}")
            file.flush()
        except BlockingIOError as error:
            holder = lock.read_text(encoding="utf-8", errors="replace") or "another process"
            raise InputError(
                f"{holder} is writing it", source=path, hint="Wait for it, or choose another folder"
            ) from error
        except (ImportError, OSError):
            pass
        yield


@contextmanager
def replacing(
    path: str | os.PathLike[str],
    what: str = "the file",
    *,
    failures: tuple[type[Exception], ...] = (OSError,),
    error: type[OpscopeError] = InputError,
) -> Iterator[Path]:
    """A file to write that becomes `path` in one step when the block ends, and is gone if it fails.

    Folders above it are made. What is no regular file (a pipe, /dev/stdout) is not replaced: the text is
    written into it. Of what writing raises, `error` is raised.
    """
    target = Path(path)
    is_special = target.exists() and not (target.is_file() or target.is_dir())
    # Programs that write it may go by the suffix.
    name = f".{target.stem}.{os.getpid()}.partial{target.suffix}"
    partial = Path(tempfile.gettempdir(), name) if is_special else target.with_name(name)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_left_behind(target)
        yield partial
        if is_special:
            with partial.open("rb") as written, target.open("wb") as out:
                shutil.copyfileobj(written, out)
        else:
            partial.replace(target)
    except failures as failure:
        reason = getattr(failure, "strerror", None) or str(failure).partition("\n")[0]
        raise error(f"{what} cannot be written ({reason})", source=target) from failure
    finally:
        with suppress(OSError):  # with what a database writes beside it
            for left in partial.parent.glob(f"{glob.escape(partial.name)}*"):
                left.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a text to a file, which is replaced in one step, and return its path."""
    with replacing(path) as partial:
        # Names in damaged traces may hold lone surrogates, which UTF-8 cannot carry.
        partial.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")
    return Path(path)


def finite(value: Any) -> Any:
    """The value in lists and dicts, with None for floats that are no numbers: JSON has none of those."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [finite(item) for item in value]
    return value


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
