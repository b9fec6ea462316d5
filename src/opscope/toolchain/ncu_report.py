"""What a report of Nsight Compute says of each kernel launch, as values.

Every counter is None where it was not collected, never 0. Times are integer ns, sizes integer bytes, shares
of a peak fractions of 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from opscope.data import packaged_toml
from opscope.hardware.architectures import WARP_SIZE
from opscope.text_enum import TextEnum


class Dimension(TextEnum):
    """What a quantity counts, and so what its value is: an integer of ns, bytes or events, or a float."""

    TIME_NS = "time_ns"
    BYTES = "bytes"
    SECTORS = "sectors"  # of 32 bytes; read as bytes
    EVENTS = "events"
    RATIO = "ratio"
    FRACTION = "fraction"  # percent in ncu, 0-1 here


class Quantity(TextEnum):
    """What is read of a kernel launch. Stable names, of JSON too."""

    DURATION = "duration_ns"
    DRAM_BYTES = "dram_bytes"
    DRAM_READ_BYTES = "dram_read_bytes"
    DRAM_WRITTEN_BYTES = "dram_written_bytes"
    L2_BYTES = "l2_bytes"
    LOAD_SECTORS = "global_load_sectors"
    LOAD_REQUESTS = "global_load_requests"
    LOAD_BYTES_PER_SECTOR = "global_load_bytes_per_sector"
    STORE_SECTORS = "global_store_sectors"
    STORE_REQUESTS = "global_store_requests"
    STORE_BYTES_PER_SECTOR = "global_store_bytes_per_sector"
    SHARED_LOAD_WAVEFRONTS = "shared_load_wavefronts"
    SHARED_LOAD_CONFLICTS = "shared_load_bank_conflicts"
    SHARED_STORE_WAVEFRONTS = "shared_store_wavefronts"
    SHARED_STORE_CONFLICTS = "shared_store_bank_conflicts"
    GLOBAL_SECTORS = "global_sectors"
    GLOBAL_SECTORS_IDEAL = "global_sectors_ideal"
    SHARED_WAVEFRONTS = "shared_wavefronts"
    SHARED_WAVEFRONTS_IDEAL = "shared_wavefronts_ideal"
    THREADS_PER_INSTRUCTION = "threads_per_instruction"
    SM_FRACTION = "sm_throughput_fraction"
    MEMORY_FRACTION = "memory_throughput_fraction"
    DRAM_FRACTION = "dram_throughput_fraction"
    L2_FRACTION = "l2_throughput_fraction"
    L1_FRACTION = "l1_throughput_fraction"
    TENSOR_FRACTION = "tensor_pipe_fraction"
    ACTIVE_CYCLES = "active_cycles_per_sm"
    OCCUPANCY = "achieved_occupancy"
    THEORETICAL_OCCUPANCY = "theoretical_occupancy"
    WAVES = "waves"
    WARP_LATENCY = "warp_latency_cycles"


class NcuMetric(msgspec.Struct, frozen=True):
    """Where a quantity is found, by its usual name first: of all, a report holds one."""

    names: tuple[str, ...]
    dimension: Dimension
    section: str


_DOCUMENT = packaged_toml(__package__, "ncu_metrics.toml")
QUANTITIES: Mapping[Quantity, NcuMetric] = {
    Quantity(name): NcuMetric(tuple(row["names"]), Dimension(row["counts"]), row["section"])
    for name, row in _DOCUMENT["quantities"].items()
}
# What launch data cannot tell of a kernel, and the quantities that tell it.
TOPICS: Mapping[str, tuple[Quantity, ...]] = {
    topic: tuple(map(Quantity, names)) for topic, names in _DOCUMENT["topics"].items()
}

# Read where they are, never asked for: the hardware's count of bank conflicts is also raised by passes that
# other clients win (bulk copies, tensor cores). Source: NVIDIA in forums.developer.nvidia.com/t/351780.
_SECOND_BEST = frozenset(
    {
        Quantity.SHARED_LOAD_WAVEFRONTS,
        Quantity.SHARED_LOAD_CONFLICTS,
        Quantity.SHARED_STORE_WAVEFRONTS,
        Quantity.SHARED_STORE_CONFLICTS,
    }
)
WANTED = tuple(quantity for quantity in QUANTITIES if quantity not in _SECOND_BEST)

# Blocks of one multiprocessor that a resource allows; the names are those of `analysis.occupancy`.
OCCUPANCY_LIMITS: Mapping[str, str] = {
    "blocks": "launch__occupancy_limit_blocks",
    "threads": "launch__occupancy_limit_warps",
    "registers": "launch__occupancy_limit_registers",
    "shared_memory": "launch__occupancy_limit_shared_mem",
    "barriers": "launch__occupancy_limit_barriers",
}
# Cycles a warp waits for a reason, per instruction issued; the reason stands between the two.
STALL_PREFIX = "smsp__average_warps_issue_stalled_"
STALL_SUFFIX = "_per_issue_active.ratio"

# Sections taken whole: what launches look like, and stall reasons, which differ between chips.
SECTIONS = ("LaunchStats", "Occupancy", "WarpStateStats")
# Chips with memory of their own but other names for its reads and writes.
_OTHER_DRAM_NAMES = frozenset({"12.0"})
# Chips that share the host's memory count no reads and writes.
_NO_DRAM_NAMES = frozenset({"8.7", "10.1", "11.0", "12.1"})
_SPLIT = (Quantity.DRAM_READ_BYTES, Quantity.DRAM_WRITTEN_BYTES)


def metrics_to_collect(
    compute_capability: str | None = None, quantities: Iterable[Quantity] = WANTED
) -> tuple[str, ...]:
    """Metric names for `ncu --metrics` besides what `SECTIONS` collect; of most chips where it is unknown."""
    names = []
    for quantity in quantities:
        metric = QUANTITIES[quantity]
        if metric.section in SECTIONS or (quantity in _SPLIT and compute_capability in _NO_DRAM_NAMES):
            continue
        names.append(
            metric.names[-1 if compute_capability in _OTHER_DRAM_NAMES and quantity in _SPLIT else 0]
        )
    return tuple(names)


SECTOR_BYTES = 32
# A warp's widest access, 16 bytes a thread, in sectors: no coalesced request needs more.
# Source: CUDA C++ Programming Guide 13.0, "Device Memory Accesses".
WIDEST_REQUEST_SECTORS = 16 * WARP_SIZE // SECTOR_BYTES

Extent = tuple[int, int, int]


class NcuDevice(msgspec.Struct, frozen=True):
    ordinal: int | None = None
    name: str | None = None
    compute_capability: str | None = None
    sm_count: int | None = None
    memory_bytes: int | None = None
    l2_bytes: int | None = None


class GlobalAccess(msgspec.Struct, frozen=True):
    requests: int | None = None  # instructions of warps that reached the cache
    sectors: int | None = None  # of 32 bytes that they touched
    bytes_per_sector: float | None = None  # that threads asked for; above 32 where they share them

    @property
    def sectors_per_request(self) -> float | None:
        """Sectors a warp's instruction touches; None without requests."""
        return None if self.sectors is None or not self.requests else self.sectors / self.requests

    @property
    def ideal_sectors_per_request(self) -> float | None:
        """Sectors that would hold as many bytes if all of each were used."""
        sectors = self.sectors_per_request
        if sectors is None or self.bytes_per_sector is None:
            return None
        return sectors * min(1.0, self.bytes_per_sector / SECTOR_BYTES)


class SharedAccess(msgspec.Struct, frozen=True):
    """Passes through the banks of shared memory: those the addresses need, and without bank conflicts."""

    wavefronts: int | None = None
    ideal_wavefronts: int | None = None

    @property
    def excess(self) -> int | None:
        """Passes that only bank conflicts make necessary."""
        if self.wavefronts is None or self.ideal_wavefronts is None:
            return None
        return max(0, self.wavefronts - self.ideal_wavefronts)

    @property
    def conflict_fraction(self) -> float | None:
        """The same, of all passes; None without any."""
        return None if self.excess is None or not self.wavefronts else self.excess / self.wavefronts


class Occupancy(msgspec.Struct, frozen=True):
    """Resident warps over the most there can be."""

    theoretical: float | None = None  # as registers, shared memory and block size allow
    achieved: float | None = None  # the mean while multiprocessors were active
    waves: float | None = None  # times the grid fills all multiprocessors
    block_limits: Mapping[str, int] = msgspec.field(default_factory=dict)  # by what allows so many

    @property
    def limiters(self) -> tuple[str, ...]:
        """Resources that allow no more blocks than there are."""
        least = min(self.block_limits.values(), default=None)
        return tuple(name for name, blocks in self.block_limits.items() if blocks == least)


class NcuAdvice(msgspec.Struct, frozen=True):
    """What one of NVIDIA's rules found to be improved, in its words."""

    rule: str  # its identifier, `TheoreticalOccupancy`
    title: str
    text: str
    speedup_fraction: float | None = None  # as the rule estimates, of the kernel's time


class KernelCounters(msgspec.Struct, frozen=True):
    index: int  # in the report, from 0
    function: str  # without namespaces, arguments and template arguments
    name: str  # as ncu demangles it, which is not how traces do
    mangled_name: str  # the name itself where that is not mangled
    device: NcuDevice
    grid: Extent | None = None
    block: Extent | None = None
    registers_per_thread: int | None = None
    shared_memory_bytes: int | None = None  # of a block, without what the system takes
    values: Mapping[Quantity, int | float] = msgspec.field(default_factory=dict)
    stalls: Mapping[str, float] = msgspec.field(default_factory=dict)
    """Cycles a warp waits per issued instruction, by reason; the longest first."""
    occupancy: Occupancy = Occupancy()
    sections: tuple[str, ...] | None = None  # that were collected; readers before 2026.3 do not tell
    replay_passes: int | None = None  # how often the kernel ran to collect all
    advice: tuple[NcuAdvice, ...] = ()  # of NVIDIA's rules, where ncu applied them

    def count(self, quantity: Quantity) -> int | None:
        """A quantity of integers (times, bytes, events)."""
        value = self.values.get(quantity)
        return None if value is None else int(value)

    def ratio(self, quantity: Quantity) -> float | None:
        """A quantity of real numbers (ratios, fractions)."""
        value = self.values.get(quantity)
        return None if value is None else float(value)

    @property
    def duration_ns(self) -> int | None:
        """Time of the kernel under ncu's clock and cache control."""
        return self.count(Quantity.DURATION)

    @property
    def dram_bytes(self) -> int | None:
        return self.count(Quantity.DRAM_BYTES)

    @property
    def loads(self) -> GlobalAccess:
        return GlobalAccess(
            self.count(Quantity.LOAD_REQUESTS),
            self.count(Quantity.LOAD_SECTORS),
            self.ratio(Quantity.LOAD_BYTES_PER_SECTOR),
        )

    @property
    def stores(self) -> GlobalAccess:
        return GlobalAccess(
            self.count(Quantity.STORE_REQUESTS),
            self.count(Quantity.STORE_SECTORS),
            self.ratio(Quantity.STORE_BYTES_PER_SECTOR),
        )

    @property
    def shared(self) -> SharedAccess:
        """Accesses to shared memory, by what their addresses need."""
        return SharedAccess(
            self.count(Quantity.SHARED_WAVEFRONTS), self.count(Quantity.SHARED_WAVEFRONTS_IDEAL)
        )

    @property
    def stall_fractions(self) -> dict[str, float]:
        """Share of a resident warp's time spent in each state, the longest first.

        `selected` (issuing) and `not_selected` (another warp issued) are states without a reason to wait.
        """
        total = sum(self.stalls.values())
        return {reason: cycles / total for reason, cycles in self.stalls.items()} if total else {}

    @property
    def not_collected(self) -> dict[Quantity, NcuMetric]:
        """Quantities wanted that the report does not hold, with what collects them."""
        return {quantity: QUANTITIES[quantity] for quantity in WANTED if quantity not in self.values}


class NcuReport(msgspec.Struct, frozen=True):
    source: Path
    kernels: tuple[KernelCounters, ...]  # in order
    other_results: tuple[str, ...] = ()  # names of what is no kernel launch: ranges, graphs, command lists
    reader_version: str | None = None
