"""A compiled file for people: for which GPUs, what its kernels use, the occupancy they can reach."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from opscope.analysis.compiled_file import CompiledFile, KernelOutlook
from opscope.analysis.static_occupancy import BlockOccupancy
from opscope.hardware.architectures import Target, architecture
from opscope.report.document import (
    Block,
    Code,
    CodeBlock,
    Column,
    Document,
    FactList,
    FindingList,
    Paragraph,
    Section,
    Table,
    Text,
    numeric,
)
from opscope.toolchain.nvcc.command import Product, command_text
from opscope.units import format_bytes, format_fraction

__all__ = ["NvccCode", "nvcc_document"]

_UNKNOWN = "–"
_LIMITERS = {"shared_memory": "shared memory", "threads": "block size"}


class NvccCode(NamedTuple):
    """The text of one function: whose, for which target, in which language (`ptx` or `sass`)."""

    function: str
    target: str
    language: str
    text: str


def nvcc_document(compiled: CompiledFile, command: Sequence[str], codes: Sequence[NvccCode] = ()) -> Document:
    """The report.

    Args:
        compiled: What was compiled.
        command: Of nvcc, which makes the same.
        codes: Texts to show in full.
    """
    sections = [Section("Kernels", tuple(_kernels(compiled)))]
    if compiled.findings:
        sections.append(Section("Findings", (FindingList(compiled.findings),)))
    sections += [
        Section(f"{one.function}, {one.target}", (CodeBlock(one.text, one.language),)) for one in codes
    ]
    return Document(compiled.compilation.request.source.name, (_opening(compiled, command),), tuple(sections))


def _opening(compiled: CompiledFile, command: Sequence[str]) -> FactList:
    compilation = compiled.compilation
    request = compilation.request
    targets = ", ".join(map(_target, request.targets))
    facts: list[tuple[str, Text]] = [
        ("Command", Code(command_text(command), is_whole=True)),
        ("Compiler", f"nvcc {compilation.nvcc.version or compilation.nvcc.release}"),
        ("Machine code", targets),
        ("PTX", "none" if request.ptx is None else request.ptx.ptx_name),
    ]
    if request.product is not Product.NOTHING:
        facts.append(("Runs on", _runs_on(request.targets, request.ptx)))
    return FactList(tuple(facts))


def _target(target: Target) -> str:
    known = architecture(target.compute_capability)
    return target.name if known is None else f"{target.name} ({known.products or known.name})"


def _runs_on(targets: Sequence[Target], ptx: Target | None) -> str:
    """Compute capabilities, and what becomes of later ones."""
    ranges = dict.fromkeys(_range(target, targets) for target in targets)
    machine = "compute capability " + ", ".join(text for text in ranges if text)
    if ptx is None:
        has_general = any(target.is_general for target in targets)
        remedy = ": --ptx adds PTX, which their driver compiles" if has_general else ""
        return f"{machine}; not on newer GPUs{remedy}"
    return f"{machine}; from {ptx.compute_capability} on also on any newer one, whose driver compiles the PTX"


def _range(target: Target, targets: Sequence[Target]) -> str:
    """`9.x`, or `8.6 and later 8.x`; with a letter less."""
    if target.suffix == "a":
        return f"{target.compute_capability} alone"
    first = min(one.minor for one in targets if one.major == target.major and one.suffix == target.suffix)
    generation = f"{target.major}.x" if first == 0 else f"{target.major}.{first} and later {target.major}.x"
    return f"{generation} of its family" if target.suffix else generation


def _kernels(compiled: CompiledFile) -> Iterator[Block]:
    if not compiled.outlooks:
        yield Paragraph(
            "The file has no kernels, or none that anything launches: unused templates make none."
        )
        return
    yield _resources(compiled.outlooks)
    yield _occupancy(compiled.outlooks)
    yield Paragraph(_note(compiled))
    for reason in dict.fromkeys(one.occupancy.reason for one in compiled.outlooks if one.occupancy.reason):
        yield Paragraph(f"No occupancy: {reason}.")


def _resources(outlooks: Sequence[KernelOutlook]) -> Table:
    columns = (
        Column("Kernel"),
        Column("Target"),
        *map(numeric, ("Registers", "Shared", "Stack", "Spilled", "Reloaded", "Constant")),
    )
    return Table(columns, tuple(_resource_row(one) for one in outlooks))


def _resource_row(outlook: KernelOutlook) -> tuple[Text, ...]:
    kernel = outlook.kernel
    sizes = (kernel.use.shared_bytes, kernel.stack_bytes, kernel.use.spill_store_bytes)
    return (
        Code(kernel.name),
        kernel.target.name,
        str(kernel.registers),
        *map(_bytes, sizes),
        _bytes(kernel.use.spill_load_bytes),
        _bytes(kernel.constant_bytes),
    )


def _bytes(size_bytes: int | None) -> str:
    """Exactly, as ptxas prints it."""
    return _UNKNOWN if size_bytes is None else f"{size_bytes:,} B"


def _occupancy(outlooks: Sequence[KernelOutlook]) -> Table:
    sizes = dict.fromkeys(block.threads for one in outlooks for block in one.occupancy.blocks)
    columns = (
        Column("Occupancy by block size"),
        Column("Target"),
        *(Column(str(size)) for size in sizes),
        Column("Best"),
        numeric("Largest block"),
    )
    return Table(columns, tuple(_occupancy_row(one, list(sizes)) for one in outlooks))


def _occupancy_row(outlook: KernelOutlook, sizes: Sequence[int]) -> tuple[Text, ...]:
    occupancy = outlook.occupancy
    known = {block.threads: block for block in occupancy.blocks}
    best = occupancy.best
    return (
        Code(outlook.kernel.name),
        outlook.kernel.target.name,
        *(_share(known.get(size)) for size in sizes),
        _UNKNOWN if best is None else f"{_share(best)} at {best.threads}",
        _UNKNOWN if occupancy.largest_threads is None else str(occupancy.largest_threads),
    )


def _share(block: BlockOccupancy | None) -> str:
    """The share, and what stands against more."""
    if block is None:
        return _UNKNOWN
    if block.residency is None:
        return "cannot start"
    share = format_fraction(block.occupancy)
    if block.occupancy == 1:
        return share
    limiters = " and ".join(_LIMITERS.get(name, str(name)) for name in block.residency.limiters)
    return f"{share} ({limiters})"


def _note(compiled: CompiledFile) -> str:
    dynamic = compiled.dynamic_shared_bytes
    assumed = f"{format_bytes(dynamic)} of" if dynamic else "no"
    return (
        "Registers, stack and spills are of each thread, shared memory is of each block. Occupancy: warps "
        f"that a multiprocessor holds of those it can, with {assumed} dynamic shared memory. The best block "
        "is the largest of those with most threads; what a kernel does with them only a run tells."
    )
