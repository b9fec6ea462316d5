"""Compute capabilities: names, targets and what runs where, CUDA toolkits, limits of one multiprocessor.

The facts stand in `architectures.toml`, each with its source; a capability that is not there is None, never
its neighbor.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import msgspec

from opscope.data import packaged_toml
from opscope.text_enum import MeaningEnum


class SpecEvidence(MeaningEnum):
    """How a number is known. A closed set."""

    PUBLISHED = "published", "published for this product"
    DERIVED = "derived", "operations per SM and clock × SMs × boost clock"
    DEVICE_PROPERTIES = "device_properties", "as the driver reported it"


class Source(msgspec.Struct, frozen=True):
    """A document, with the year of the edition that the numbers are of."""

    title: str
    date: str

    def __str__(self) -> str:
        return f"{self.title} ({self.date})" if self.date else self.title


DEVICE_PROPERTIES = Source("CUDA device properties of the recorded device", "")


def sources_of(document: dict[str, Any]) -> dict[str, Source]:
    """The sources a packaged file declares, by the keys its entries use."""
    return {key: Source(entry["title"], entry["date"]) for key, entry in document["source"].items()}


WARP_SIZE = 32  # threads, on every compute capability
_NUMBER = r"(?:(?P<major>\d{1,2})\.(?P<minor>\d)|(?P<digits>\d{2,3}))(?P<suffix>[af]?)"
_REAL = re.compile(rf"(?:sm_)?{_NUMBER}", re.IGNORECASE)
_ANY = re.compile(rf"(?:-arch=)?(?:sm|compute|cc)?[_ ]?{_NUMBER}", re.IGNORECASE)


class Target(msgspec.Struct, frozen=True, order=True):
    """One real architecture; they sort by capability, general ones first."""

    major: int
    minor: int
    suffix: str = ""

    @property
    def compute_capability(self) -> str:
        """As `9.0`."""
        return f"{self.major}.{self.minor}"

    @property
    def number(self) -> str:
        """As `90a`."""
        return f"{self.major}{self.minor}{self.suffix}"

    @property
    def name(self) -> str:
        """Of its machine code: `sm_90a`."""
        return f"sm_{self.number}"

    @property
    def ptx_name(self) -> str:
        """Of its PTX: `compute_90a`."""
        return f"compute_{self.number}"

    @property
    def is_general(self) -> bool:
        """Whether its PTX is for all later GPUs."""
        return not self.suffix


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """One compute capability. Sizes are in bytes, limits per multiprocessor (SM) or per thread block."""

    name: str
    compute_capability: str
    least_cuda_version: str
    last_cuda_version: str | None = None  # The last toolkit that builds for it; None while the newest does
    # nvcc target with the features of this capability alone; None if there is none
    specific_target: str | None = None
    products: str | None = None  # What it is found in, where no device of the table has it; None otherwise
    note: str | None = None
    warp_threads: int = WARP_SIZE
    max_threads_per_block: int
    max_threads_per_sm: int
    max_blocks_per_sm: int
    registers_per_sm: int
    max_registers_per_block: int
    max_registers_per_thread: int
    shared_bytes_per_sm: int
    static_shared_bytes_per_block: int  # Shared memory of a block that does not ask for more
    max_shared_bytes_per_block: int  # The most a block gets that asks for it
    reserved_shared_bytes_per_block: int  # What the system takes of each block's shared memory
    shared_unit_bytes: int  # Unit in which shared memory is given out
    fp32_cores_per_sm: int
    source: Source
    toolkit_source: Source

    @property
    def max_warps_per_sm(self) -> int:
        return self.max_threads_per_sm // WARP_SIZE

    @property
    def target(self) -> str:
        """What nvcc and PTX call it, e.g. `sm_90`."""
        return f"sm_{self.compute_capability.replace('.', '')}"

    @property
    def arch_flag(self) -> str:
        return f"-arch={self.target}"


@cache
def architectures() -> tuple[Architecture, ...]:
    """All known compute capabilities, lowest first."""
    document = packaged_toml(__package__, "architectures.toml")
    sources = sources_of(document)
    every = ({**document["common"], **one} for one in document["architecture"])
    return tuple(
        Architecture(**{**facts, "source": sources[facts["source"]]}, toolkit_source=sources["ptx_isa"])
        for facts in every
    )


def architecture(compute_capability: str | None) -> Architecture | None:
    """The architecture of a compute capability written as `"9.0"`; None if it is not known here."""
    return next((one for one in architectures() if one.compute_capability == compute_capability), None)


def parse_target(word: str) -> Target | None:
    """The target that `sm_90a`, `90a` or `9.0` means; None for other words."""
    return _target(_REAL.fullmatch(word.strip()))


def capability_of_target(text: str) -> str | None:
    """`"9.0"` for `9.0`, `90`, `sm_90`, `sm_90a`, `compute_90` and `-arch=sm_90`; None for other words."""
    target = _target(_ANY.fullmatch(text.strip()))
    return None if target is None else target.compute_capability


def _target(match: re.Match[str] | None) -> Target | None:
    if match is None:
        return None
    digits = match["digits"] or match["major"] + match["minor"]
    return Target(int(digits[:-1]), int(digits[-1]), match["suffix"].lower())
