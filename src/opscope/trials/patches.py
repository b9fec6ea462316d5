"""What to write into the user's source: edits found by its syntax tree, as a unified diff.

A change that no line of the source stands for has no diff; its snippet tells what to write. Positions of
syntax trees count bytes of UTF-8, so edits are made on bytes.
"""

from __future__ import annotations

import ast
import difflib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple


class Edit(NamedTuple):
    """Bytes of the source, from a line and column to others, to be replaced; lines count from 1."""

    line: int
    column: int
    end_line: int
    end_column: int
    text: str


EditsOf = Callable[[ast.Module], list[Edit]]


def after_imports(text: str) -> EditsOf:
    """Lines after the last import of torch at the top of the file."""

    def edits(tree: ast.Module) -> list[Edit]:
        own = [
            node
            for node in tree.body
            if isinstance(node, ast.Import)
            and any((one.name, one.asname) == ("torch", None) for one in node.names)
        ]
        if not own:
            return []  # the name `torch` is not known to be bound
        of_torch = [
            node
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch"
        ]
        line = max(node.end_lineno or node.lineno for node in (*own, *of_torch))
        return [Edit(line + 1, 0, line + 1, 0, text.rstrip("\n") + "\n")]

    return edits


def with_keywords(callees: Sequence[str], *dropped: str, **values: str) -> EditsOf:
    """Calls of these functions, by their last names, with keywords set to expressions.

    `dropped` are keywords that exclude the new ones: they are set to None where they are given.
    """
    wanted = {**dict.fromkeys(dropped), **values}
    return partial(_in_calls, lambda call: ast.unparse(call.func).rpartition(".")[2] in callees, wanted)


def where_given(keyword: str, value: str) -> EditsOf:
    """Calls that give this keyword, with another value for it."""
    return partial(_in_calls, lambda call: any(one.arg == keyword for one in call.keywords), {keyword: value})


def _in_calls(
    is_meant: Callable[[ast.Call], bool], wanted: dict[str, str | None], tree: ast.Module
) -> list[Edit]:
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and is_meant(node))
    return [edit for call in calls for edit in _set(call, wanted)]


def _set(call: ast.Call, wanted: dict[str, str | None]) -> Iterator[Edit]:
    """Edits that give a call keywords; one of None is only set where it is given already."""
    given = {one.arg: one.value for one in call.keywords}
    added = []
    for name, value in wanted.items():
        if name in given:
            found: Any = given[name]
            if ast.unparse(found) != str(value):
                where = (found.lineno, found.col_offset, found.end_lineno, found.end_col_offset)
                yield Edit(*where, str(value))
        elif value is not None:
            added.append(f"{name}={value}")
    given_in_order: list[Any] = sorted(
        [*call.args, *call.keywords], key=lambda one: (one.lineno, one.col_offset)
    )
    if added and given_in_order:  # as the last is written: in the line, or in one of its own
        before, last = [call.func, *given_in_order][-2:]
        between = f",\n{' ' * last.col_offset}" if last.lineno > before.end_lineno else ", "
        yield Edit(*(last.end_lineno, last.end_col_offset) * 2, "".join(between + one for one in added))
    elif added:
        end: Any = call
        yield Edit(*(end.end_lineno, end.end_col_offset - 1) * 2, ", ".join(added))


def edited(source: str, edits_of: Iterable[EditsOf]) -> str | None:
    """The source with all edits; None if it cannot be parsed or one of them finds no place."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    found = [edits(tree) for edits in edits_of]
    if not all(found):
        return None
    content = source.encode()
    starts = [0, *itertools.accumulate(map(len, content.splitlines(keepends=True)))]
    for edit in sorted(set(itertools.chain(*found)), reverse=True):
        begin, end = starts[edit.line - 1] + edit.column, starts[edit.end_line - 1] + edit.end_column
        content = content[:begin] + edit.text.encode() + content[end:]
    result = content.decode()
    try:
        ast.parse(result)
    except SyntaxError:
        return None
    return result


def unified_diff(before: str, after: str, name: str) -> str:
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{name}", f"b/{name}"
    )
    return "".join(lines).rstrip("\n")
