"""Compute capabilities: names, nvcc targets, CUDA toolkits, and the limits of one multiprocessor.

The facts stand in `architectures.toml`; a capability that is not there is None, never its neighbor.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from opscope.text_enum import TextEnum

__all__ = [
    "DEVICE_PROPERTIES",
    "Architecture",
    "Evidence",
    "Source",
    "architecture",
    "architectures",
    "capability_of_target",
    "read_facts",
    "sources_of",
]


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class Evidence(TextEnum):
    """How a number is known. A closed set."""

    PUBLISHED = "published"
    DERIVED = "derived"
    DEVICE_PROPERTIES = "device_properties"

    @property
    def meaning(self) -> str:
        """One phrase for people."""
        return _MEANINGS[self]


_MEANINGS = {
    Evidence.PUBLISHED: "published for this product",
    Evidence.DERIVED: "operations per SM and clock × SMs × boost clock",
    Evidence.DEVICE_PROPERTIES: "as the driver reported it",
}


@dataclass(frozen=True)
class Source:
    """A document, with the year of the edition that the numbers are of."""

    title: str
    date: str

    def __str__(self) -> str:
        return f"{self.title} ({self.date})" if self.date else self.title


DEVICE_PROPERTIES = Source("CUDA device properties of the recorded device", "")


@cache
def read_facts(name: str) -> dict[str, Any]:
    """One packaged TOML file; not to be changed by callers."""
    text = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    document: dict[str, Any] = tomllib.loads(text)
    return document


def sources_of(document: dict[str, Any]) -> dict[str, Source]:
    """The sources a packaged file declares, by the keys its entries use."""
    return {key: Source(entry["title"], entry["date"]) for key, entry in document["source"].items()}


_TARGET = re.compile(
    r"(?:-arch=)?(?:sm|compute|cc)?[_ ]?(?:(\d{1,2})\.(\d)|(\d{1,2})(\d))[af]?", re.IGNORECASE
)


@dataclass(frozen=True)
class Architecture:
    """One compute capability. Sizes are in bytes, limits per multiprocessor (SM) or per thread block.

    Attributes:
        last_cuda_version: The last toolkit that builds for it; None while the newest does.
        products: What it is found in, where no device of the table has it; None otherwise.
        specific_target: nvcc target with the features of this capability alone; None if there is none.
        static_shared_bytes_per_block: Shared memory of a block that does not ask for more.
        max_shared_bytes_per_block: The most a block gets that asks for it.
        reserved_shared_bytes_per_block: What the system takes of each block's shared memory.
        shared_unit_bytes: Unit in which shared memory is given out.
    """

    name: str
    compute_capability: str
    least_cuda_version: str
    last_cuda_version: str | None
    specific_target: str | None
    products: str | None
    note: str | None
    warp_threads: int
    max_threads_per_block: int
    max_threads_per_sm: int
    max_blocks_per_sm: int
    registers_per_sm: int
    max_registers_per_block: int
    max_registers_per_thread: int
    shared_bytes_per_sm: int
    static_shared_bytes_per_block: int
    max_shared_bytes_per_block: int
    reserved_shared_bytes_per_block: int
    shared_unit_bytes: int
    fp32_cores_per_sm: int
    source: Source
    toolkit_source: Source

    @property
    def max_warps_per_sm(self) -> int:
        """Resident warps of one multiprocessor."""
        return self.max_threads_per_sm // self.warp_threads

    @property
    def target(self) -> str:
        """What nvcc and PTX call it, e.g. `sm_90`."""
        return f"sm_{self.compute_capability.replace('.', '')}"

    @property
    def arch_flag(self) -> str:
        """The option that makes nvcc build for it."""
        return f"-arch={self.target}"


@cache
def architectures() -> tuple[Architecture, ...]:
    """All known compute capabilities, lowest first."""
    document = read_facts("architectures.toml")
    sources = sources_of(document)
    return tuple(_architecture({**document["common"], **one}, sources) for one in document["architecture"])


def architecture(compute_capability: str | None) -> Architecture | None:
    """The architecture of a compute capability written as `"9.0"`; None if it is not known here."""
    return next((one for one in architectures() if one.compute_capability == compute_capability), None)


def capability_of_target(text: str) -> str | None:
    """`"9.0"` for `9.0`, `90`, `sm_90`, `sm_90a`, `compute_90` and `-arch=sm_90`; None for other words."""
    match = _TARGET.fullmatch(text.strip())
    if match is None:
        return None
    major, minor = match.group(1) or match.group(3), match.group(2) or match.group(4)
    return f"{major}.{minor}"


def _architecture(facts: dict[str, Any], sources: dict[str, Source]) -> Architecture:
    optional: dict[str, Any] = dict.fromkeys(("last_cuda_version", "specific_target", "products", "note"))
    known = {**optional, **facts, "source": sources[facts["source"]]}
    return Architecture(**known, toolkit_source=sources["ptx_isa"])
