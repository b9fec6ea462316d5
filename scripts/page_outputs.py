"""Write the outputs in README.md, docs and docs/notebooks anew; `--check` only compares.

A block is a comment naming a command, then a fence with the command and what it printed:

    <!-- output: opscope --version -->
    ```console
    $ opscope --version
    ...
    ```

`output` blocks must be reproducible anywhere and are held by `--check`. `recorded` blocks (same form) come
from a machine with a GPU or show timings; they are run only with `--recorded` and never compared.
Commands run by a shell in the repository root, 100 columns wide, without color. Notebooks are executed.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = (
    ROOT / "README.md",
    *sorted(DOCS.glob("*.md")),
    *sorted(DOCS.glob("notebooks/*.ipynb")),
)
COLUMNS = 100
_BLOCK = re.compile(
    r"(?P<head><!-- (?P<kind>output|recorded): (?P<command>.+?) -->\n)```console\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


_OPSCOPE = f'opscope() {{ {shlex.quote(sys.executable)} -m opscope "$@"; }}'


class CommandError(Exception):
    """A command of a page that fails."""


def main() -> int:
    """Rewrite or compare; 1 if a block is stale or a command fails."""
    parser = argparse.ArgumentParser(description="Regenerate the output blocks of README.md and docs.")
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 if a block is stale")
    parser.add_argument("--recorded", action="store_true", help="run the `recorded` blocks too")
    parser.add_argument("pages", nargs="*", type=Path, help="only these pages")
    options = parser.parse_args()
    pages = [page.resolve() for page in options.pages] or PAGES
    kinds = {"output", "recorded"} if options.recorded and not options.check else {"output"}
    # What is timed must not run beside others.
    with ThreadPoolExecutor(1 if options.recorded else os.cpu_count()) as pool:
        problems = list(pool.map(lambda page: renew(page, kinds, is_check=options.check), pages))
    sys.stdout.write("".join(problems))
    return int(any(problems))


def renew(page: Path, kinds: set[str], *, is_check: bool) -> str:
    """Write one page anew, or compare it; what is wrong, or an empty text."""
    before, name = page.read_text(encoding="utf-8"), page.relative_to(ROOT).as_posix()
    try:
        if page.suffix == ".ipynb":
            after = executed(before)
        else:
            after = _BLOCK.sub(lambda match: block(match, kinds), before)
    except CommandError as error:
        return f"{name}: {error}\n"
    if after != before and is_check:
        return f"{''.join(difference(name, before, after))}\n{name}: stale output blocks; run `make docs`\n"
    if after != before:
        page.write_text(after, encoding="utf-8")
        print(f"Wrote {name}")
    return ""


def block(match: re.Match[str], kinds: set[str]) -> str:
    """One block with its present output; unchanged if it is not of a wanted kind."""
    if match["kind"] not in kinds:
        return match[0]
    command = match["command"]
    return f"{match['head']}```console\n$ {command}\n{output_of(command)}```"


def executed(notebook: str) -> str:
    """A notebook with what its cells print now.

    Raises:
        CommandError: A cell fails.
    """
    # Pages alone are written on machines that have no notebooks.
    import nbformat  # noqa: PLC0415
    from nbclient import NotebookClient  # noqa: PLC0415
    from nbclient.exceptions import CellExecutionError  # noqa: PLC0415

    book = nbformat.reads(notebook, as_version=4)
    client = NotebookClient(
        book, resources={"metadata": {"path": str(DOCS / "notebooks")}}, record_timing=False
    )
    try:
        client.execute()
    except CellExecutionError as error:
        raise CommandError(str(error)) from error
    for cell in book.cells:
        for data in (output.get("data", {}) for output in cell.get("outputs", ())):
            # A page is megabytes, and has its text as well; that of others may name an address in memory.
            if "text/html" in data:
                data.pop("text/html" if data["text/html"].startswith("<iframe") else "text/plain", None)
    return f"{nbformat.writes(book)}\n"


def output_of(command: str) -> str:
    """What a command prints to stdout; `opscope` is that of this tree, in this environment.

    Raises:
        CommandError: It exits with another code than 0.
    """
    environment = {
        **os.environ,
        "OPSCOPE_LANG": "en",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}".rstrip(os.pathsep),
        "COLUMNS": str(COLUMNS),
        "NO_COLOR": "1",
        "TERM": "dumb",
    }
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{_OPSCOPE}\n{command}"],
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


def difference(name: str, before: str, after: str) -> list[str]:
    """Unified diff of the two texts."""
    sides = (before.splitlines(keepends=True), after.splitlines(keepends=True))
    return list(difflib.unified_diff(*sides, name, f"{name} as the commands print it", n=1))


if __name__ == "__main__":
    sys.exit(main())
