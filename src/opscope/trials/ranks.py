"""Programs of several processes, started by torchrun: each rank is a run like that of any other program.

What torchrun would start becomes the request of the ranks, and torchrun is given this package's process to
start instead, so every rank is changed alike. The first rank writes what it found; no sooner has it than
torchrun is ended, and with it the other ranks, which would wait for the first one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from opscope.errors import InputError

LAUNCHERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
_POLL_S, _END_S = 0.02, 10.0
_MODULE_OPTIONS = ("-m", "--module")


class RanksCommand(NamedTuple):
    """What torchrun is asked to start."""

    options: tuple[str, ...]  # Its own, without the one that says that the target is a module
    target: str  # A script, or a module
    arguments: tuple[str, ...]  # Of the target
    is_module: bool  # Which of the two it is


def is_rank() -> bool:
    """Whether this process is one of several that torchrun started."""
    return int(os.environ.get("WORLD_SIZE", "1") or "1") > 1


def is_first_rank() -> bool:
    """Whether this process speaks for the program."""
    return os.environ.get("RANK", "0") == "0"


def launch_of(arguments: Sequence[str]) -> RanksCommand:
    """What a command line of torchrun, without its name, asks for; imports torch."""
    from torch.distributed.run import get_args_parser  # noqa: PLC0415 - the process that starts ranks

    asked = get_args_parser().parse_args(list(arguments))
    if asked.no_python:
        raise InputError("torchrun --no-python starts no Python script", hint="Leave it out")
    own = arguments[: len(arguments) - 1 - len(asked.training_script_args)]
    options = tuple(one for one in own if one not in _MODULE_OPTIONS)
    return RanksCommand(options, asked.training_script, tuple(asked.training_script_args), asked.module)


def run_ranks(launch: RanksCommand, request: Path, done: Path) -> int:
    """Torchrun's exit code, or 0 once the first rank of a request has written what it found."""
    command = [sys.executable, "-m", "torch.distributed.run", *launch.options]
    process = subprocess.Popen([*command, "-m", "opscope.trials.child", str(request)])
    try:
        while process.poll() is None and not done.exists():
            time.sleep(_POLL_S)
    finally:
        for end in (process.terminate, process.kill):
            if process.poll() is None:
                end()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_END_S)
    return 0 if done.exists() else process.returncode
