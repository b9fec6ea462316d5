"""A compiled file for people: for which GPUs, what its kernels use, the occupancy they can reach."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from opscope.analysis.compiled_file import CompiledFile, KernelOutlook
from opscope.hardware.architectures import Target, architecture
from opscope.hardware.occupancy import BlockOccupancy
from opscope.kernels.ptx import FunctionUse
from opscope.nvcc.command import BuildProduct, Nvcc, command_text
from opscope.provenance.demangle import demangle
from opscope.report import document as doc
from opscope.report.json_encoding import Keys, encode, versions
from opscope.units import format_bytes, format_bytes_exactly, format_fraction

_LIMITERS = {"shared_memory": "shared memory", "threads": "block size"}


class NvccCode(NamedTuple):
    """The text of one function: whose, for which target, in which language (`ptx` or `sass`)."""

    function: str
    target: str
    language: str
    text: str


def nvcc_document(
    compiled: CompiledFile, command: Sequence[str], codes: Sequence[NvccCode] = ()
) -> doc.Document:
    shown = doc.sections(
        doc.Section("Kernels", tuple(_kernels(compiled))),
        doc.Section("Findings", (doc.FindingList(compiled.findings),)),
        doc.Section(
            "Compiler", (doc.CodeBlock(compiled.compilation.said),) if compiled.compilation.said else ()
        ),
        *(
            doc.Section(f"{one.function}, {one.target}", (doc.CodeBlock(one.text, one.language),))
            for one in codes
        ),
    )
    return doc.Document(compiled.compilation.request.source.name, (_opening(compiled, command),), shown)


def _opening(compiled: CompiledFile, command: Sequence[str]) -> doc.FactList:
    compilation = compiled.compilation
    request = compilation.request
    known = [(target.name, architecture(target.compute_capability)) for target in request.targets]
    return doc.facts(
        ("Command", doc.Code(command_text(command), is_whole=True)),
        ("Compiler", f"nvcc {compilation.nvcc.version or compilation.nvcc.release}"),
        (
            "Machine code",
            ", ".join(name if one is None else f"{name} ({one.products or one.name})" for name, one in known),
        ),
        ("PTX", "none" if request.ptx is None else request.ptx.ptx_name),
        (
            "Runs on",
            None if request.product is BuildProduct.NOTHING else _runs_on(request.targets, request.ptx),
        ),
    )


def _runs_on(targets: Sequence[Target], ptx: Target | None) -> str:
    """Compute capabilities, and what becomes of later ones."""
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


def _kernels(compiled: CompiledFile) -> Iterator[doc.Block]:
    outlooks, dynamic = compiled.outlooks, compiled.dynamic_shared_bytes
    if not outlooks:
        none = "The file has no kernels, or none that anything launches: unused templates make none."
        yield doc.Paragraph(none)
        return
    target = doc.words("Target", "kernel.target.name")
    yield doc.table(
        outlooks,
        doc.identifier("Kernel", "kernel.name"),
        target,
        doc.number("Registers", "kernel.registers", str),
        doc.number("Shared", "kernel.use.shared_bytes", format_bytes_exactly),
        doc.number("Stack", "kernel.stack_bytes", format_bytes_exactly),
        doc.number("Spilled", "kernel.use.spill_store_bytes", format_bytes_exactly),
        doc.number("Reloaded", "kernel.use.spill_load_bytes", format_bytes_exactly),
        doc.number("Constant", "kernel.constant_bytes", format_bytes_exactly),
    )

    def share_at(outlook: KernelOutlook, threads: int) -> str | None:
        known = (block for block in outlook.occupancy.blocks if block.threads == threads)
        return next((_share(block) for block in known), None)

    sizes = dict.fromkeys(block.threads for one in outlooks for block in one.occupancy.blocks)
    yield doc.table(
        outlooks,
        doc.identifier("Occupancy by block size", "kernel.name"),
        target,
        *(doc.words(str(size), partial(share_at, threads=size)) for size in sizes),
        doc.words("Best", "occupancy.best", lambda best: f"{_share(best)} at {best.threads}"),
        doc.number("Largest block", "occupancy.largest_threads", str),
    )
    assumed = f"{format_bytes(dynamic)} of" if dynamic else "no"
    yield doc.Paragraph(
        "Registers, stack and spills are of each thread, shared memory is of each block. Occupancy: resident "
        f"warps as a share of what a multiprocessor can hold, with {assumed} dynamic shared memory. The "
        "best block is the largest of those with most threads; how a kernel performs with them, only a run "
        "shows."
    )
    for reason in dict.fromkeys(one.occupancy.reason for one in outlooks if one.occupancy.reason):
        yield doc.Paragraph(f"No occupancy: {reason}.")


def _share(block: BlockOccupancy) -> str:
    if block.active is None:
        return "cannot start"
    share = format_fraction(block.occupancy)
    if block.occupancy == 1:
        return share
    limiters = " and ".join(_LIMITERS.get(name, str(name)) for name in block.active.limiters)
    return f"{share} ({limiters})"


NVCC_SCHEMA_VERSION = 3


def nvcc_json(
    compiled: CompiledFile,
    command: Sequence[str],
    *,
    codes: Sequence[NvccCode] = (),
    output: str | None = None,
    exit_code: int | None = None,
) -> dict[str, Any]:
    """A compiled file as JSON values; kernels by target, then in the order of ptxas."""
    compilation = compiled.compilation
    request = compilation.request
    parts = {
        "source": request.source,
        "product": request.product,
        "output": output,
        "command": command,
        "nvcc": compilation.nvcc,
        "targets": request.targets,
        "ptx": request.ptx and request.ptx.ptx_name,
        "dynamic_shared_bytes": compiled.dynamic_shared_bytes,
        "kernels": compiled.outlooks,
        "functions": compilation.functions,
        "findings": compiled.findings,
        "compiler_output": compilation.said,
        "code": codes,
        "exit_code": exit_code,
    }
    return {**versions(NVCC_SCHEMA_VERSION), **encode(parts, _KEYS)}


_KEYS: dict[type, Keys] = {
    BlockOccupancy: Keys(
        "threads blocks_per_sm warps_per_sm occupancy limited_by",
        blocks_per_sm=lambda block: block.active.blocks_per_sm if block.active else 0,
        warps_per_sm=lambda block: block.active.warps_per_sm if block.active else 0,
        limited_by=lambda block: block.active.limiters if block.active else [],
    ),
    FunctionUse: Keys(
        "name symbol target stack_bytes spill_store_bytes spill_load_bytes",
        name=lambda function: demangle(function.symbol) or function.symbol,
    ),
    KernelOutlook: Keys(
        "name=kernel.name symbol=kernel.use.symbol target=kernel.target.name registers=kernel.registers "
        "shared_bytes=kernel.use.shared_bytes stack_bytes=kernel.stack_bytes "
        "spill_store_bytes=kernel.use.spill_store_bytes spill_load_bytes=kernel.use.spill_load_bytes "
        "constant_bytes=kernel.constant_bytes barriers=kernel.use.barriers launch_bounds "
        "occupancy=occupancy.blocks best_block=occupancy.best "
        "largest_block_threads=occupancy.largest_threads no_occupancy_because=occupancy.reason",
        launch_bounds=lambda outlook: {
            "max_threads": outlook.kernel.max_threads,
            "min_blocks": outlook.kernel.min_blocks,
        },
    ),
    Nvcc: Keys("path release version"),
    Target: Keys(
        "target=name compute_capability architecture",
        architecture=lambda target: (known := architecture(target.compute_capability)) and known.name,
    ),
}
