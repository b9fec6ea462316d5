"""Compile `ingest/scan.c` and `analysis/simulate.c` into the package: hatchling's build hook, and a command.

Without a C compiler the package is built all the same, and does the same in Python, more slowly. The
library uses nothing of Python, so that a wheel serves every version of it on one platform.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).resolve().parent.parent / "src" / "opscope" / "ingest"
LIBRARY = _FOLDER / "_scan.so"
SOURCES = ("scan.c", "../analysis/simulate.c")
FLAGS = ("-std=gnu11", "-O3", "-Wall", "-Wextra", "-shared", "-fPIC")


def compiler() -> list[str] | None:
    """The command of the C compiler: `CC`, or the system's; None if there is none."""
    named = [os.environ["CC"]] if os.environ.get("CC") else ["cc", "gcc", "clang"]
    for command in map(shlex.split, named):
        if shutil.which(command[0]):
            return command
    return None


def build() -> bool:
    """Compile the scanner; whether that was done."""
    command = compiler()
    LIBRARY.unlink(missing_ok=True)
    if command is None:
        return False
    partial = LIBRARY.with_suffix(".partial")
    # Neither times nor names of this machine go into the library: the same sources make the same bytes.
    strip = ["-s", "-Wl,--build-id=none"] if sys.platform == "linux" else []
    words = [*command, *FLAGS, *strip, *SOURCES, "-o", str(partial)]
    run = subprocess.run(words, cwd=_FOLDER, check=False)
    if run.returncode:
        print("the sources do not compile; traces will be read in Python, more slowly", file=sys.stderr)
        partial.unlink(missing_ok=True)
        return False
    partial.replace(LIBRARY)
    return True


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run as a command
    pass
else:

    class ScannerHook(BuildHookInterface):  # type: ignore[type-arg]
        """Puts the compiled scanner into a wheel, which is then of this platform, and of any Python."""

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """Compile it, where a compiler is."""
            if self.target_name == "wheel" and build():
                platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
                build_data["pure_python"] = False
                build_data["tag"] = f"py3-none-{platform}"
                if version != "editable":
                    build_data["force_include"][str(LIBRARY)] = "opscope/ingest/_scan.so"


if __name__ == "__main__":
    sys.exit(0 if build() else 1)
