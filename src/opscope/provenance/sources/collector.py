"""Gathers what one file defines: heads become definitions, dispatch macros become stubs and registrations."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from opscope.provenance.sources.definitions import Definition, Registration
from opscope.provenance.sources.heads import Head
from opscope.provenance.sources.macros import MacroTable, Use

__all__ = ["Collector", "FileFacts", "Row", "is_dispatch_macro"]

_REGISTRATION = re.compile(r"(?:ALSO_)?REGISTER_(?:(\w+?)_)?DISPATCH$")
_FUNCTION_NAME = re.compile(r"[&(\s]*(?:[A-Za-z_]\w*::)*([A-Za-z_]\w*)\s*(?:<[^()]*>)?[)\s]*$")
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

    def add_dispatch(self, use: Use, scope: tuple[str, ...], line: int) -> None:
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

    def defines(self, use: Use) -> bool:
        """Whether a macro use may define something."""
        return self._macros.defines(use)

    def expand(self, use: Use) -> str:
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
