"""GPUs for people: the table of all known ones, and everything known of some."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from opscope.hardware.architectures import Architecture, Evidence
from opscope.hardware.devices import DataType, DeviceSpec, Peak, is_partition
from opscope.hardware.measured import MeasuredLimits
from opscope.report.device_measured import TYPE_TITLES, measured_blocks, measured_of
from opscope.report.document import (
    Block,
    Code,
    Column,
    Document,
    FactList,
    Inline,
    Paragraph,
    Section,
    Table,
    Text,
    numeric,
)
from opscope.units import format_byte_rate, format_count

__all__ = ["device_details_document", "device_list_document"]

_GIB = 1024**3
_KIB = 1024
_UNKNOWN = "–"
_DENSE = (
    "CC is the compute capability. Peaks are dense (no structured sparsity), at the boost clock; bf16 is "
    "that of tensor cores that accumulate in fp32. A dash: not known for certain. Memory is as labelled."
)


def device_list_document(
    devices: Sequence[DeviceSpec], architectures: Sequence[Architecture] = ()
) -> Document:
    """One row per device, oldest first, then the capabilities that no device of the table has."""
    columns = (
        Column("Architecture"),
        Column("GPU"),
        *map(numeric, ("CC", "-arch", "CUDA", "SMs", "Memory", "Bandwidth", "bf16 peak", "fp32 peak")),
    )
    rows = tuple(_row(one) for one in devices)
    listed = {one.compute_capability for one in devices}
    others = [one for one in architectures if one.compute_capability not in listed]
    blocks: list[Block] = [Table(columns, rows), Paragraph(_DENSE)]
    if others:
        facts = tuple((one.products or one.name, _capability(one)) for one in others)
        blocks.append(FactList(facts))
    more = Paragraph(("Everything about one, with sources: ", Code("opscope devices NAME"), "."))
    return Document("GPUs", sections=(Section("", (*blocks, more)),))


def device_details_document(
    devices: Sequence[DeviceSpec],
    architectures: Sequence[Architecture],
    measured: Mapping[str, MeasuredLimits] | None = None,
) -> Document:
    """All facts of some devices and of their compute capabilities, with sources.

    Args:
        devices: To be shown.
        architectures: Theirs, or those asked for.
        measured: What was measured here, by the device's name.
    """
    sections = []
    for one in devices:
        sections.append(_device_section(one))
        sections += [_measured_section(one, its) for its in measured_of(one, measured or {})]
    sections += [_architecture_section(one) for one in architectures]
    return Document("", sections=tuple(sections))


def _row(device: DeviceSpec) -> tuple[Text, ...]:
    found = device.architecture
    return (
        found.name if found else _UNKNOWN,
        device.name,
        device.compute_capability or _UNKNOWN,
        Code(found.target) if found else _UNKNOWN,
        _toolkits(found) if found else _UNKNOWN,
        format_count(device.sm_count),
        _gib(device.memory_bytes),
        _bandwidth(device),
        _rate(device.peak(DataType.BF16)),
        _rate(device.peak(DataType.FP32)),
    )


def _device_section(device: DeviceSpec) -> Section:
    facts = FactList(tuple(_device_facts(device)))
    blocks: list[Block] = [facts]
    if device.peaks:
        blocks += [_peak_table(device), *_derivation(device)]
    if device.note:
        blocks.append(Paragraph(device.note))
    return Section(device.name, tuple(blocks))


def _measured_section(device: DeviceSpec, measured: MeasuredLimits) -> Section:
    """What was measured; nothing published holds for a slice."""
    is_slice = is_partition(measured.device)
    title = measured.device if is_slice else device.name
    return Section(f"Measured: {title}", measured_blocks(measured, None if is_slice else device))


def _device_facts(device: DeviceSpec) -> Iterator[tuple[str, Text]]:
    found = device.architecture
    if found is not None:
        yield "Architecture", f"{found.name}, compute capability {found.compute_capability}"
        yield "nvcc", (Code(found.arch_flag), f", CUDA {_toolkits(found)}")
    values = (
        ("Multiprocessors", "sm_count", format_count(device.sm_count)),
        ("Boost clock", "boost_clock_hz", _clock(device.boost_clock_hz)),
        ("Tensor core clock", "tensor_clock_hz", _clock(device.tensor_clock_hz)),
        ("Memory", "memory_bytes", f"{_gib(device.memory_bytes)} {device.memory_kind or ''}".rstrip()),
        ("Memory bus", "memory_bus_bits", f"{device.memory_bus_bits} bits"),
        ("Memory bandwidth", "memory_bandwidth_bytes_per_s", _bandwidth(device)),
        ("L2 cache", "l2_bytes", _binary(device.l2_bytes)),
        ("Power", "tdp_watts", f"{device.tdp_watts} W"),
    )
    left_out = []
    for label, number, text in values:
        source = device.source_of(number)
        if source is not None:
            yield label, text if source == device.source else f"{text} ({source})"
        elif number not in ("tensor_clock_hz", "memory_bus_bits"):
            left_out.append(label if label.startswith("L2") else label.lower())
    if left_out:
        yield "Not known for certain", ", ".join(left_out)
    yield "Source", str(device.source)


def _peak_table(device: DeviceSpec) -> Table:
    columns = (Column("Dense peak"), numeric("Rate"), Column("Known from"))
    rows = tuple((TYPE_TITLES[one.data_type], _rate(one), _origin(one, device)) for one in device.peaks)
    return Table(columns, rows)


def _origin(peak: Peak, device: DeviceSpec) -> str:
    if peak.evidence is Evidence.DERIVED or peak.source == device.source:
        return peak.evidence.value
    return str(peak.source)


def _derivation(device: DeviceSpec) -> tuple[Paragraph, ...]:
    """What derived peaks were derived from, once."""
    sources = dict.fromkeys(str(one.source) for one in device.peaks if one.evidence is Evidence.DERIVED)
    if not sources:
        return ()
    return (Paragraph(f"Derived: {Evidence.DERIVED.meaning}; the rates are those of {', '.join(sources)}."),)


def _architecture_section(one: Architecture) -> Section:
    facts: list[tuple[str, Text]] = [
        ("nvcc", (Code(one.arch_flag), *_specific(one))),
        ("CUDA", _toolkits(one)),
        ("Per multiprocessor", _sm_limits(one)),
        ("Shared memory", _shared(one)),
        ("Per block", f"{one.max_threads_per_block:,} threads, {one.max_registers_per_block:,} registers"),
        ("Per thread", f"{one.max_registers_per_thread} registers"),
        ("fp32 cores", f"{one.fp32_cores_per_sm} per multiprocessor"),
        ("Sources", f"{one.source}; CUDA versions: {one.toolkit_source}"),
    ]
    if one.products:
        facts.insert(0, ("Found in", one.products))
    blocks: tuple[Block, ...] = (FactList(tuple(facts)),)
    if one.note:
        blocks = (*blocks, Paragraph(one.note))
    return Section(f"Compute capability {one.compute_capability} ({one.name})", blocks)


def _specific(one: Architecture) -> tuple[Inline, ...]:
    return () if one.specific_target is None else ("; with its own features ", Code(one.specific_target))


def _sm_limits(one: Architecture) -> str:
    return (
        f"{one.max_threads_per_sm:,} threads ({one.max_warps_per_sm} warps), {one.max_blocks_per_sm} blocks, "
        f"{one.registers_per_sm:,} registers"
    )


def _shared(one: Architecture) -> str:
    text = (
        f"{_binary(one.shared_bytes_per_sm)} per multiprocessor; a block has "
        f"{_binary(one.static_shared_bytes_per_block)}, on request "
        f"{_binary(one.max_shared_bytes_per_block)}"
    )
    reserved = one.reserved_shared_bytes_per_block
    return f"{text}; {_binary(reserved)} of each block is the system's" if reserved else text


def _capability(one: Architecture) -> Text:
    return (f"{one.name}, {one.compute_capability}, ", Code(one.arch_flag), f", CUDA {_toolkits(one)}")


def _toolkits(one: Architecture) -> str:
    """The CUDA toolkits that build for a capability: `11.8+`, or `9.0–12.9` where the newest no longer do."""
    last = one.last_cuda_version
    return f"{one.least_cuda_version}–{last}" if last else f"{one.least_cuda_version}+"


def _bandwidth(device: DeviceSpec) -> str:
    return format_byte_rate(device.memory_bandwidth_bytes_per_s)


def _rate(peak: Peak | None) -> str:
    if peak is None:
        return _UNKNOWN
    operation = "OP" if peak.data_type is DataType.INT8 else "FLOP"
    factor, unit = (1e15, "P") if peak.flop_per_s >= 0.9995e15 else (1e12, "T")
    return f"{peak.flop_per_s / factor:.3g} {unit}{operation}/s"


def _clock(clock_hz: float | None) -> str:
    return _UNKNOWN if clock_hz is None else f"{clock_hz / 1e6:.0f} MHz"


def _gib(size_bytes: int | None) -> str:
    return _UNKNOWN if size_bytes is None else f"{size_bytes / _GIB:.4g} GiB"


def _binary(size_bytes: int | None) -> str:
    """Caches and shared memory in KiB and MiB, as their makers count them."""
    if size_bytes is None:
        return _UNKNOWN
    return f"{size_bytes / _KIB:.4g} KiB" if size_bytes < _KIB**2 else f"{size_bytes / _KIB**2:.4g} MiB"
