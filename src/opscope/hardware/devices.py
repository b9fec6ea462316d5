"""GPUs: what their vendor publishes of them, each number with its source, and which one a name means.

The facts stand in `devices.toml`. Peaks are dense. One that is published per product wins; where only the
rate per multiprocessor and clock is published, the peak is derived from it and says so. `match_device`
answers for a program: exactly one device or none, with the reason, never a similar one. `search_devices`
answers a person: everything the words may mean.
"""

from __future__ import annotations

import difflib
import math
import platform
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from opscope.data import packaged_toml
from opscope.errors import InputError
from opscope.hardware.architectures import (
    DEVICE_PROPERTIES,
    Architecture,
    Source,
    SpecEvidence,
    architecture,
    architectures,
    capability_of_target,
    sources_of,
)
from opscope.text_enum import TextEnum

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
        return self not in (DataType.FP64, DataType.FP32)

    @property
    def accumulates_in(self) -> str:
        if self in (DataType.FP16_FP16_ACCUMULATE, DataType.FP8_FP16_ACCUMULATE):
            return "fp16"
        if self in (DataType.FP64, DataType.FP64_TENSOR):
            return "fp64"
        return "int32" if self is DataType.INT8 else "fp32"


class Peak(msgspec.Struct, frozen=True):
    """The most operations of one type a second: FLOP/s, for int8 operations/s; dense, at the boost clock."""

    data_type: DataType
    flop_per_s: float
    evidence: SpecEvidence
    source: Source


class DeviceSpec(msgspec.Struct, frozen=True):
    """One GPU. What is not known for certain is None."""

    name: str
    names: tuple[str, ...]  # Names that drivers report for it, and those it is commonly called by
    compute_capability: str | None
    architecture: Architecture | None  # None for a compute capability that is not known here
    source: Source
    evidence: SpecEvidence = SpecEvidence.PUBLISHED
    sm_count: int | None = None
    boost_clock_hz: float | None = None
    # Boost clock of tensor core work where it is another than `boost_clock_hz`
    tensor_clock_hz: float | None = None
    memory_bytes: int | None = None  # As labelled; drivers report a little less
    memory_kind: str | None = None
    memory_bus_bits: int | None = None
    memory_pin_bits_per_s: float | None = None  # Data rate of one pin of the memory bus
    memory_bandwidth_bytes_per_s: float | None = None
    l2_bytes: int | None = None
    # Of all its NVLinks in each direction, where every such device has them
    nvlink_bytes_per_s: float | None = None
    pcie_bytes_per_s: float | None = None  # In each direction
    tdp_watts: int | None = None
    peaks: tuple[Peak, ...] = ()
    note: str | None = None
    # The MIG slice, e.g. `1g.5gb`. A slice has its own memory and multiprocessors; what is known of the whole
    # device only (peaks, bandwidth, cache, power) is left out
    partition: str | None = None
    number_sources: tuple[tuple[str, Source], ...] = ()  # Sources of numbers that differ from `source`
    # AMD's name of the chip (`gfx942`); such a device has no compute capability, and its `sm_count` counts
    # compute units
    gfx_target: str | None = None

    @property
    def reported_capability(self) -> str | None:
        """The pair of numbers that a driver reports as its capability; AMD's are those of its target."""
        if self.gfx_target is None:
            return self.compute_capability
        digits = self.gfx_target.removeprefix("gfx")
        return f"{int(digits[:-2])}.{int(digits[-2], 16)}"

    def peak(self, data_type: DataType | str) -> Peak | None:
        """The dense peak of a type; None if it has none or none is known."""
        return next((one for one in self.peaks if one.data_type == data_type), None)

    def source_of(self, number: str) -> Source | None:
        """Where the number in a field comes from; None if the number is unknown."""
        if getattr(self, number) is None:
            return None
        return dict(self.number_sources).get(number, self.source)


def cpu_name(cpuinfo: str | None = None) -> str | None:
    """What this machine's processor calls itself; as Linux tells it, or by a file's text that is given."""
    unnamed = None
    if cpuinfo is None:
        unnamed = platform.processor() or platform.machine() or None
        with suppress(OSError):
            cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    pairs = (line.partition(":") for line in (cpuinfo or "").splitlines())
    named = (value.strip() for key, _, value in pairs if key.strip().lower() == "model name")
    return next(filter(None, named), unnamed)


@cache
def devices() -> tuple[DeviceSpec, ...]:
    """All known devices, oldest architecture first."""
    document = packaged_toml(__package__, "devices.toml")
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
    capability = known.pop("compute_capability", None)
    return DeviceSpec(
        **known,
        compute_capability=capability,
        architecture=architecture(capability),
        peaks=tuple(_peaks(published, rate, known, sources)),
        number_sources=tuple((number, sources[key]) for number, key in number_sources.items()),
    )


def _peaks(
    published: dict[str, float], rate: dict[str, Any], device: dict[str, Any], sources: dict[str, Source]
) -> Iterator[Peak]:
    """Published peaks, and derived ones where a rate is all there is, in the order of the types."""
    for data_type in DataType:
        if data_type.value in published:
            yield Peak(data_type, published[data_type.value], SpecEvidence.PUBLISHED, device["source"])
        elif data_type.value in rate:
            # fp64 runs at the full boost clock on tensor cores too. Source: NVIDIA H100 Tensor Core GPU
            # Architecture, whitepaper (2023), table of clocks.
            is_full = not data_type.uses_tensor_cores or data_type is DataType.FP64_TENSOR
            clock = "boost_clock_hz" if is_full or "tensor_clock_hz" not in device else "tensor_clock_hz"
            flop_per_s = rate[data_type.value] * device["sm_count"] * device[clock]
            yield Peak(data_type, flop_per_s, SpecEvidence.DERIVED, sources[rate["source"]])


# A driver reports what is left of the labelled memory: at least 0.9 of it (ECC takes 1/16 of GDDR6).
_LEAST_MEMORY_SHARE = 0.9
_MOST_MEMORY_SHARE = 1.01
_PARTITION = re.compile(r"\s+MIG\s+(\S+)$", re.IGNORECASE)
_OTHER_VENDOR = re.compile(r"\b(?:AMD|Radeon|Instinct|gfx\d)", re.IGNORECASE)
# Words that drivers add or leave out over the years.
_BRANDS = frozenset(("nvidia", "tesla", "geforce", "amd", "radeon", "instinct", "oam", "vf", "graphics"))
_SAME_WITHIN = 0.01
_SIMILAR = 5
_ALIKE = 0.5  # share of characters in common, of names called similar


class DeviceMatch(msgspec.Struct, frozen=True):
    """The device a name means, or None; `reason` says why it is none, or only what the driver reported."""

    spec: DeviceSpec | None
    reason: str | None = None


class SearchResult(msgspec.Struct, frozen=True):
    """What a person's words mean: devices, and the compute capabilities they have or were asked for."""

    devices: tuple[DeviceSpec, ...]
    architectures: tuple[Architecture, ...]


def cuda_capability(name: str | None, reported: str | None) -> str | None:
    """The compute capability that a driver reported; None of another vendor: AMD's gfx90a says 9.0 too."""
    return None if _OTHER_VENDOR.search(name or "") else reported


def match_device(
    name: str,
    *,
    compute_capability: str | None = None,
    memory_bytes: int | None = None,
    sm_count: int | None = None,
) -> DeviceMatch:
    """The one device that a driver's name and facts mean."""
    whole, partition, *_ = [*_PARTITION.split(name), None]
    reported = DeviceSpec(
        whole if partition is None else f"{whole} MIG {partition}",
        (whole,),
        compute_capability,
        architecture(cuda_capability(whole, compute_capability)),
        DEVICE_PROPERTIES,
        SpecEvidence.DEVICE_PROPERTIES,
        sm_count,
        memory_bytes=memory_bytes,
        partition=partition,
    )
    if not _words(whole):
        return _by_facts(reported)
    named = [one for one in devices() if _words(whole) in _names(one)]
    agreeing = [one for one in named if _agrees(one, reported)]
    if len(agreeing) == 1:
        return DeviceMatch(agreeing[0] if partition is None else _slice(agreeing[0], reported))
    if agreeing:
        meant = ", ".join(one.name for one in agreeing)
        return DeviceMatch(None, f"'{whole}' may be any of {meant}")
    return _as_reported(reported, named)


def _by_facts(reported: DeviceSpec) -> DeviceMatch:
    """The device of that capability, size and memory, where a driver reports no name, or "Radeon Graphics".

    Several are as good as one where their limits are the same.
    """
    facts = (reported.compute_capability, reported.sm_count, reported.memory_bytes)
    agreeing = [one for one in devices() if None not in facts and one.sm_count and _agrees(one, reported)]
    if len(agreeing) == 1:
        return DeviceMatch(
            agreeing[0], "the driver reported no name: its size and memory are this GPU's alone"
        )
    if agreeing and all(_has_limits_of(agreeing[0], one) for one in agreeing):
        return DeviceMatch(
            replace(agreeing[0], name=" or ".join(one.name for one in agreeing)),
            "its size and memory are those of several GPUs of the same limits",
        )
    return _as_reported(reported, ())


def _has_limits_of(one: DeviceSpec, other: DeviceSpec) -> bool:
    """Whether bandwidth and peaks of two devices are the same, but for rounding."""
    rates, others = (
        {peak.data_type: peak.flop_per_s for peak in spec.peaks}
        | {None: spec.memory_bandwidth_bytes_per_s or 0.0}
        for spec in (one, other)
    )
    return rates.keys() == others.keys() and all(
        math.isclose(rate, others[key], rel_tol=_SAME_WITHIN) for key, rate in rates.items()
    )


def is_partition(name: str) -> bool:
    return _PARTITION.search(name) is not None


def is_same_name(one: str, other: str) -> bool:
    """Whether two names that drivers reported are one, but for the brand that some leave out."""
    return one == other or (_words(one) == _words(other) != ())


def search_devices(words: str) -> SearchResult:
    """Everything a person may mean by a device's name, an architecture, a compute capability or a target."""
    capability = capability_of_target(words)
    asked = [one for one in architectures() if one.compute_capability == capability]
    asked = asked or [one for one in architectures() if one.name.lower() == words.strip().lower()]
    if asked:
        capabilities = {one.compute_capability for one in asked}
        found = tuple(one for one in devices() if one.compute_capability in capabilities)
        return SearchResult(found, tuple(asked))
    if not (found := _by_name(_PARTITION.sub("", words))):
        raise _unknown(words)
    known = {one.compute_capability for one in found}
    return SearchResult(found, tuple(one for one in architectures() if one.compute_capability in known))


def _words(name: str) -> tuple[str, ...]:
    return tuple(word for word in re.findall(r"[a-z0-9]+", name.lower()) if word not in _BRANDS)


def _names(device: DeviceSpec) -> set[tuple[str, ...]]:
    return {_words(name) for name in (device.name, *device.names)}


def _agrees(device: DeviceSpec, reported: DeviceSpec) -> bool:
    """Whether no reported fact contradicts the device; a slice's memory and SMs are not the device's."""
    if reported.compute_capability not in (None, device.reported_capability):
        return False
    if reported.partition is not None:
        return True
    if None not in (reported.sm_count, device.sm_count) and reported.sm_count != device.sm_count:
        return False
    if reported.memory_bytes is None or device.memory_bytes is None:
        return True
    return _LEAST_MEMORY_SHARE <= reported.memory_bytes / device.memory_bytes <= _MOST_MEMORY_SHARE


def _slice(device: DeviceSpec, reported: DeviceSpec) -> DeviceSpec:
    """A MIG slice: the device's architecture, the slice's own size, nothing that holds for the whole only."""
    return replace(
        device,
        name=f"{device.name} MIG {reported.partition}",
        sm_count=reported.sm_count,
        memory_bytes=reported.memory_bytes,
        memory_bus_bits=None,
        memory_bandwidth_bytes_per_s=None,
        l2_bytes=None,
        nvlink_bytes_per_s=None,
        pcie_bytes_per_s=None,
        tdp_watts=None,
        peaks=(),
        note="A slice of the device: peaks, bandwidth, cache and power of the whole are left out.",
        partition=reported.partition,
        number_sources=(
            *device.number_sources,
            ("sm_count", DEVICE_PROPERTIES),
            ("memory_bytes", DEVICE_PROPERTIES),
        ),
    )


def _as_reported(reported: DeviceSpec, named: Sequence[DeviceSpec]) -> DeviceMatch:
    """The reported facts, with the reason why there is no more."""
    (name,) = reported.names
    reason = f"'{name}' is not in the table of devices"
    if not name.strip():
        reason = "the driver reported no name of the GPU, and what it is of size fits no single one"
    if named:
        known = ", ".join(one.name for one in named)
        reason = f"what was reported of '{name}' fits none of {known}"
    capability = cuda_capability(name, reported.compute_capability)
    if (capability, reported.memory_bytes, reported.sm_count) == (None, None, None):
        return DeviceMatch(None, reason)
    return DeviceMatch(replace(reported, names=(reported.name,), compute_capability=capability), reason)


def _by_name(words: str) -> tuple[DeviceSpec, ...]:
    """Devices of exactly this name, however it is spaced; else those whose names hold all of the words."""
    wanted = _words(words)
    if not wanted:
        return ()
    exact = tuple(one for one in devices() if "".join(wanted) in map("".join, _names(one)))
    return exact or tuple(one for one in devices() if any(set(wanted) <= set(name) for name in _names(one)))


def _unknown(words: str) -> InputError:
    known = {" ".join(_words(name)): one.name for one in devices() for name in (one.name, *one.names)}
    known |= {one.name.lower(): one.name for one in architectures()}
    known |= {one.target: one.target for one in architectures()}
    typed = words.strip().lower() if "_" in words else " ".join(_words(words))
    close = difflib.get_close_matches(typed, known, n=_SIMILAR, cutoff=_ALIKE)
    similar = ", ".join(dict.fromkeys(known[name] for name in close))
    hint = f"Similar: {similar}" if similar else "`opscope devices` lists the names"
    return InputError(f"no GPU, architecture or compute capability is known as '{words}'", hint=hint)
