"""A compiled file for people: for which GPUs, what its kernels use, the occupancy they can reach."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from opscope.hardware.architectures import Target, architecture
from opscope.hardware.occupancy import BlockOccupancy
from opscope.nvcc.compile import Compilation, CompiledKernel, Nvcc, command_text, findings_of
from opscope.report import document as doc
from opscope.report.json_encoding import Keys, versions
from opscope.units import format_bytes, format_bytes_exactly, format_fraction


def nvcc_document(compilation: Compilation, command: Sequence[str]) -> doc.Document:
    request = compilation.request
    known = [(target.name, architecture(target.compute_capability)) for target in request.targets]
    opening = doc.facts(
        ("Command", doc.Code(command_text(command), is_whole=True)),
        ("Compiler", f"nvcc {compilation.nvcc.version or compilation.nvcc.release}"),
        (
            "Machine code",
            ", ".join(name if one is None else f"{name} ({one.products or one.name})" for name, one in known),
        ),
        ("PTX", "none" if request.ptx is None else request.ptx.ptx_name),
        ("Runs on", _runs_on(request.targets, request.ptx)),
    )
    shown = doc.sections(
        doc.Section("Kernels", _kernels(compilation)),
        doc.Section("Findings", (doc.FindingList(findings_of(compilation)),)),
        doc.Section("Compiler", (doc.CodeBlock(compilation.said),)),
    )
    return doc.Document(request.source.name, (opening,), shown)


def _runs_on(targets: Sequence[Target], ptx: Target | None) -> str:
    machine = "compute capability " + ", ".join(dict.fromkeys(_range(one, targets) for one in targets))
    if ptx is not None:
        first = ptx.compute_capability
        return f"{machine}; from {first} on also on any newer one, whose driver compiles the PTX"
    remedy = ""
    if any(target.is_general for target in targets):
        remedy = ": ptx among the targets of --arch adds PTX, which their driver compiles"
    return f"{machine}; not on newer GPUs{remedy}"


def _range(target: Target, targets: Sequence[Target]) -> str:
    """`9.x`, or `8.6 and later 8.x`; with a letter less."""
    if target.suffix == "a":
        return f"{target.compute_capability} alone"
    first = min(one.minor for one in targets if one.major == target.major and one.suffix == target.suffix)
    generation = f"{target.major}.x" if first == 0 else f"{target.major}.{first} and later {target.major}.x"
    return f"{generation} of its family" if target.suffix else generation


def _kernels(compilation: Compilation) -> tuple[doc.Block, ...]:
    kernels, dynamic = compilation.kernels, compilation.request.dynamic_shared_bytes
    none = "The file has no kernels, or none that anything launches: unused templates make none."
    if not kernels:
        return (doc.Paragraph(none),)

    def share_at(kernel: CompiledKernel, threads: int) -> str | None:
        return next((_share(block) for block in kernel.occupancy.blocks if block.threads == threads), None)

    target = doc.words("Target", "target.name")
    sizes = dict.fromkeys(block.threads for one in kernels for block in one.occupancy.blocks)
    assumed = f"{format_bytes(dynamic)} of" if dynamic else "no"
    reasons = dict.fromkeys(one.occupancy.reason for one in kernels if one.occupancy.reason)
    return (
        doc.table(
            kernels,
            doc.identifier("Kernel", "name"),
            target,
            doc.number("Registers", "use.registers", str),
            doc.number("Shared", "use.shared_bytes", format_bytes_exactly),
            doc.number("Stack", "stack_bytes", format_bytes_exactly),
            doc.number("Spilled", "use.spill_store_bytes", format_bytes_exactly),
            doc.number("Reloaded", "use.spill_load_bytes", format_bytes_exactly),
            doc.number("Constant", "constant_bytes", format_bytes_exactly),
        ),
        doc.table(
            kernels,
            doc.identifier("Occupancy by block size", "name"),
            target,
            *(doc.words(str(size), partial(share_at, threads=size)) for size in sizes),
            doc.words("Best", "occupancy.best", lambda best: f"{_share(best)} at {best.threads}"),
            doc.number("Largest block", "occupancy.largest_threads", str),
        ),
        doc.Paragraph(
            "Registers, stack and spills are of each thread, shared memory is of each block. Occupancy: "
            f"resident warps as a share of what a multiprocessor can hold, with {assumed} dynamic shared "
            "memory. The best block is the largest of those with most threads; how a kernel performs with "
            "them, only a run shows."
        ),
        *(doc.Paragraph(f"No occupancy: {reason}.") for reason in reasons),
    )


def _share(block: BlockOccupancy) -> str:
    if block.active is None:
        return "cannot start"
    share = format_fraction(block.occupancy)
    if block.occupancy == 1:
        return share
    return f"{share} ({' and '.join(one.meaning for one in block.active.limiters)})"


NVCC_SCHEMA_VERSION = 5


def nvcc_json(
    compilation: Compilation, command: Sequence[str], *, output: str | None = None
) -> dict[str, Any]:
    keys = Keys(
        "source=request.source output command nvcc targets=request.targets ptx "
        "dynamic_shared_bytes=request.dynamic_shared_bytes kernels findings compiler_output=said",
        output=lambda _: output,
        command=lambda _: command,
        ptx=lambda it: it.request.ptx and it.request.ptx.ptx_name,
        findings=findings_of,
    )
    return {**versions(NVCC_SCHEMA_VERSION), **keys.record(compilation, _KEYS)}


_KEYS: dict[type, Keys] = {
    BlockOccupancy: Keys(
        "threads blocks_per_sm warps_per_sm occupancy limited_by",
        blocks_per_sm=lambda block: block.active.blocks_per_sm if block.active else 0,
        warps_per_sm=lambda block: block.active.warps_per_sm if block.active else 0,
        limited_by=lambda block: block.active.limiters if block.active else [],
    ),
    CompiledKernel: Keys(
        "name symbol=use.symbol target=target.name registers=use.registers "
        "shared_bytes=use.shared_bytes stack_bytes spill_store_bytes=use.spill_store_bytes "
        "spill_load_bytes=use.spill_load_bytes constant_bytes launch_bounds=bounds "
        "occupancy=occupancy.blocks best_block=occupancy.best "
        "largest_block_threads=occupancy.largest_threads no_occupancy_because=occupancy.reason"
    ),
    Nvcc: Keys("path release version"),
    Target: Keys(
        "target=name compute_capability architecture",
        architecture=lambda target: (known := architecture(target.compute_capability)) and known.name,
    ),
}
