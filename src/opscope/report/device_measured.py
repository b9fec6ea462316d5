"""What was measured of a device, beside what is published of it, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from opscope.hardware.devices import DataType, DeviceSpec
from opscope.hardware.limits import measured_type, published_rate
from opscope.hardware.measured import MeasuredLimits, MeasuredRate, MeasuredTime
from opscope.report.document import (
    Block,
    Column,
    Document,
    FactList,
    Paragraph,
    Section,
    Table,
    Text,
    numeric,
)
from opscope.units import format_byte_rate, format_duration, format_flop_rate, format_fraction

__all__ = ["TYPE_TITLES", "measured_blocks", "measured_document", "measured_of"]

_UNKNOWN = "–"
TYPE_TITLES = {
    DataType.FP64: "fp64",
    DataType.FP64_TENSOR: "fp64, tensor cores",
    DataType.FP32: "fp32",
    DataType.TF32: "tf32",
    DataType.FP16: "fp16, sums in fp32",
    DataType.FP16_FP16_ACCUMULATE: "fp16, sums in fp16",
    DataType.BF16: "bf16, sums in fp32",
    DataType.FP8: "fp8, sums in fp32",
    DataType.FP8_FP16_ACCUMULATE: "fp8, sums in fp16",
    DataType.INT8: "int8, sums in int32",
    DataType.FP4: "fp4, sums in fp32",
}
_TITLES = {
    "copy": "Copy, read + written",
    "read": "Read",
    "write": "Write",
    "l2_read": "Read from L2",
    "launch": "Launch of an empty kernel, host",
    "operator_call": "Call of a small operator, host",
    "kernel_interval": "Empty kernel after another, device",
    "read_by_kernel": "Read by a Triton kernel",
}
_EXPLANATION = (
    "Medians of calls after a warm-up, on random data, with half the width of their 95 % interval. A share "
    "is of the published bandwidth or dense peak. Clocks are those while the same call ran, with reasons "
    "that lowered them."
)


def measured_document(measured: MeasuredLimits, spec: DeviceSpec | None) -> Document:
    """All of one measurement, with how each figure was taken; `spec` is what is published of the device."""
    said: list[tuple[str, str]] = [(one.name, one.how) for one in measured.rates]
    said += [(one.name, one.how) for one in measured.times]
    how = FactList(tuple((_title(name, measured), text) for name, text in said))
    blocks = (*measured_blocks(measured, spec), Paragraph(_EXPLANATION))
    return Document("", sections=(Section(measured.device, blocks), Section("How", (how,))))


def measured_of(device: DeviceSpec, measured: Mapping[str, MeasuredLimits]) -> Iterator[MeasuredLimits]:
    """The measurements of a device and of slices of it, among those by name."""
    for name, one in measured.items():
        if name == device.name or name.startswith(f"{device.name} MIG "):
            yield one


def measured_blocks(measured: MeasuredLimits, spec: DeviceSpec | None) -> tuple[Block, ...]:
    """Rates and durations as tables, what is missing and why, and what it was measured with."""
    blocks: list[Block] = [_rate_table(measured, spec)]
    if measured.times:
        blocks.append(_time_table(measured))
    if measured.missing:
        missing = tuple((_title(name, measured), reason) for name, reason in measured.missing.items())
        blocks.append(FactList(tuple((f"No {title[0].lower()}{title[1:]}", why) for title, why in missing)))
    return (*blocks, Paragraph(_circumstances(measured)))


def _rate_table(measured: MeasuredLimits, spec: DeviceSpec | None) -> Table:
    titles = ("Measured", "95 %", "Published", "Share", "SM clock")
    rows = tuple(_rate_row(one, measured, spec) for one in measured.rates)
    return Table((Column("Rate"), *map(numeric, titles)), rows)


def _rate_row(rate: MeasuredRate, measured: MeasuredLimits, spec: DeviceSpec | None) -> tuple[Text, ...]:
    published = None if spec is None else published_rate(spec, rate.name)
    return (
        _title(rate.name, measured),
        _rate(rate, rate.per_s),
        _half_width(rate.low_per_s, rate.per_s, rate.high_per_s),
        _UNKNOWN if published is None else _rate(rate, published),
        format_fraction(None if published is None else rate.per_s / published),
        _clock(rate),
    )


def _time_table(measured: MeasuredLimits) -> Table:
    rows = tuple(_time_row(one, measured) for one in measured.times)
    return Table((Column("Time"), numeric("Measured"), numeric("95 %")), rows)


def _time_row(time: MeasuredTime, measured: MeasuredLimits) -> tuple[Text, ...]:
    width = _half_width(time.low_ns, time.median_ns, time.high_ns)
    return _title(time.name, measured), format_duration(time.median_ns), width


def _circumstances(measured: MeasuredLimits) -> str:
    parts = [f"Measured {measured.created[:16].replace('T', ' ')} UTC", f"torch {measured.torch}"]
    if measured.driver is not None:
        parts.append(f"driver {measured.driver}")
    return f"{', '.join(parts)}, in {format_duration(measured.duration_ns)}."


def _title(name: str, measured: MeasuredLimits) -> str:
    data_type = measured_type(name, measured.compute_capability)
    if data_type is not None:
        return f"Product of {TYPE_TITLES[data_type]}"
    return _TITLES.get(name, name)


def _rate(rate: MeasuredRate, per_s: float) -> str:
    if rate.unit == "bytes":
        return format_byte_rate(per_s)
    # Integer operations are no FLOP.
    text = format_flop_rate(per_s)
    return text.replace("FLOP", "OP") if rate.name == "matrix_int8" else text


def _half_width(low: float, value: float, high: float) -> str:
    return f"± {format_fraction((high - low) / 2 / value)}"


def _clock(rate: MeasuredRate) -> str:
    if rate.state is None or rate.state.sm_clock_mhz is None:
        return _UNKNOWN
    return ", ".join((f"{rate.state.sm_clock_mhz} MHz", *rate.state.throttle_reasons))
