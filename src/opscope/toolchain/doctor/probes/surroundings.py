"""Where probes look: environment variables, file system, Python and its packages.

Probes read nothing else, so a test can put another machine around them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from opscope.toolchain.programs import ProgramEnd, find_program, run_program

__all__ = ["VERSION_TIMEOUT_S", "Surroundings", "last_lines"]

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

    def find(self, name: str, places: tuple[str, ...] = ()) -> str | None:
        """Path of a program on PATH, else at one of the absolute patterns."""
        search_path = self.environment.get("PATH", "")
        return find_program(name, search_path, tuple(str(self.at(place)) for place in places))

    def find_in(self, folder: str, name: str) -> str | None:
        """Path of a program in one folder."""
        return find_program(name, folder)

    def run(self, *command: str, timeout_s: float = VERSION_TIMEOUT_S) -> ProgramEnd:
        """Run a command in this environment."""
        return run_program(command, timeout_s=timeout_s, environment=self.environment)


def last_lines(text: str, count: int = 3) -> str:
    """The last lines that say something, on one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines[-count:])
