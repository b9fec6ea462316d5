"""Write the output blocks of README.md anew from the commands they show; `--check` only compares.

A block is a comment naming a command, then a fence with the command and what it printed:

    <!-- output: opscope --version -->
    ```console
    $ opscope --version
    ...
    ```

`output` blocks must be reproducible anywhere and are held by `--check`. `recorded` blocks (same form) come
from a machine with a GPU or show timings; they are run only with `--recorded` and never compared.
Commands run by a shell in the repository root, 100 columns wide, without color. Standard library only.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
COLUMNS = 100
_BLOCK = re.compile(
    r"(?P<head><!-- (?P<kind>output|recorded): (?P<command>.+?) -->\n)```console\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


class CommandError(Exception):
    """A command of the README that fails."""


def main() -> int:
    """Rewrite or compare; 1 if a block is stale or a command fails."""
    parser = argparse.ArgumentParser(description="Regenerate the output blocks of README.md.")
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 if a block is stale")
    parser.add_argument("--recorded", action="store_true", help="run the `recorded` blocks too")
    options = parser.parse_args()
    kinds = {"output", "recorded"} if options.recorded and not options.check else {"output"}
    before = README.read_text(encoding="utf-8")
    try:
        after = _BLOCK.sub(lambda match: block(match, kinds), before)
    except CommandError as error:
        print(f"README.md: {error}", file=sys.stderr)
        return 1
    if options.check and after != before:
        print("".join(difference(before, after)))
        print("README.md: stale output blocks; run `make docs`")
        return 1
    if after != before:
        README.write_text(after, encoding="utf-8")
        print("Wrote README.md")
    return 0


def block(match: re.Match[str], kinds: set[str]) -> str:
    """One block with its present output; unchanged if it is not of a wanted kind."""
    if match["kind"] not in kinds:
        return match[0]
    command = match["command"]
    return f"{match['head']}```console\n$ {command}\n{output_of(command)}```"


def output_of(command: str) -> str:
    """What a command prints to stdout, with the environment's programs first on PATH.

    Raises:
        CommandError: It exits with another code than 0.
    """
    environment = {
        **os.environ,
        "OPSCOPE_LANG": "en",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "COLUMNS": str(COLUMNS),
        "NO_COLOR": "1",
        "TERM": "dumb",
    }
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=ROOT,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    if result.returncode != 0:
        raise CommandError(f"`{command}` exits with {result.returncode}: {result.stderr.strip()}")
    lines = [line.rstrip() for line in result.stdout.strip("\n").split("\n")]
    return "\n".join(lines) + "\n"


def difference(before: str, after: str) -> list[str]:
    """Unified diff of the two texts."""
    sides = (before.splitlines(keepends=True), after.splitlines(keepends=True))
    return list(difflib.unified_diff(*sides, "README.md", "README.md as the commands print it", n=1))


if __name__ == "__main__":
    sys.exit(main())
