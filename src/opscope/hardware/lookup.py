"""Which device a name means: names as drivers report them, and as people type them.

`match_device` answers for a program: exactly one device or none, with the reason, never a similar one.
`search_devices` answers a person: everything the words may mean.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from opscope.errors import InputError
from opscope.hardware.architectures import Architecture, architecture, architectures, capability_of_target
from opscope.hardware.devices import DeviceSpec, devices
from opscope.hardware.evidence import DEVICE_PROPERTIES, Evidence

__all__ = [
    "DeviceMatch",
    "SearchResult",
    "find_device",
    "is_partition",
    "is_same_name",
    "match_device",
    "search_devices",
]

# A driver reports what is left of the labelled memory: at least 0.9 of it (ECC takes 1/16 of GDDR6).
_LEAST_MEMORY_SHARE = 0.9
_MOST_MEMORY_SHARE = 1.01
_PARTITION = re.compile(r"\s+MIG\s+(\S+)$", re.IGNORECASE)
# AMD reports gfx90a as 9.0, which is no compute capability of CUDA.
_OTHER_VENDOR = re.compile(r"\b(?:AMD|Radeon|Instinct|gfx\d)", re.IGNORECASE)
# Words that drivers add or leave out over the years.
_BRANDS = frozenset(("nvidia", "tesla", "geforce"))
_SIMILAR = 5
_ALIKE = 0.5  # share of characters in common, of names called similar


@dataclass(frozen=True)
class DeviceMatch:
    """The device a name means, or None; `reason` says why it is none, or only what the driver reported."""

    spec: DeviceSpec | None
    reason: str | None = None


@dataclass(frozen=True)
class SearchResult:
    """What a person's words mean: devices, and the compute capabilities they have or were asked for."""

    devices: tuple[DeviceSpec, ...]
    architectures: tuple[Architecture, ...]


@dataclass(frozen=True)
class _Reported:
    """What a driver says of a device; None where it was not asked."""

    name: str
    partition: str | None
    compute_capability: str | None
    memory_bytes: int | None
    sm_count: int | None


def find_device(
    name: str,
    *,
    compute_capability: str | None = None,
    memory_bytes: int | None = None,
    sm_count: int | None = None,
) -> DeviceSpec | None:
    """The device of `match_device`, without the reason."""
    return match_device(
        name, compute_capability=compute_capability, memory_bytes=memory_bytes, sm_count=sm_count
    ).spec


def match_device(
    name: str,
    *,
    compute_capability: str | None = None,
    memory_bytes: int | None = None,
    sm_count: int | None = None,
) -> DeviceMatch:
    """The one device that a driver's name and facts mean.

    Args:
        name: As CUDA device properties have it, e.g. `NVIDIA A100-SXM4-80GB` or `… MIG 1g.10gb`.
        compute_capability: As `"9.0"`, if known.
        memory_bytes: Total memory as reported, if known.
        sm_count: Multiprocessors, if known.

    Returns:
        A known device that agrees with every fact. Where several do: None. Where none does: a spec of the
        facts alone (evidence `device_properties`), or None if there are no facts.
    """
    partition = _PARTITION.search(name)
    whole = name[: partition.start()] if partition else name
    reported = _Reported(
        whole, partition.group(1) if partition else None, compute_capability, memory_bytes, sm_count
    )
    named = [one for one in devices() if _words(whole) in _names(one)]
    agreeing = [one for one in named if _agrees(one, reported)]
    if len(agreeing) == 1:
        return DeviceMatch(agreeing[0] if partition is None else _slice(agreeing[0], reported))
    if agreeing:
        meant = ", ".join(one.name for one in agreeing)
        return DeviceMatch(None, f"'{whole}' may be any of {meant}")
    return _as_reported(reported, named)


def is_partition(name: str) -> bool:
    """Whether a name that a driver reported is that of a MIG slice."""
    return _PARTITION.search(name) is not None


def is_same_name(one: str, other: str) -> bool:
    """Whether two names that drivers reported are one, but for the brand that some leave out."""
    return one == other or (_words(one) == _words(other) != ())


def search_devices(words: str) -> SearchResult:
    """Everything a person may mean by a device's name, an architecture, a compute capability or a target.

    Raises:
        InputError: Nothing is known by these words; the hint lists similar names.
    """
    capability = capability_of_target(words)
    asked = [one for one in architectures() if one.compute_capability == capability]
    asked = asked or [one for one in architectures() if one.name.lower() == words.strip().lower()]
    if asked:
        capabilities = {one.compute_capability for one in asked}
        found = tuple(one for one in devices() if one.compute_capability in capabilities)
        return SearchResult(found, tuple(asked))
    found = _by_name(_PARTITION.sub("", words))
    if not found:
        raise _unknown(words)
    known = {one.compute_capability for one in found}
    return SearchResult(found, tuple(one for one in architectures() if one.compute_capability in known))


def _words(name: str) -> tuple[str, ...]:
    return tuple(word for word in re.findall(r"[a-z0-9]+", name.lower()) if word not in _BRANDS)


def _names(device: DeviceSpec) -> set[tuple[str, ...]]:
    return {_words(name) for name in (device.name, *device.names)}


def _agrees(device: DeviceSpec, reported: _Reported) -> bool:
    """Whether no reported fact contradicts the device; a slice's memory and SMs are not the device's."""
    if reported.compute_capability not in (None, device.compute_capability):
        return False
    if reported.partition is not None:
        return True
    if None not in (reported.sm_count, device.sm_count) and reported.sm_count != device.sm_count:
        return False
    if reported.memory_bytes is None or device.memory_bytes is None:
        return True
    return _LEAST_MEMORY_SHARE <= reported.memory_bytes / device.memory_bytes <= _MOST_MEMORY_SHARE


def _slice(device: DeviceSpec, reported: _Reported) -> DeviceSpec:
    """A MIG slice: the device's architecture, the slice's own size, nothing that holds for the whole only."""
    return replace(
        device,
        name=f"{device.name} MIG {reported.partition}",
        sm_count=reported.sm_count,
        memory_bytes=reported.memory_bytes,
        memory_bus_bits=None,
        memory_bandwidth_bytes_per_s=None,
        l2_bytes=None,
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


def _as_reported(reported: _Reported, named: Sequence[DeviceSpec]) -> DeviceMatch:
    """A spec of the reported facts, with the reason why it is no more."""
    full_name = reported.name if reported.partition is None else f"{reported.name} MIG {reported.partition}"
    reason = f"'{reported.name}' is not in the table of devices"
    if named:
        known = ", ".join(one.name for one in named)
        reason = f"what was reported of '{reported.name}' fits none of {known}"
    is_cuda = _OTHER_VENDOR.search(reported.name) is None
    capability = reported.compute_capability if is_cuda else None
    facts = (capability, reported.memory_bytes, reported.sm_count)
    if all(fact is None for fact in facts):
        return DeviceMatch(None, reason)
    spec = DeviceSpec(
        name=full_name,
        names=(full_name,),
        compute_capability=capability,
        architecture=architecture(capability),
        source=DEVICE_PROPERTIES,
        evidence=Evidence.DEVICE_PROPERTIES,
        sm_count=reported.sm_count,
        memory_bytes=reported.memory_bytes,
        partition=reported.partition,
    )
    return DeviceMatch(spec, reason)


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
    close = difflib.get_close_matches(_typed(words), known, n=_SIMILAR, cutoff=_ALIKE)
    similar = ", ".join(_distinct(known[name] for name in close))
    hint = f"Similar: {similar}" if similar else "`opscope devices` lists the names"
    return InputError(f"no GPU, architecture or compute capability is known as '{words}'", hint=hint)


def _typed(words: str) -> str:
    return words.strip().lower() if "_" in words else " ".join(_words(words))


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
