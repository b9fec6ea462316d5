"""What an index says of a place in the source: names, files and lines, no source text."""

from __future__ import annotations

import msgspec

__all__ = ["Definition", "Registration"]


class Definition(msgspec.Struct, frozen=True):
    """Where something is defined.

    Attributes:
        kind: function, structured (TORCH_IMPL_FUNC), kernel (`__global__`), class, stub (a dispatch stub), or
            jiterator (a kernel compiled at run time from a string).
        name: Without its scope and without template arguments.
        scope: Namespaces and classes around it, joined by `::`.
        file: Path in the PyTorch repository.
        line: Of the name; None if several definitions in the file fit and nothing tells which one it is.
        end_line: Of the closing brace; None where `line` is.
        template_parameters: Names of its own template parameters; a pack ends in `...`, unnamed ones are "".
        parameters: Coarse types of its parameters, joined by ", ".
        stubs: Dispatch stubs it calls.
        is_specialization: For particular template arguments only.
        launchers: Of C++ code, the functions it calls that a `.cu` file defines and no other file does.
    """

    kind: str
    name: str
    scope: str
    file: str
    line: int | None
    end_line: int | None
    template_parameters: tuple[str, ...] = ()
    parameters: str = ""
    stubs: tuple[str, ...] = ()
    is_specialization: bool = False
    launchers: tuple[str, ...] = ()


class Registration(msgspec.Struct, frozen=True, array_like=True):
    """`function` implements the dispatch stub `stub` for a dispatch key; "" if it is not a plain name."""

    stub: str
    key: str
    function: str
    file: str
    line: int
