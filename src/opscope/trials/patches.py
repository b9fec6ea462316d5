"""What to write into the user's source: edits found by its syntax tree, as a unified diff.

A change that no line of the source stands for has no diff; its snippet tells what to write. Positions of
syntax trees count bytes of UTF-8, so edits are made on bytes.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple


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
        places = [node for node in tree.body if _imports_torch(node)]
        if not any(isinstance(node, ast.Import) for node in places):
            return []  # the name `torch` is not known to be bound
        line = max(node.end_lineno or node.lineno for node in places)
        return [Edit(line + 1, 0, line + 1, 0, text.rstrip("\n") + "\n")]

    return edits


def _imports_torch(node: ast.stmt) -> bool:
    if isinstance(node, ast.Import):
        return any(one.name == "torch" and one.asname is None for one in node.names)
    return isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch"


def with_keywords(callees: Sequence[str], *dropped: str, **values: str) -> EditsOf:
    """Calls of these functions with keywords set to values.

    Args:
        callees: Their names, without what stands before the last dot.
        dropped: Keywords that exclude the new ones: set to None.
        values: Expressions by keyword.
    """

    def edits(tree: ast.Module) -> list[Edit]:
        calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and _name(node) in callees)
        return [edit for call in calls for edit in _set(call, {**dict.fromkeys(dropped), **values})]

    return edits


def where_given(keyword: str, value: str) -> EditsOf:
    """Calls that give this keyword, with another value for it."""

    def edits(tree: ast.Module) -> list[Edit]:
        calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
        given = (call for call in calls if any(one.arg == keyword for one in call.keywords))
        return [edit for call in given for edit in _set(call, {keyword: value})]

    return edits


def _name(call: ast.Call) -> str | None:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else None


def _set(call: ast.Call, wanted: dict[str, str | None]) -> Iterator[Edit]:
    """Edits that give a call keywords; one of None is only set where it is given already."""
    given = {one.arg: one.value for one in call.keywords}
    added = []
    for name, value in wanted.items():
        if name in given:
            found = given[name]
            assert found.end_lineno is not None
            assert found.end_col_offset is not None
            if ast.unparse(found) != str(value):
                where = (found.lineno, found.col_offset, found.end_lineno, found.end_col_offset)
                yield Edit(*where, str(value))
        elif value is not None:
            added.append(f"{name}={value}")
    if added:
        assert call.end_lineno is not None
        assert call.end_col_offset is not None
        line, column = call.end_lineno, call.end_col_offset - 1
        yield Edit(line, column, line, column, ", ".join(added))


def edited(source: str, edits_of: Iterable[EditsOf]) -> str | None:
    """The source with all edits; None if it cannot be parsed or one of them finds no place."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    found: set[Edit] = set()
    for edits in edits_of:
        of_one = edits(tree)
        if not of_one:
            return None
        found.update(of_one)
    lines = source.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    content = b"".join(lines)
    for edit in sorted(found, reverse=True):
        begin, end = starts[edit.line - 1] + edit.column, starts[edit.end_line - 1] + edit.end_column
        text = edit.text
        if begin == end and not text.endswith("\n"):  # a keyword, not lines
            begin, text = _before_parenthesis(content[:begin], text)
            end = begin
        content = content[:begin] + text.encode() + content[end:]
    result = content.decode()
    try:
        ast.parse(result)
    except SyntaxError:
        return None
    return result


def _before_parenthesis(before: bytes, keyword: str) -> tuple[int, str]:
    """Where a keyword goes in a call, and how it is written: like the arguments before it.

    Args:
        before: The source up to the closing parenthesis.
        keyword: Such as `fused=True`.
    """
    arguments = before.rstrip()
    is_first, has_comma = arguments.endswith(b"("), arguments.endswith(b",")
    if b"\n" in before[len(arguments) :] and not is_first:  # the parenthesis stands on a line of its own
        line = arguments[arguments.rfind(b"\n") + 1 :]
        indent = line[: len(line) - len(line.lstrip())].decode()
        newline = "\r\n" if before[len(arguments) :].startswith(b"\r\n") else "\n"
        return len(arguments), f"{'' if has_comma else ','}{newline}{indent}{keyword},"
    if has_comma:
        return len(before), f" {keyword}" if len(before) == len(arguments) else keyword
    return len(before), keyword if is_first else f", {keyword}"


def unified_diff(before: str, after: str, name: str) -> str:
    """The difference as `patch` takes it."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{name}", f"b/{name}"
    )
    return "".join(lines).rstrip("\n")
