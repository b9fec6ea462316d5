"""GPUs: what their vendor publishes of them, each number with its source.

The facts stand in `devices.toml`. Peaks are dense. One that is published per product wins; where only the
rate per multiprocessor and clock is published, the peak is derived from it and says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from opscope.hardware.architectures import Architecture, architecture
from opscope.hardware.evidence import Evidence, Source, read_facts, sources_of
from opscope.text_enum import TextEnum

__all__ = ["DataType", "DeviceSpec", "Peak", "devices"]

_GIB = 1024**3
_KIB = 1024


class DataType(TextEnum):
    """What a peak is the rate of. A closed set."""

    FP64 = "fp64"
    FP64_TENSOR = "fp64_tensor"
    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    FP16_FP16_ACCUMULATE = "fp16_fp16_accumulate"
    BF16 = "bf16"
    FP8 = "fp8"
    FP8_FP16_ACCUMULATE = "fp8_fp16_accumulate"
    INT8 = "int8"
    FP4 = "fp4"

    @property
    def uses_tensor_cores(self) -> bool:
        """Whether the peak is that of tensor cores."""
        return self not in (DataType.FP64, DataType.FP32)

    @property
    def accumulates_in(self) -> str:
        """The type sums are kept in."""
        if self in (DataType.FP16_FP16_ACCUMULATE, DataType.FP8_FP16_ACCUMULATE):
            return "fp16"
        if self in (DataType.FP64, DataType.FP64_TENSOR):
            return "fp64"
        return "int32" if self is DataType.INT8 else "fp32"


@dataclass(frozen=True)
class Peak:
    """The most operations of one type a second: FLOP/s, for int8 operations/s; dense, at the boost clock."""

    data_type: DataType
    flop_per_s: float
    evidence: Evidence
    source: Source


@dataclass(frozen=True)
class DeviceSpec:
    """One GPU. What is not known for certain is None.

    Attributes:
        names: Names that drivers report for it, and those it is commonly called by.
        architecture: None for a compute capability that is not known here.
        tensor_clock_hz: Boost clock of tensor core work where it is another than `boost_clock_hz`.
        memory_bytes: As labelled; drivers report a little less.
        memory_pin_bits_per_s: Data rate of one pin of the memory bus.
        partition: The MIG slice, e.g. `1g.5gb`. A slice has its own memory and multiprocessors; what is known
            of the whole device only (peaks, bandwidth, cache, power) is left out.
        number_sources: Sources of numbers that differ from `source`.
    """

    name: str
    names: tuple[str, ...]
    compute_capability: str | None
    architecture: Architecture | None
    source: Source
    evidence: Evidence = Evidence.PUBLISHED
    sm_count: int | None = None
    boost_clock_hz: float | None = None
    tensor_clock_hz: float | None = None
    memory_bytes: int | None = None
    memory_kind: str | None = None
    memory_bus_bits: int | None = None
    memory_pin_bits_per_s: float | None = None
    memory_bandwidth_bytes_per_s: float | None = None
    l2_bytes: int | None = None
    tdp_watts: int | None = None
    peaks: tuple[Peak, ...] = ()
    note: str | None = None
    partition: str | None = None
    number_sources: tuple[tuple[str, Source], ...] = ()

    def peak(self, data_type: DataType | str) -> Peak | None:
        """The dense peak of a type; None if it has none or none is known."""
        return next((one for one in self.peaks if one.data_type == data_type), None)

    def source_of(self, number: str) -> Source | None:
        """Where the number in a field comes from; None if the number is unknown."""
        if getattr(self, number) is None:
            return None
        return dict(self.number_sources).get(number, self.source)


@cache
def devices() -> tuple[DeviceSpec, ...]:
    """All known devices, oldest architecture first."""
    document = read_facts("devices.toml")
    sources = sources_of(document)
    return tuple(_device(facts, document["rates"], sources) for facts in document["device"])


def _device(
    facts: dict[str, Any], rates: dict[str, dict[str, Any]], sources: dict[str, Source]
) -> DeviceSpec:
    known = {**facts, "source": sources[facts["source"]], "names": tuple(facts["names"])}
    published = known.pop("peaks", {})
    rate = rates.get(known.pop("rates", ""), {})
    number_sources = known.pop("sources", {})
    known["memory_bytes"] = known.pop("memory_gib") * _GIB
    if "l2_kib" in known:
        known["l2_bytes"] = known.pop("l2_kib") * _KIB
    return DeviceSpec(
        **known,
        architecture=architecture(facts["compute_capability"]),
        peaks=tuple(_peaks(published, rate, known, sources)),
        number_sources=tuple((number, sources[key]) for number, key in number_sources.items()),
    )


def _peaks(
    published: dict[str, float], rate: dict[str, Any], device: dict[str, Any], sources: dict[str, Source]
) -> Iterator[Peak]:
    """Published peaks, and derived ones where a rate is all there is, in the order of the types."""
    for data_type in DataType:
        if data_type.value in published:
            yield Peak(data_type, published[data_type.value], Evidence.PUBLISHED, device["source"])
        elif data_type.value in rate:
            flop_per_s = rate[data_type.value] * device["sm_count"] * _clock_hz(data_type, device)
            yield Peak(data_type, flop_per_s, Evidence.DERIVED, sources[rate["source"]])


def _clock_hz(data_type: DataType, device: dict[str, Any]) -> float:
    """Clock a peak is stated at: fp64 runs at the full boost clock on tensor cores too.

    Source: NVIDIA H100 Tensor Core GPU Architecture, whitepaper (2023), table of clocks.
    """
    boost_hz: float = device["boost_clock_hz"]
    if not data_type.uses_tensor_cores or data_type is DataType.FP64_TENSOR:
        return boost_hz
    tensor_hz: float = device.get("tensor_clock_hz", boost_hz)
    return tensor_hz
