"""What each implementation launches: kernels with their titles, geometry, device time and origin."""

from __future__ import annotations

from collections.abc import Sequence

from opscope.model.benchmark import BenchmarkResult, BenchmarkRow, KernelUse
from opscope.report.benchmark_cells import count_cell
from opscope.report.document import Block, Code, Column, Paragraph, Section, Table, Text, numeric
from opscope.units import format_bytes, format_duration, format_extent

__all__ = ["kernel_use_section"]


def kernel_use_section(result: BenchmarkResult) -> Section:
    """Under "Kernels": what each implementation is and costs around its samples, then what it launches."""
    rows = [row for row in result.rows if row.first_call_ns is not None or row.profile is not None]
    blocks: list[Block] = [_calls(rows)] if rows else []
    if not any(row.profile for row in rows):
        blocks.append(Paragraph("No kernels were recorded: that takes a GPU, and profiling switched on."))
    return Section("Kernels", tuple(blocks), tuple(_kernels(row) for row in rows if row.profile))


def _calls(rows: Sequence[BenchmarkRow]) -> Table:
    columns = (
        Column("Implementation"),
        Column("What it is"),
        *map(numeric, ("Built in", "First call", "Calls in a row", "By the profiler", "By the clock")),
    )
    return Table(columns, tuple(map(_call, rows)))


def _call(row: BenchmarkRow) -> tuple[Text, ...]:
    return (
        Code(row.name),
        row.note or str(row.engine),
        format_duration(row.build_ns),
        format_duration(row.first_call_ns),
        format_duration(row.call_ns),
        format_duration(row.device_ns),
        format_duration(row.median_ns),
    )


def _kernels(row: BenchmarkRow) -> Section:
    assert row.profile is not None
    if not row.profile.kernels:
        return Section(row.name, (Paragraph("It launched nothing on the device."),))
    return Section(row.name, (_table(row.profile.kernels),))


def _table(kernels: tuple[KernelUse, ...]) -> Table:
    columns = (
        Column("Kernel"),
        *map(numeric, ("Launches", "Device time", "Grid", "Block", "Registers", "Shared memory")),
        Column("Operator"),
        Column("Source"),
    )
    return Table(columns, tuple(map(_row, kernels)))


def _row(use: KernelUse) -> tuple[Text, ...]:
    return (
        Code(use.title),
        count_cell(use.launches),
        format_duration(use.device_ns),
        format_extent(use.grid),
        format_extent(use.block),
        count_cell(use.registers_per_thread),
        format_bytes(use.shared_memory_bytes),
        "–" if use.operator is None else Code(use.operator),
        "–" if use.source_file is None else Code(use.source_file),
    )
