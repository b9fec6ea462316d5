"""What could have been meant by a name nobody knows: the names at hand that are most like it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping

from opscope.analysis.provenance import Provenance
from opscope.analysis.summary import Summary
from opscope.analysis.totals import KernelTotal
from opscope.errors import InputError
from opscope.provenance.operators import OperatorTable
from opscope.provenance.sources import nearest_index

__all__ = ["known_files", "known_names", "unknown_name"]

_SIMILAR = 5
_ALIKE = 0.7  # share of characters in common, of names called similar


def known_names(table: OperatorTable, summary: Summary | None, categories: Iterable[str]) -> dict[str, str]:
    """Operators, kernels of a recording and categories, by the last part of their names."""
    names = {entry.name for entry in table.functions}
    if summary is not None:
        names |= {operator.name for operator in summary.operators}
        names |= {one.facts.function for one in summary.kernels if one.facts and one.facts.function}
    short = {name.rpartition("::")[2]: name for name in sorted(names)}
    return {**short, **{name: name for name in categories}}


def known_files(known: Provenance, summary: Summary | None) -> dict[str, str]:
    """Names of source files without folders: those of an index of the release, and those of a recording."""
    index = nearest_index(known.torch_version)
    files = set(index.source.files if index is not None else ())
    for function in (use for uses in known.functions.values() for use in uses):
        files |= {place.file for place in (function.location, function.stub_location) if place is not None}
    if summary is not None:
        files.update(_files_of(summary.kernels))
    names = sorted({file.rpartition("/")[2] for file in files})
    return dict(zip(names, names, strict=True))


def unknown_name(wanted: str, known: Mapping[str, str]) -> InputError:
    """The error that nothing is known by a name; it names similar ones.

    Args:
        wanted: The name.
        known: Full names by what people type of them.
    """
    last = wanted.rpartition("::")[2].rpartition("/")[2]
    close = difflib.get_close_matches(last, known, n=_SIMILAR, cutoff=_ALIKE)
    similar = ", ".join(known[name] for name in close)
    hint = (
        f"Similar: {similar}"
        if similar
        else "Give an operator (aten::gelu), a kernel name in quotes, a category (matrix) or a source file "
        "(SoftMax.cu)"
    )
    return InputError(f"nothing is known by the name {wanted!r}", hint=hint)


def _files_of(kernels: Iterable[KernelTotal]) -> Iterator[str]:
    for facts in (one.facts for one in kernels):
        if facts is not None:
            yield from facts.units
            yield from (place.file for place in (facts.location, facts.template) if place is not None)
