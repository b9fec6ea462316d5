"""Where probes look: environment variables, file system, programs, Python and its packages.

Probes read nothing else, so a test can put another machine around them. What may crash or hang is asked by
`child` in a process of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opscope.hardware.toolkit import find_cuda_tool
from opscope.toolchain.doctor import child
from opscope.toolchain.programs import ProgramExit, find_program, run_program, signal_name

VERSION_TIMEOUT_S = 15.0


@dataclass(frozen=True)
class Surroundings:
    """One machine as one process sees it.

    Attributes:
        environment: Environment variables.
        python: The Python executable that programs use.
        folder: Where output goes.
        cache_folder: opscope's own cache folder; it may not exist.
        root: What stands for the root of the file system.
        package_path: Folders that packages are installed in; those of this process if None.
    """

    environment: Mapping[str, str]
    python: str
    folder: Path
    cache_folder: Path
    root: Path = Path("/")
    package_path: tuple[str, ...] | None = None

    def at(self, path: str) -> Path:
        """An absolute path below the root."""
        return self.root / path.lstrip("/")

    def text(self, path: str) -> str | None:
        """Content of a file; None if it cannot be read."""
        try:
            return self.at(path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def find(self, name: str) -> str | None:
        """Path of a program on PATH."""
        return find_program(name, self.environment.get("PATH", ""))

    def find_cuda_tool(self, name: str, *, in_packages: bool = True) -> str | None:
        """Path of a program of the CUDA toolkit, where opscope itself finds it; of Python packages or not."""
        packages = self.package_path if in_packages else ()
        return find_cuda_tool(name, environment=self.environment, root=self.root, packages=packages)

    def run(self, *command: str, timeout_s: float = VERSION_TIMEOUT_S) -> ProgramExit:
        """Run a command in this environment."""
        return run_program(command, timeout_s=timeout_s, environment=self.environment)


def last_lines(text: str, count: int = 3) -> str:
    """The last lines that say something, on one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines[-count:])


@dataclass(frozen=True)
class ChildAnswer:
    """What a program said, later lines over earlier ones.

    Attributes:
        stopped: How it ended before it was done; None if it finished.
        err: Its standard error.
    """

    facts: dict[str, Any]
    stopped: str | None
    err: str


def child_command(surroundings: Surroundings, task: str) -> tuple[str, ...]:
    """The command that does one task of `child` in a process of its own."""
    return surroundings.python, str(Path(child.__file__).resolve()), task


def run_child(surroundings: Surroundings, task: str, *, timeout_s: float) -> ChildAnswer:
    """Run a program to its end or its time limit."""
    return read_answer(surroundings.run(*child_command(surroundings, task), timeout_s=timeout_s))


def read_answer(end: ProgramExit) -> ChildAnswer:
    """What a program said, whatever else was printed around it."""
    facts: dict[str, Any] = {}
    for line in end.out.splitlines():
        _, mark, content = line.partition(child.MARK)
        if mark:
            facts.update(_parsed(content))
    return ChildAnswer(facts, _stopped(end), end.err)


def _parsed(content: str) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except ValueError:  # cut off in the middle
        return {}
    return value if isinstance(value, dict) else {}


def _stopped(end: ProgramExit) -> str | None:
    """Programs end with 0 or 1; anything else was not their own doing."""
    if end.exit_code is None:
        return end.failure
    if end.exit_code < 0:
        return f"died of {signal_name(-end.exit_code)}"
    return None if end.exit_code in (0, 1) else f"ended with exit code {end.exit_code}"
