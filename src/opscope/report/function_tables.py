"""Many native functions as a table: those of a category by operator, those of a file by line."""

from __future__ import annotations

from collections.abc import Sequence

from opscope.analysis.explanation import is_file
from opscope.analysis.provenance import NativeFunctionUse
from opscope.model.location import SourceLocation
from opscope.report.document import Code, Column, Inline, Link, Table, Text, numeric

__all__ = ["FOLDER_CAPTION", "below_folder", "file_functions", "operator_functions"]

_NATIVE = "aten/src/ATen/native/"
FOLDER_CAPTION: Text = (Code(_NATIVE), " is left out before the files.")
_SHOWN_NAMES = 3


def operator_functions(
    functions: Sequence[NativeFunctionUse], recorded: Sequence[str], most: int
) -> tuple[Table, int]:
    """One row per operator: those of a recording first, in its order; then by name, internal ones last.

    Args:
        functions: Overloads in any order.
        recorded: Names of a recording's operators.
        most: Rows to show.

    Returns:
        The table and the number of rows it would have in full.
    """
    by_operator: dict[str, list[NativeFunctionUse]] = {}
    for function in functions:
        by_operator.setdefault(function.name, []).append(function)
    rank = {name: index for index, name in enumerate(recorded)}
    names = sorted(by_operator, key=lambda name: (rank.get(name, len(rank)), "::_" in name, name))
    rows = tuple(_operator_row(name, by_operator[name]) for name in names[:most])
    columns = (
        Column("Operator"),
        numeric("Overloads"),
        Column("Function"),
        Column("Defined in"),
        Column("Known from"),
    )
    return Table(columns, rows, FOLDER_CAPTION), len(names)


def _operator_row(name: str, overloads: Sequence[NativeFunctionUse]) -> tuple[Text, ...]:
    # Variants that only write into a given tensor say the least.
    main = min(overloads, key=lambda one: (one.location is None, "out" in one.tags))
    return (
        Code(name),
        f"{len(overloads)}",
        Code(main.cuda_function) if main.cuda_function else "–",
        *_place(main.location),
    )


def file_functions(
    functions: Sequence[NativeFunctionUse], file: str, recorded: Sequence[str], most: int
) -> tuple[Table, int]:
    """One row per place in a file and the native functions it serves: a recording's first, then in order.

    Args:
        functions: Those that lie in the file or launch through it.
        file: The file's name or path.
        recorded: Names of a recording's operators.
        most: Rows to show.

    Returns:
        The table and the number of rows it would have in full.
    """
    served: dict[SourceLocation, list[NativeFunctionUse]] = {}
    for function in functions:
        for place in dict.fromkeys((function.location, function.stub_location)):
            if place is not None and is_file(place.file, file):
                served.setdefault(place, []).append(function)
    known = set(recorded)
    places = sorted(
        served,
        key=lambda place: (
            known.isdisjoint(one.name for one in served[place]),
            place.file,
            place.line or 0,
        ),
    )
    rows = tuple((*_place(place), _names(served[place])) for place in places[:most])
    columns = (Column("Place"), Column("Known from"), Column("Serves"))
    return Table(columns, rows, FOLDER_CAPTION), len(places)


def _names(functions: Sequence[NativeFunctionUse]) -> Text:
    names = [one.name + (f".{one.overload}" if one.overload else "") for one in functions]
    parts: list[Inline] = []
    for name in names[:_SHOWN_NAMES]:
        parts += [", " if parts else "", Code(name)]
    more = len(names) - _SHOWN_NAMES
    return (*parts, f" and {more} more" if more > 0 else "")


def below_folder(path: str) -> str:
    """The path as tables under `FOLDER_CAPTION` show it."""
    return path.removeprefix(_NATIVE)


def _place(location: SourceLocation | None) -> tuple[Text, Text]:
    if location is None:
        return "–", "–"
    name = below_folder(str(location))
    return Code(name) if location.url is None else Link(name, location.url), str(location.grade)
