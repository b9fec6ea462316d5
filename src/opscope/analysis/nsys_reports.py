"""What each report shows: its columns in order, and its rows made of one query on the Session.

Values are rounded as nsys prints them: shares, means and deviations to a tenth, MB (1e6 bytes) to a
thousandth. The deviation is that of a sample, 0 for a single value. Rows come by total, the largest first.

Source: reports of Nsight Systems 2026.2 (`nsys stats --help-reports`) and their printed tables.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from opscope.errors import InputError
from opscope.model.queries import sql
from opscope.model.session import Session

_Row = dict[str, Any]


class Report(msgspec.Struct, frozen=True):
    """One report by nsys' name: `sources` are those of `nsys_statistics.sql` that it merges."""

    name: str
    title: str
    sources: tuple[str, ...]
    count_column: str
    name_column: str

    @property
    def is_size(self) -> bool:
        return self.sources == ("size",)

    @property
    def columns(self) -> tuple[str, ...]:
        unit = "MB" if self.is_size else "ns"
        head = (f"Total ({unit})",) if self.is_size else ("Time (%)", f"Total Time ({unit})")
        figures = tuple(f"{word} ({unit})" for word in ("Avg", "Med", "Min", "Max", "StdDev"))
        category = ("Category",) if len(self.sources) > 1 else ()
        return (*head, self.count_column, *figures, *category, self.name_column)


class ReportTable(msgspec.Struct, frozen=True):
    report: Report
    rows: tuple[_Row, ...]


_MEMORY, _BOTH = "CUDA GPU MemOps Summary", "CUDA GPU Summary (Kernels/MemOps)"
REPORTS = {
    report.name: report
    for report in (
        Report("cuda_api_sum", "CUDA API Summary", ("api",), "Num Calls", "Name"),
        Report("cuda_gpu_kern_sum", "CUDA GPU Kernel Summary", ("kernel",), "Instances", "Name"),
        Report("cuda_gpu_mem_time_sum", f"{_MEMORY} (by Time)", ("memory",), "Count", "Operation"),
        Report("cuda_gpu_mem_size_sum", f"{_MEMORY} (by Size)", ("size",), "Count", "Operation"),
        Report("cuda_gpu_sum", _BOTH, ("kernel", "memory"), "Instances", "Operation"),
    )
}
_CATEGORIES = {"kernel": "CUDA_KERNEL", "memory": "MEMORY_OPER"}
# Kernels of an nsys export by its own spelling.
_NAMES = """
SELECT n.name_id, coalesce(n.name, ''), min(s.recorded_name)
FROM kernel_names n LEFT JOIN kernel_symbols s USING (name_id) GROUP BY ALL ORDER BY n.name_id"""


def wanted_reports(names: Sequence[str] | None) -> list[str]:
    """Report names as they were given, several with commas between; by default kernels and copies in one."""
    wanted = [name for text in names or ["cuda_gpu_sum"] for name in text.split(",") if name]
    return list(REPORTS) if "all" in wanted else wanted


def report_tables(session: Session, names: Sequence[str]) -> tuple[ReportTable, ...]:
    """The reports of these names, in order."""
    for name in names:
        if name not in REPORTS:
            raise InputError(f"there is no report '{name}'", hint=f"There are {', '.join(REPORTS)}")
    recorded = session.query(_NAMES)
    labels = [nsys_name or _operation_name(own) for _, own, nsys_name in recorded]
    statistics = session.records(
        sql(__package__, "nsys_statistics"), [[name_id for name_id, _, _ in recorded], labels]
    )
    return tuple(_table(REPORTS[name], statistics) for name in names)


_COPY = re.compile(r"Memcpy (?P<unified>Unified )?(?P<source>[HDAP])to(?P<target>[HDAP])\b")
_PLACES = {"H": "Host", "D": "Device", "A": "Array", "P": "Peer"}


def _operation_name(name: str) -> str:
    """Copies and sets as nsys calls them, `[CUDA memcpy Host-to-Device]`; a kernel by its full name.

    Source: CUPTI's names, which Kineto writes (`Memcpy HtoD (Pageable -> Device)`), and the labels of
    ENUM_CUDA_MEMCPY_OPER in an nsys export.
    """
    if name.startswith("Memset"):
        return "[CUDA memset]"
    match = _COPY.match(name)
    if match is None:
        return name
    source, target = _PLACES[match["source"]], _PLACES[match["target"]]
    return f"[CUDA memcpy {match['unified'] or ''}{source}-to-{target}]"


def _table(report: Report, statistics: list[_Row]) -> ReportTable:
    rows = [row for row in statistics if row["source"] in report.sources]
    rows.sort(key=lambda row: (-row["total"], row["label"]))
    whole, table = sum(row["total"] for row in rows), []
    for row in rows:
        figures: list[Any] = [row[name] for name in ("mean", "median", "least", "most", "deviation")]
        if report.is_size:
            total, *figures = (round(value / 1_000_000, 3) for value in (row["total"], *figures))
            values = [total, row["instances"], *figures]
        else:
            share = round(100 * row["total"] / whole, 1) if whole else 0.0
            mean, median, least, most, deviation = figures
            figures = [round(mean, 1), round(median, 1), int(least), int(most), round(deviation, 1)]
            values = [share, int(row["total"]), row["instances"], *figures]
        category = [_CATEGORIES[row["source"]]] if len(report.sources) > 1 else []
        table.append(dict(zip(report.columns, [*values, *category, row["label"]], strict=True)))
    return ReportTable(report, tuple(table))
