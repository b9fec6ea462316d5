"""What a report says of its top operators: the ranked table, and a section of details for each.

A fact no one has found is said to be unknown, never left out: the reader must see what is missing.
"""

from __future__ import annotations

from opscope.analysis.summary import Summary
from opscope.analysis.totals import KernelTotal, LaunchGeometry, OperatorTotal
from opscope.provenance.categories import category_title
from opscope.report.document import (
    Block,
    Code,
    Column,
    FactList,
    Paragraph,
    Section,
    Strong,
    Table,
    Text,
    numeric,
)
from opscope.report.efficiency_section import (
    has_efficiency,
    limit_cells,
    limit_titles,
    operator_limit_facts,
)
from opscope.report.kernel_section import improvement_blocks, launch_blocks
from opscope.report.provenance_section import operator_chain_facts
from opscope.report.selection import rank_fraction
from opscope.units import format_count, format_duration, format_extent, format_fraction

__all__ = ["operator_section", "operator_table", "ranking_paragraph"]

_ACCOUNTS = 2
_GEOMETRY_ROWS = 8
_SHAPE_ROWS = 5


def ranking_paragraph(summary: Summary) -> Paragraph:
    """By what the operators are ranked."""
    if not summary.has_device:
        return Paragraph("No device time was recorded, so operators are ranked by self CPU time.")
    return Paragraph(
        "Ranked by self device time: the time of the kernels, copies and memory sets an operator launched "
        "itself. Total adds those of the operators it called."
    )


def operator_table(summary: Summary, operators: tuple[OperatorTotal, ...]) -> Table:
    """The given operators, one a row, numbered from 1."""
    titles: tuple[str, ...]
    if summary.has_device:
        titles = ("Calls", "Self device", "Share", "Total device", "Self CPU", "Launches")
        titles += limit_titles(summary)
    else:
        titles = ("Calls", "Self CPU", "Share", "Total CPU")
    rows = tuple(
        (f"{rank}", Code(operator.name), *_operator_cells(summary, operator))
        for rank, operator in enumerate(operators, 1)
    )
    return Table((numeric("#"), Column("Operator"), *map(numeric, titles)), rows)


def _operator_cells(summary: Summary, operator: OperatorTotal) -> tuple[Text, ...]:
    share = format_fraction(rank_fraction(summary, operator))
    calls = format_count(operator.calls)
    if not summary.has_device:
        return (calls, format_duration(operator.self_cpu_ns), share, format_duration(operator.total_cpu_ns))
    return (
        calls,
        format_duration(operator.self_device_ns),
        share,
        format_duration(operator.total_device_ns),
        format_duration(operator.self_cpu_ns),
        format_count(operator.kernel_launches),
        *limit_cells(summary, operator.name),
    )


def operator_section(summary: Summary, operator: OperatorTotal) -> Section:
    """All that is known of one operator: times, shapes, kernels with their launch geometry, observations."""
    blocks: list[Block] = [_operator_facts(summary, operator)]
    if operator.input_shapes:
        blocks.append(_shape_table(operator))
    if operator.kernels:
        blocks.append(_geometry_table(operator))
    for kernel in operator.kernels[:_ACCOUNTS]:
        blocks.extend(launch_blocks(summary, operator.name, kernel.name, names_kernel=True))
    improvement = summary.improvements.get(operator.name)
    if improvement is not None:
        blocks += [Paragraph(Strong("Research points")), *improvement_blocks(improvement)]
    return Section(operator.name, tuple(blocks))


def _operator_facts(summary: Summary, operator: OperatorTotal) -> FactList:
    facts: list[tuple[str, Text]] = [
        ("Calls", format_count(operator.calls)),
        ("Category", category_title(operator.category)),
    ]
    if summary.has_device:
        facts += [
            (
                "Self device time",
                f"{format_duration(operator.self_device_ns)} "
                f"({format_fraction(operator.self_device_fraction)} of all device time), "
                f"{format_duration(operator.self_device_ns / operator.calls)} per call",
            ),
            (
                "Total device time",
                f"{format_duration(operator.total_device_ns)} "
                f"({format_fraction(operator.total_device_fraction)})",
            ),
            ("Kernel launches", format_count(operator.kernel_launches)),
        ]
    if has_efficiency(summary) and operator.self_device_ns:
        facts += operator_limit_facts(summary, operator.name)
    total, own = format_duration(operator.total_cpu_ns), format_duration(operator.self_cpu_ns)
    facts += [
        ("CPU time", f"{own} self, {total} total"),
        *operator_chain_facts(operator, has_device=summary.has_device),
    ]
    return FactList(tuple(facts))


def _shape_table(operator: OperatorTotal) -> Table:
    shown = operator.input_shapes[:_SHAPE_ROWS]
    rows: list[tuple[Text, ...]] = [(Code(shapes), format_count(calls)) for shapes, calls in shown]
    rest = operator.input_shapes[_SHAPE_ROWS:]
    if rest:
        rows.append((f"{len(rest)} more", format_count(sum(calls for _, calls in rest))))
    return Table((Column("Input shapes"), numeric("Calls")), tuple(rows))


def _geometry_table(operator: OperatorTotal) -> Table:
    launches = [
        (kernel, geometry)
        for kernel in operator.kernels
        for geometry in (kernel.geometries or (_without_geometry(kernel),))
    ]
    launches.sort(key=lambda launch: -launch[1].total_ns)
    titles = ("Calls", "Time", "Grid", "Block", "Registers/thread", "Shared memory", "Occupancy estimate")
    rows: list[tuple[Text, ...]] = [_geometry_row(*launch) for launch in launches[:_GEOMETRY_ROWS]]
    rest = [geometry for _, geometry in launches[_GEOMETRY_ROWS:]]
    if rest:
        calls, total_ns = sum(g.calls for g in rest), sum(g.total_ns for g in rest)
        more = f"{len(rest)} more launch configurations"
        rows.append((more, format_count(calls), format_duration(total_ns), "", "", "", "", ""))
    return Table((Column("CUDA kernel"), *map(numeric, titles)), tuple(rows))


def _without_geometry(kernel: KernelTotal) -> LaunchGeometry:
    return LaunchGeometry(None, None, None, None, None, kernel.calls, kernel.total_ns)


def _geometry_row(kernel: KernelTotal, geometry: LaunchGeometry) -> tuple[Text, ...]:
    return (
        Code(kernel.name),
        format_count(geometry.calls),
        format_duration(geometry.total_ns),
        format_extent(geometry.grid),
        format_extent(geometry.block),
        format_count(geometry.registers_per_thread),
        "–" if geometry.shared_memory_bytes is None else f"{geometry.shared_memory_bytes:,} B",
        format_fraction(geometry.occupancy_estimate),
    )
