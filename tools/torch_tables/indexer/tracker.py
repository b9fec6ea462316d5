"""Follows braces and scopes through the code of a file and gathers what is defined there.

Heads are looked at only outside functions; both branches of an undecided `#if` start from the same state;
macros are expanded where definitions stand. It never raises, whatever the text, and its time is bounded by
the text's length: heads, expansions and depth have limits that no real source reaches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from opscope.provenance.packaged import lazy_pattern
from opscope.provenance.sources.index import Definition, Registration
from torch_tables.indexer.heads import Head, read_head
from torch_tables.indexer.lexer import LexedSource
from torch_tables.indexer.macros import MacroTable, MacroUse, uses

_REGISTRATION = lazy_pattern(r"(?:ALSO_)?REGISTER_(?:(\w+?)_)?DISPATCH$")
_FUNCTION_NAME = lazy_pattern(r"[&(\s]*(?:[A-Za-z_]\w*::)*([A-Za-z_]\w*)\s*(?:<[^()]*>)?[)\s]*$")
_CPU_ARCHITECTURES = frozenset(
    ("CPU", "ALL_CPU", "NO_CPU", "ARCH", "AVX2", "AVX512", "NO_AVX512", "VSX", "ZVECTOR", "SVE", "SVE256")
)
_KEYS = {"PRIVATEUSE1": "PrivateUse1"}
_LONGEST_EXPANSIONS = 4_000_000  # characters, of all macro uses in one file


@dataclass(frozen=True)
class FileFacts:
    """What one file holds. `calls` names, for each definition by its index, the functions its body calls."""

    definitions: list[Definition]
    registrations: list[Registration]
    declared_stubs: set[str]
    calls: dict[int, frozenset[str]]


@dataclass
class Row:
    """A definition whose end is still to come."""

    head: Head
    scope: str
    line: int
    end_line: int
    calls: frozenset[str] = frozenset()


class Collector:
    """Gathers the rows of a file and of the macro uses in it."""

    def __init__(self, file: str, macros: MacroTable) -> None:
        self._file = file
        self._macros = macros
        self._rows: list[Row] = []
        self._registrations: dict[Registration, None] = {}
        self._declared_stubs: set[str] = set()
        self._expanded_length = 0

    def facts(self) -> FileFacts:
        """All that was gathered."""
        definitions = [
            Definition(
                row.head.kind,
                row.head.name,
                row.scope,
                self._file,
                row.line,
                max(row.line, row.end_line),
                row.head.template_parameters,
                row.head.parameters,
                is_specialization=row.head.is_specialization,
            )
            for row in self._rows
        ]
        calls = {index: row.calls for index, row in enumerate(self._rows) if row.calls}
        return FileFacts(definitions, list(self._registrations), self._declared_stubs, calls)

    def add(self, head: Head, scope: tuple[str, ...], line: int) -> Row:
        """Begin a definition within the scopes; the caller sets where it ends."""
        prefix, _, name = head.name.rpartition("::")
        parts = (head.scope,) if head.scope else (*scope, prefix)
        row = Row(replace(head, name=name), "::".join(part for part in parts if part), line, line)
        self._rows.append(row)
        return row

    def add_dispatch(self, use: MacroUse, scope: tuple[str, ...], line: int) -> None:
        """DEFINE_DISPATCH, DECLARE_DISPATCH or one of the REGISTER_DISPATCH family."""
        if not use.arguments:
            return
        if use.name == "DECLARE_DISPATCH":
            self._declared_stubs.add(use.arguments[-1])
        elif use.name == "DEFINE_DISPATCH":
            self._declared_stubs.add(use.arguments[0])
            self._rows.append(Row(Head("stub", use.arguments[0]), "::".join(scope), line, line))
        else:
            named = _FUNCTION_NAME.match(use.arguments[-1]) if len(use.arguments) > 1 else None
            function = named.group(1) if named and named.group(1) != "nullptr" else ""
            entry = Registration(
                use.arguments[0], _dispatch_key(use.name, self._file), function, self._file, line
            )
            self._registrations[entry] = None

    def defines(self, use: MacroUse) -> bool:
        """Whether a macro use may define something."""
        return self._macros.defines(use)

    def expand(self, use: MacroUse) -> str:
        """What a macro use stands for; "" once the file has used up what expansions may take."""
        if self._expanded_length > _LONGEST_EXPANSIONS:
            return ""
        expanded = self._macros.expand(use, self._file)
        self._expanded_length += len(expanded)
        return expanded


def is_dispatch_macro(name: str) -> bool:
    """Whether a macro declares, defines or registers for a dispatch stub."""
    return name in ("DEFINE_DISPATCH", "DECLARE_DISPATCH") or bool(_REGISTRATION.match(name))


def _dispatch_key(macro: str, file: str) -> str:
    """The key a macro registers for. REGISTER_DISPATCH has it from the compiler: nvcc's files mean CUDA."""
    match = _REGISTRATION.match(macro)
    device = match.group(1) if match else None
    if device in _CPU_ARCHITECTURES:
        return "CPU"
    if device:
        return _KEYS.get(device, device)
    if file.endswith((".cu", ".cuh")):
        return "CUDA"
    return "MPS" if file.endswith(".mm") else "CPU"


_STRUCTURE = lazy_pattern(r"[{};#]")
_CALLED = lazy_pattern(r"\b([A-Za-z_]\w*)\s*\(")
# An expansion that is whole: not a head whose body follows the use.
_COMPLETE = lazy_pattern(r"[{};]|_DISPATCH\b")
_LONGEST_HEAD = 8000
_MOST_INITIALIZERS = 32
_DEEPEST_SCOPE = 200


def read_definitions(file: str, source: LexedSource, macros: MacroTable) -> FileFacts:
    """The definitions of a file, in the order in which they begin."""
    collector = Collector(file, macros)
    tracker = _Tracker(collector, source.code, source.line_of)
    tracker.run([(directive.keyword, directive.is_dead) for directive in source.conditionals])
    return collector.facts()


@dataclass
class _Scope:
    """An open brace outside functions, or the outermost brace of a body. `rows` end where it closes."""

    kind: str
    name: str = ""
    rows: list[Row] = field(default_factory=list)
    start: int = 0


@dataclass(frozen=True)
class _State:
    """Where the tracker stands; a branch of a conditional starts from the state before it."""

    scopes: tuple[_Scope, ...]
    inner_depth: int
    head_start: int


@dataclass
class _Conditional:
    before: _State
    ends: list[_State]
    is_dead: bool


class _Tracker:
    """Follows one text, blanked code or a macro's expansion, in which no more is to be expanded."""

    def __init__(
        self,
        collector: Collector,
        code: str,
        line_of: Callable[[int], int],
        outer: tuple[str, ...] = (),
        *,
        is_expansion: bool = False,
    ) -> None:
        self._collector = collector
        self._code = code
        self._line_of = line_of
        self._outer = outer
        self._is_expansion = is_expansion
        self._scopes: list[_Scope] = []
        self._inner_depth = 0  # braces open inside a body, its own included
        self._head_start = 0
        self._initializers = 0
        self._conditionals: list[_Conditional] = []

    def run(self, directives: Sequence[tuple[str, bool]]) -> None:
        """Read the text; `directives` are keyword and deadness of the branch for each of its `#` marks."""
        pending = iter(directives)
        for match in _STRUCTURE.finditer(self._code):
            character, position = match.group(), match.start()
            if character == "#":
                self._turn(*next(pending, ("", False)), position)
            elif self._inner_depth:
                if character == "{":
                    self._inner_depth += 1
                elif character == "}":
                    self._inner_depth -= 1
                    if not self._inner_depth:
                        self._close(position)
            elif character == "{":
                self._open(position)
            else:
                self._expand_uses(position)
                if character == "}":
                    self._close(position)
                self._head_start = position + 1
        if not self._inner_depth:
            self._expand_uses(len(self._code))

    def _open(self, position: int) -> None:
        head, line = self._read_head(self._code[self._head_start : position])
        if head.kind in ("namespace", "linkage", "class") and len(self._scopes) < _DEEPEST_SCOPE:
            scope = _Scope(head.kind, head.name)
            if head.kind == "class":
                scope.rows.append(self._collector.add(head, self._names(), line))
            self._scopes.append(scope)
            self._head_start = position + 1
            return
        # The head goes on behind an initializer's brace; so many in one head are no source code.
        self._initializers = self._initializers + 1 if head.kind == "initializer" else 0
        is_initializer = 0 < self._initializers <= _MOST_INITIALIZERS
        scope = _Scope("initializer" if is_initializer else "body", start=position)
        if head.kind in ("function", "structured", "kernel"):
            scope.rows.append(self._collector.add(head, self._names(), line))
        self._scopes.append(scope)
        self._inner_depth = 1

    def _read_head(self, text: str) -> tuple[Head, int]:
        """What the head opens, the macro that makes it expanded, and the line of the name."""
        start = self._head_start
        for use in self._defining_uses(text):
            expanded = self._collector.expand(use)
            if _COMPLETE.search(expanded):
                self._add_expansion(expanded, start + use.start)
            elif expanded:
                head = read_head(f"{text[: use.start]} {expanded} {text[use.end :]}"[-_LONGEST_HEAD:])
                return head, self._line_of(start + use.start)
        cut = max(0, len(text) - _LONGEST_HEAD)
        head = read_head(text[cut:])
        return head, self._line_of(start + cut + head.offset)

    def _names(self) -> tuple[str, ...]:
        return (*self._outer, *(scope.name for scope in self._scopes if scope.name))

    def _close(self, position: int) -> None:
        if not self._scopes:
            return
        scope = self._scopes.pop()
        if scope.kind in ("body", "initializer") and scope.rows:
            calls = frozenset(_CALLED.findall(self._code, scope.start, position))
            for row in scope.rows:
                row.calls = calls
        for row in scope.rows:
            row.end_line = self._line_of(position)
        if scope.kind != "initializer":
            self._head_start = position + 1

    def _expand_uses(self, position: int) -> None:
        """Add what the macros used in the statement before `position` define."""
        text = self._code[self._head_start : position]
        if "(" not in text:
            return
        for use in self._defining_uses(text):
            self._add_expansion(self._collector.expand(use), self._head_start + use.start)

    def _defining_uses(self, text: str) -> list[MacroUse]:
        """Uses of defining macros in the statement so far; dispatch macros are taken at once."""
        found = []
        for use in uses(text):
            if is_dispatch_macro(use.name):
                self._collector.add_dispatch(use, self._names(), self._line_of(self._head_start + use.start))
            elif not self._is_expansion and self._collector.defines(use):
                found.append(use)
        return found

    def _add_expansion(self, expanded: str, offset: int) -> None:
        line = self._line_of(offset)
        _Tracker(self._collector, expanded, lambda _: line, self._names(), is_expansion=True).run([])

    def _turn(self, keyword: str, is_dead: bool, position: int) -> None:
        """A conditional directive: keep the state, go back to it, or go on from a branch's end."""
        state = _State(tuple(self._scopes), self._inner_depth, self._head_start)
        if keyword in ("if", "ifdef", "ifndef"):
            self._conditionals.append(_Conditional(state, [], is_dead))
            return
        if not self._conditionals:
            return
        conditional = self._conditionals[-1]
        if not conditional.is_dead:
            conditional.ends.append(state)
        conditional.is_dead = is_dead
        if keyword == "endif":
            self._conditionals.pop()
            if not conditional.ends:
                return
            # Go on from the first branch; functions left open by the others end where its own do.
            first = conditional.ends[0]
            for other in conditional.ends[1:]:
                for mine, twin in zip(first.scopes, other.scopes, strict=False):
                    if mine is not twin and mine.rows and twin.rows:
                        mine.rows.extend(twin.rows)
            self._restore(first)
            self._head_start = max(end.head_start for end in conditional.ends)
            return
        before = conditional.before
        self._restore(before)
        # A branch that opened and closed nothing is part of the head, which goes on from before it.
        if (state.head_start, len(state.scopes), state.inner_depth) != (
            before.head_start, len(before.scopes), before.inner_depth,
        ):  # fmt: skip
            self._head_start = position

    def _restore(self, state: _State) -> None:
        self._scopes = list(state.scopes)
        self._inner_depth = state.inner_depth
        self._head_start = state.head_start
