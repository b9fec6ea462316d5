"""Where the options of `opscope run` end and the script's own arguments begin.

The script's arguments must reach it as they are, `--help` and `--debug` included, so they are set apart by
`--` before anything is parsed. Imports nothing of opscope.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["FLAGS", "separate_script"]

# Options of `run` that take no value; all others take one.
FLAGS = frozenset({
    "-h", "--help", "--version", "--debug", "-m", "--module", "--with-stack", "--with-modules",
    "--profile-memory", "--track-compile", "--force", "--quiet",
})  # fmt: skip


def separate_script(tokens: Sequence[str]) -> list[str]:
    """The tokens of a command line, with `--` before the script if the verb is `run`.

    The script is the first token that is neither an option nor an option's value.
    """
    if "run" not in tokens:
        return list(tokens)
    start = tokens.index("run") + 1
    if any(token not in FLAGS for token in tokens[: start - 1]):
        return list(tokens)
    index = start
    while index < len(tokens):
        token = tokens[index]
        if token == "--":
            break
        if not token.startswith("-"):
            return [*tokens[:index], "--", *tokens[index:]]
        index += 1 if token in FLAGS or "=" in token else 2
    return list(tokens)
