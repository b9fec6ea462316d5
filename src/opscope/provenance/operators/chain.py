"""The way from an operator to the function that serves it, as links a reader can follow."""

from __future__ import annotations

from dataclasses import dataclass

from opscope.provenance.operators.dispatch import Dispatch, dispatch, structured_delegate
from opscope.provenance.operators.native_function import NativeFunction
from opscope.provenance.operators.table import OperatorTable

__all__ = ["DERIVATIVES_FILE", "NATIVE_FUNCTIONS_FILE", "ChainLink", "dispatch_chain"]

# In PyTorch's repository.
NATIVE_FUNCTIONS_FILE = "aten/src/ATen/native/native_functions.yaml"
DERIVATIVES_FILE = "tools/autograd/derivatives.yaml"
_EXPLANATIONS = {
    "native": "",
    "ufunc": ", generated from a scalar function",
    "generated": ", generated in terms of another operator",
    "composite_explicit": ", for all backends",
    "composite_implicit": ", made of other operators",
}


@dataclass(frozen=True)
class ChainLink:
    """One station; `file` and `line` say where in PyTorch's repository it is written, None if unknown."""

    text: str
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        if self.file is None:
            return self.text
        place = self.file.rpartition("/")[2] + ("" if self.line is None else f":{self.line}")
        return f"{self.text} ({place})"


def dispatch_chain(
    table: OperatorTable, entry: NativeFunction, backend: str = "CUDA"
) -> tuple[ChainLink, ...]:
    """Entry, structured delegate where there is one, function; the last is absent if no function serves it.

    A generated entry names the one it is derived from, which is where its line points.
    """
    links = [ChainLink(entry.qualified_name, NATIVE_FUNCTIONS_FILE, entry.yaml_line)]
    delegate = structured_delegate(table, entry)
    served = dispatch(table, entry, backend)
    if delegate is not None and served is not None and served.entry is delegate:
        text = f"structured_delegate {entry.structured_delegate}"
        links.append(ChainLink(text, NATIVE_FUNCTIONS_FILE, delegate.yaml_line))
    if served is not None:
        links.append(_function(served))
    return tuple(links)


def _function(served: Dispatch) -> ChainLink:
    name = served.key if served.function is None else f"{served.key} {served.function}"
    return ChainLink(f"{name}{_EXPLANATIONS[served.kind]}", served.header)
