"""How much of the device time each statement about it covers, and how well: the published accuracy figures.

Every fraction is of device time in integer nanoseconds. `docs/accuracy.md` gives the method in words.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from opscope.model.session import Session

UNKNOWN = "unknown"  # stands beside the grades where nothing is claimed


class Accuracy(msgspec.Struct, frozen=True):
    """Fractions of device time, 0–1; None where there is no such time."""

    attributed_fraction: float | None  # time that belongs to an operator
    operator_entry_fraction: float | None  # time of operators that reach an entry of native_functions.yaml
    aten_operator_entry_fraction: float | None  # the same, of the time of `aten::` operators alone
    aten_operator_file_fraction: float | None  # time of `aten::` operators whose function or stub has a file
    aten_operator_line_fraction: float | None  # and a line in it
    aten_kernel_unit_fraction: float | None  # time of torch's own kernels whose translation unit is known
    aten_kernel_single_unit_fraction: float | None  # and is exactly one
    family_fraction: float | None  # time of device activities whose family is known
    # For each kind of fact its shares by grade, `unknown` included. They sum to 1; there are none where there
    # is no such time.
    by_grade: Mapping[str, Mapping[str, float]] = msgspec.field(default_factory=dict)
    # Self device time of `aten::` operators; the `aten_operator_…` are fractions of it
    aten_operator_ns: int = 0
    torch_kernel_ns: int = 0  # time of torch's own kernels, of which the `aten_kernel_…` are


# Torch's own kernels: written in PyTorch, or compiled into it from the templates of these libraries.
# Attention kernels name no library: their namespaces are those that PyTorch gives its copies.
_KERNELS_SQL = """
SELECT coalesce(p.library IN ('aten', 'cub', 'thrust'), false) OR contains(n.name, 'pytorch_flash::')
        OR contains(n.name, 'PyTorchMemEffAttention::') AS is_own,
    p.family, p.grades->>'family' AS family_grade, len(p.units) AS unit_count, p.unit_grade, p.line_grade,
    sum(a.duration_ns)::BIGINT AS ns
FROM device_activities a JOIN kernel_provenance p USING (name_id) JOIN kernel_names n USING (name_id)
GROUP BY ALL"""

_OPERATORS_SQL = """
SELECT f.name LIKE 'aten::%' AS is_aten,
    f.yaml_line IS NOT NULL OR (f.details->'candidates') IS NOT NULL AS has_entry,
    f.overload_grade, coalesce(f.stub_file_grade, f.file_grade) AS file_grade,
    coalesce(f.stub_line_grade, f.line_grade) AS line_grade, sum(c.self_device_ns)::BIGINT AS ns
FROM operator_functions c JOIN native_functions f USING (native_function_id)
WHERE c.self_device_ns > 0 GROUP BY ALL"""

Rows = list[dict[str, Any]]


def measure_accuracy(session: Session, *, device_time_ns: int, attributed_ns: int) -> Accuracy:
    kernels = session.records(_KERNELS_SQL)
    operators = session.records(_OPERATORS_SQL)

    def has_entry(row: Mapping[str, Any]) -> bool:
        return bool(row["has_entry"])

    own_kernels = [row for row in kernels if row["is_own"]]
    aten = [row for row in operators if row["is_aten"]]
    return Accuracy(
        attributed_fraction=_ratio(attributed_ns, device_time_ns),
        operator_entry_fraction=_ratio(_total(operators, has_entry), device_time_ns),
        aten_operator_entry_fraction=_share(aten, has_entry),
        aten_operator_file_fraction=_share(aten, lambda row: row["file_grade"] is not None),
        aten_operator_line_fraction=_share(aten, lambda row: row["line_grade"] is not None),
        aten_kernel_unit_fraction=_share(own_kernels, lambda row: (row["unit_count"] or 0) > 0),
        aten_kernel_single_unit_fraction=_share(own_kernels, lambda row: row["unit_count"] == 1),
        family_fraction=_share(kernels, lambda row: row["family"] is not None),
        by_grade={
            "kernel_unit": _by_grade(own_kernels, "unit_grade"),
            "kernel_line": _by_grade(own_kernels, "line_grade"),
            "kernel_family": _by_grade(kernels, "family_grade"),
            "operator_entry": _by_grade(operators, "overload_grade"),
            "operator_file": _by_grade(operators, "file_grade"),
            "operator_line": _by_grade(operators, "line_grade"),
        },
        aten_operator_ns=_total(aten, lambda _: True),
        torch_kernel_ns=_total(own_kernels, lambda _: True),
    )


def _by_grade(rows: Rows, column: str) -> dict[str, float]:
    by_grade: dict[str, int] = defaultdict(int)
    for row in rows:
        by_grade[row[column] or UNKNOWN] += row["ns"]
    whole_ns = sum(by_grade.values())
    return {grade: ns / whole_ns for grade, ns in sorted(by_grade.items())} if whole_ns else {}


def _share(rows: Rows, accept: Callable[[Mapping[str, Any]], bool]) -> float | None:
    return _ratio(_total(rows, accept), _total(rows, lambda _: True))


def _total(rows: Iterable[Mapping[str, Any]], accept: Callable[[Mapping[str, Any]], bool]) -> int:
    return sum(row["ns"] for row in rows if accept(row))


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
