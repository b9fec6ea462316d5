"""What is said of a memory snapshot: the peak, who holds it, and how well the allocator's memory is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opscope.ingest.memory_snapshot import DeviceMemory, OutOfMemory
from opscope.model.queries import summed
from opscope.report import document as doc
from opscope.report.json_encoding import Keys, encode, versions
from opscope.units import format_bytes, format_fraction

MEMORY_SCHEMA_VERSION = 1
_KINDS = {
    "model": "made with the model",
    "optimizer": "optimizer",
    "forward": "forward pass",
    "backward": "backward pass",
    "other": "elsewhere in Python",
    "unknown": "allocated before the history begins",
}
# What to do where more than half of the peak is of one kind.
_LARGEST = {
    "forward": "Most of the peak are results of the forward pass: a smaller batch, 16 bits (torch.autocast) "
    "or activation checkpointing (torch.utils.checkpoint) make it smaller.",
    "optimizer": "Most of the peak is the optimizer's: states in 8 bits, or sharded over ranks "
    "(ZeroRedundancyOptimizer, FSDP), make it smaller.",
    "backward": "Most of the peak comes up in the backward pass: gradients in 16 bits, or freed before it "
    "(zero_grad(set_to_none=True)), make it smaller.",
    "model": "Most of the peak is the model itself: 16 bits, or sharding it over ranks (FSDP), make it "
    "smaller.",
}
# Of reserved memory that no tensor is in.
_MUCH_UNUSED, _LEAST_UNUSED_BYTES = 0.2, 256 << 20


def memory_document(devices: Sequence[DeviceMemory], *, top: int | None) -> doc.Document:
    return doc.Document("Device memory", sections=tuple(_section(one, top) for one in devices))


def _section(one: DeviceMemory, top: int | None) -> doc.Section:
    unused = one.reserved_bytes - one.peak_bytes
    unused_share = unused / one.reserved_bytes if one.reserved_bytes else 0.0
    kinds = summed((holding.kind, holding.size_bytes) for holding in one.holdings)
    kind, kind_bytes = kinds.most_common(1)[0] if kinds else ("", 0)
    most = _LARGEST.get(kind, "") if 2 * kind_bytes > one.peak_bytes else ""
    when = "Peak" if one.has_history else "In use when the snapshot was taken"
    end = f"{format_bytes(one.end_bytes)} of {format_bytes(one.end_reserved_bytes)} reserved"
    none = "none: record it with torch.cuda.memory._record_memory_history() for the peak"
    known = doc.facts(
        (when, f"{format_bytes(one.peak_bytes)} of {format_bytes(one.reserved_bytes)} reserved"),
        ("At the end", end if one.has_history else None),
        ("Unused", f"{format_bytes(unused)} of what is reserved then, {format_fraction(unused_share)}"),
        ("Fits at the end", f"{format_bytes(one.largest_unused_bytes)} in one piece, without the driver"),
        ("Rounding", format_bytes(one.rounding_bytes)),
        ("History", None if one.has_history else none),
    )
    remedy = (
        f"{format_fraction(unused_share)} of the reserved memory holds no tensor at the peak: with "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True segments grow instead."
    )
    is_much = unused_share > _MUCH_UNUSED and unused > _LEAST_UNUSED_BYTES
    told = doc.blocks(
        known,
        *map(_failure, one.out_of_memory),
        doc.Paragraph(remedy if is_much else ""),
        doc.table(
            kinds.most_common(),
            doc.words("For", lambda row: _KINDS[row[0]]),
            doc.number("Memory", lambda row: format_bytes(row[1])),
            doc.number("Share", lambda row: format_fraction(row[1] / max(1, one.peak_bytes))),
            caption="Memory in use then, by what asked for it",
        ),
        doc.table(
            one.holdings[:top],
            doc.identifier("Line", "line"),
            doc.identifier(
                "Within",
                lambda row: " > ".join(one.rpartition("/")[2] for one in row.forwards) or None,
                if_known=True,
            ),
            doc.words("For", lambda row: _KINDS[row.kind]),
            doc.number("Memory", "size_bytes"),
            doc.number("Blocks", "blocks"),
            doc.number("Share", lambda row: format_fraction(row.size_bytes / max(1, one.peak_bytes))),
            caption="Within: where the forward methods of nn.Modules stood, the outermost first. A stack "
            "tells files and lines, not which instance."
            if any(row.forwards for row in one.holdings[:top])
            else None,
        ),
        doc.Meaning(most),
    )
    return doc.Section(f"Device {one.device}", told)


def _failure(one: OutOfMemory) -> doc.Paragraph:
    free = "" if one.free_bytes is None else f", {format_bytes(one.free_bytes)} free on the device"
    at: tuple[doc.Inline, ...] = (" at ", doc.Code(one.line)) if one.line else ()
    return doc.Paragraph(
        (
            doc.Strong("Out of memory"),
            *at,
            f": {format_bytes(one.asked_bytes)} asked for, {format_bytes(one.allocated_bytes)} in use, "
            f"{format_bytes(one.reserved_bytes - one.allocated_bytes)} reserved but unused{free}.",
        )
    )


def memory_json(devices: Sequence[DeviceMemory], *, top: int | None) -> dict[str, Any]:
    keys = Keys("... -curve", holdings=lambda one: one.holdings[:top])
    return {**versions(MEMORY_SCHEMA_VERSION), "devices": encode(devices, {DeviceMemory: keys})}
