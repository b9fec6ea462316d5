"""What a report of Nsight Compute says of each kernel launch, as values; read with NVIDIA's ncu-report.

Every counter is None where it was not collected, never 0. Times are integer ns, sizes integer bytes, shares
of a peak fractions of 1. NVIDIA's reader runs in a process of its own. Units are converted exactly: the file
keeps base units (ns, byte, %), and one this module does not know makes its metric unread, never misread.
Everything that can be wrong with a file is one InputError: of a file that is damaged NVIDIA's reader finds no
results.

Source: Nsight Compute, Customization Guide, "Report File Format".
"""

from __future__ import annotations

import gzip
import math
import re
import tempfile
import warnings
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from opscope.data import packaged_toml
from opscope.errors import DependencyError, InputError
from opscope.model.files import check_ratio, confined, scratch_prefix
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
    LOCAL_LOAD_SECTORS = "local_load_sectors"
    LOCAL_STORE_SECTORS = "local_store_sectors"
    SHARED_WAVEFRONTS = "shared_wavefronts"
    SHARED_WAVEFRONTS_IDEAL = "shared_wavefronts_ideal"
    THREADS_PER_INSTRUCTION = "threads_per_instruction"
    SM_FRACTION = "sm_throughput_fraction"
    MEMORY_FRACTION = "memory_throughput_fraction"
    DRAM_FRACTION = "dram_throughput_fraction"
    L2_FRACTION = "l2_throughput_fraction"
    L1_FRACTION = "l1_throughput_fraction"
    TENSOR_FRACTION = "tensor_pipe_fraction"
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
# States without a reason to wait: the warp issued, or another one did.
NO_STALL = frozenset({"selected", "not_selected"})
# Samples of warps by instruction; `…_not_issued` are a part of them.
_SAMPLED_PREFIX = "smsp__pcsamp_warps_issue_stalled_"
_SAMPLED = re.compile(rf"{_SAMPLED_PREFIX}(\w+?)(?<!_not_issued)")

# Sections taken whole: what launches look like, why warps wait, which differs between chips, and accesses by
# line of code.
SECTIONS = ("LaunchStats", "Occupancy", "WarpStateStats", "SourceCounters")
# Chips with memory of their own but other names for its reads and writes.
_OTHER_DRAM_NAMES = frozenset({"12.0"})
# Chips that share the host's memory count no reads and writes.
_NO_DRAM_NAMES = frozenset({"8.7", "10.1", "11.0", "12.1"})
# Passes for the data of loads and stores over their instructions, as shares of the peaks: 0.5 of 4 bytes a
# thread side by side, 2 of 16 bytes; more is needed for addresses that lie apart, or in one bank.
_PASSES = 4
_SPLIT = (Quantity.DRAM_READ_BYTES, Quantity.DRAM_WRITTEN_BYTES)


def metrics_to_collect(compute_capability: str | None = None) -> tuple[str, ...]:
    """Metric names for `ncu --metrics` besides what `SECTIONS` collect; of most chips where it is unknown."""
    names = []
    for quantity, metric in QUANTITIES.items():
        if metric.section in SECTIONS or (quantity in _SPLIT and compute_capability in _NO_DRAM_NAMES):
            continue
        names.append(
            metric.names[-1 if compute_capability in _OTHER_DRAM_NAMES and quantity in _SPLIT else 0]
        )
    return tuple(names)


SECTOR_BYTES = 32
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

    @property
    def unneeded_sectors(self) -> float:
        """Those beyond the ideal; 0 where it is not known."""
        ideal = self.ideal_sectors_per_request
        return 0.0 if ideal is None else (self.sectors or 0) - ideal * (self.requests or 0)


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


class StallLine(msgspec.Struct, frozen=True):
    """Where warps were found waiting for a reason, by sampling: a line of the program's source."""

    file: str
    line: int
    reason: str
    fraction: float  # of the samples of warps that waited


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
    # Cycles a warp waits per issued instruction, by reason; the longest first
    stalls: Mapping[str, float] = msgspec.field(default_factory=dict)
    occupancy: Occupancy = Occupancy()
    sections: tuple[str, ...] | None = None  # that were collected; readers before 2026.3 do not tell
    replay_passes: int | None = None  # how often the kernel ran to collect all
    busiest_unit: str | None = None  # that is as busy as the compute or the memory side as a whole
    stall_lines: tuple[StallLine, ...] = ()  # most samples first; empty for code without line numbers

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
        return {quantity: QUANTITIES[quantity] for quantity in QUANTITIES if quantity not in self.values}


class NcuReport(msgspec.Struct, frozen=True):
    source: Path
    kernels: tuple[KernelCounters, ...]  # in order
    other_results: tuple[str, ...] = ()  # names of what is no kernel launch: ranges, graphs, command lists


MAGIC = b"NVR\0"
SUFFIXES = (".ncu-rep", ".ncu-rep.gz", ".ncu-repz")
_GZIP_MAGIC = b"\x1f\x8b"
_CHUNK_BYTES = 1 << 20
# Units as ncu writes them, older versions in full; each is a whole multiple of the base unit.
_UNITS: Mapping[Dimension, Mapping[str, int]] = {
    Dimension.TIME_NS: {
        **{"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9},
        **{"nsecond": 1, "usecond": 10**3, "msecond": 10**6, "second": 10**9},
    },
    Dimension.BYTES: {"byte": 1, "Kbyte": 10**3, "Mbyte": 10**6, "Gbyte": 10**9, "Tbyte": 10**12},
    Dimension.SECTORS: {"sector": SECTOR_BYTES, "": SECTOR_BYTES},
}
_UPGRADE = "It is damaged, or of another version: pip install --upgrade ncu-report"
_NO_RESULTS = (
    "ncu profiled no kernel (--kernel-name and --launch-skip may have matched none), or the file is cut off, "
    "damaged, or of another version: pip install --upgrade ncu-report"
)
_DRAM_RATE = "dram__bytes.sum.per_second"


def is_report(path: str | Path) -> bool:
    """Whether a path means a report: by its suffix, or by the first bytes of the file."""
    return Path(path).name.endswith(SUFFIXES) or _begins_as_report(Path(path))


def _begins_as_report(file: Path) -> bool:
    try:
        with file.open("rb") as stream:
            return stream.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def check_reader() -> Any:
    """NVIDIA's reader; a DependencyError if it is not installed."""
    try:
        with warnings.catch_warnings():
            # Python 3.12 warns of what SWIG generates, which is no business of a user's.
            warnings.simplefilter("ignore", DeprecationWarning)
            import ncu_report  # noqa: PLC0415 - the extra `ncu`
    except ImportError as error:
        raise DependencyError(
            f"reports of Nsight Compute need NVIDIA's ncu-report ({error})", hint="pip install 'opscope[ncu]'"
        ) from error
    return ncu_report


def read_report(path: str | Path) -> NcuReport:
    """The report in a file; one packed with gzip is unpacked to a temporary file."""
    file = Path(path)
    check_reader()
    with _unpacked(file) as report:
        # Ncu's own packed form only the reader opens.
        if not file.name.endswith(".ncu-repz") and not _begins_as_report(report):
            raise InputError("not a report of Nsight Compute", source=file, hint="ncu -o FILE writes them")
        try:
            found = confined(_results, report, reader="NVIDIA's reader")
        except InputError as error:  # of the file as the user knows it, not as it was unpacked
            raise InputError(error.message, source=file, hint=error.hint) from error
        if not found:
            raise InputError("ncu-report finds no results", source=file, hint=_NO_RESULTS)
        return NcuReport(
            source=file,
            kernels=tuple(one for one in found if isinstance(one, KernelCounters)),
            other_results=tuple(one for one in found if isinstance(one, str)),
        )


@contextmanager
def _unpacked(file: Path) -> Iterator[Path]:
    """The file itself, or its content in a temporary one if it is packed."""
    try:
        with file.open("rb") as stream:
            is_packed = stream.read(2) == _GZIP_MAGIC
    except OSError as error:
        reason = (
            "no such file" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        )
        raise InputError(reason, source=file, hint="ncu -o FILE writes FILE.ncu-rep") from error
    if not is_packed:
        yield file
        return
    with tempfile.TemporaryDirectory(prefix=scratch_prefix()) as folder:
        report = Path(folder) / "report.ncu-rep"
        try:
            with file.open("rb") as raw, gzip.open(raw) as packed, report.open("wb") as target:
                while chunk := packed.read(_CHUNK_BYTES):
                    target.write(chunk)
                    check_ratio(raw, target, file)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(
                f"the packed report cannot be unpacked ({error})", source=file, hint="Copy it again"
            ) from error
        yield report


def _results(report: Path) -> list[KernelCounters | str]:
    try:
        # They live as long as the list does, and what it was read from with them.
        actions = [action for group in check_reader().load_report(str(report)) for action in group]
        return [
            _kernel(index, action)
            if action.workload_type() == action.WorkloadType_KERNEL
            else action.name(action.NameBase_DEMANGLED)
            for index, action in enumerate(actions)
        ]
    except (OSError, RuntimeError, ValueError, TypeError, SystemError) as error:
        raise InputError(f"ncu-report cannot read it ({error})", hint=_UPGRADE) from error


def _kernel(index: int, action: Any) -> KernelCounters:
    metrics = _Metrics(action)
    values = _values(metrics)
    static, dynamic = (
        metrics.integer(f"launch__shared_mem_per_block_{kind}") for kind in ("static", "dynamic")
    )
    stalls = {
        name[len(STALL_PREFIX) : -len(STALL_SUFFIX)]: cycles
        for name in metrics.names
        if name.startswith(STALL_PREFIX) and name.endswith(STALL_SUFFIX)
        if (cycles := metrics.number(name)) is not None
    }
    limits = {resource: metrics.integer(name) for resource, name in OCCUPANCY_LIMITS.items()}
    major, minor = (
        metrics.integer(f"device__attribute_compute_capability_{part}") for part in ("major", "minor")
    )
    function = action.name(action.NameBase_FUNCTION)
    if function is None:
        raise ValueError(f"result {index} has no name")
    return KernelCounters(
        index=index,
        function=function,
        name=action.name(action.NameBase_DEMANGLED),
        mangled_name=action.name(action.NameBase_MANGLED),
        device=NcuDevice(
            ordinal=metrics.integer("launch__device_id"),
            name=metrics.text("device__attribute_display_name"),
            compute_capability=None if major is None or minor is None else f"{major}.{minor}",
            sm_count=metrics.integer("device__attribute_multiprocessor_count"),
            memory_bytes=metrics.integer("device__attribute_total_memory"),
            l2_bytes=metrics.integer("device__attribute_l2_cache_size"),
        ),
        grid=metrics.extent("launch__grid_dim_"),
        block=metrics.extent("launch__block_dim_"),
        registers_per_thread=metrics.integer("launch__registers_per_thread"),
        shared_memory_bytes=None if static is None or dynamic is None else static + dynamic,
        values=values,
        stalls=dict(sorted(stalls.items(), key=lambda item: (-item[1], item[0]))),
        stall_lines=_stall_lines(action, metrics.names),
        occupancy=Occupancy(
            values.get(Quantity.THEORETICAL_OCCUPANCY),
            values.get(Quantity.OCCUPANCY),
            values.get(Quantity.WAVES),
            {
                resource: blocks
                for resource, blocks in limits.items()
                # Of a kernel that uses none it is what the hardware can hold.
                if blocks is not None and (resource != "shared_memory" or static or dynamic)
            },
        ),
        # Those that ncu makes of `--metrics` are left out; readers before 2026.3 do not tell.
        sections=tuple(
            name
            for name in (section.identifier() for section in action.sections())
            if not re.fullmatch(r"section\d+", name)
        )
        if hasattr(action, "sections")
        else None,
        replay_passes=metrics.integer("profiler__replayer_passes"),
        busiest_unit=_busiest_unit(metrics, values),
    )


def _stall_lines(action: Any, names: Iterable[str]) -> tuple[StallLine, ...]:
    samples: Counter[tuple[str, int, str]] = Counter()
    all_samples = 0
    for reason in (found[1] for name in names if (found := _SAMPLED.fullmatch(name)) is not None):
        metric = action.metric_by_name(_SAMPLED_PREFIX + reason)
        for at in range(0 if reason in NO_STALL else metric.num_instances()):
            address = metric.correlation_ids().as_uint64(at)
            count, source = metric.as_uint64(at), action.source_info(address)
            all_samples += count
            if source is not None:
                samples[source.file_name(), source.line(), reason] += count
    return tuple(StallLine(*of, count / all_samples) for of, count in samples.most_common() if count)


def _busiest_unit(metrics: _Metrics, values: Mapping[Quantity, int | float]) -> str | None:
    """The part that sets the busier side's share of its peak: a side is as busy as its busiest part."""
    sides = [values.get(one, 0.0) for one in (Quantity.SM_FRACTION, Quantity.MEMORY_FRACTION)]
    busy = {
        unit: max(metrics.number(f"{name}.avg.pct_of_peak_sustained_elapsed") or 0.0 for name in names)
        for unit, names in _DOCUMENT["units"].items()
    }
    unit = max(busy, key=lambda one: busy[one])
    if not 0 < 99 * max(sides) <= busy[unit]:
        return None
    passes, instructions = (
        metrics.number(f"{name}.avg.pct_of_peak_sustained_elapsed") or 0.0
        for name in ("l1tex__data_pipe_lsu_wavefronts", "sm__inst_executed_pipe_lsu")
    )
    is_scattered = unit == "loads_and_stores" and 0 < _PASSES * instructions <= passes
    return "scattered_accesses" if is_scattered else unit


class _Metrics:
    """Metrics of one result; None for what it does not hold or hold a value of."""

    def __init__(self, action: Any) -> None:
        self._action = action
        self.names: tuple[str, ...] = tuple(action.metric_names())

    def read(self, name: str) -> tuple[int | float | str, str] | None:
        metric = self._action.metric_by_name(name)
        if metric is None or not metric.has_value():
            return None
        value = metric.value()
        is_failed = isinstance(value, float) and math.isnan(value)  # as of a kernel whose profiling failed
        return None if value is None or is_failed else (value, metric.unit())

    def number(self, name: str) -> float | None:
        """The value of a metric that has no unit to convert."""
        found = self.read(name)
        return float(found[0]) if found is not None and not isinstance(found[0], str) else None

    def integer(self, name: str) -> int | None:
        value = self.number(name)
        return None if value is None else round(value)

    def text(self, name: str) -> str | None:
        found = self.read(name)
        return found[0] if found is not None and isinstance(found[0], str) and found[0] else None

    def extent(self, prefix: str) -> Extent | None:
        x, y, z = (self.integer(prefix + axis) for axis in "xyz")
        return None if x is None or y is None or z is None else (x, y, z)


def _values(metrics: _Metrics) -> dict[Quantity, int | float]:
    values: dict[Quantity, int | float] = {}
    for quantity, metric in QUANTITIES.items():
        found = (_converted(metrics.read(name), metric.dimension) for name in metric.names)
        value = next((one for one in found if one is not None), None)
        if value is not None:
            values[quantity] = value
    if Quantity.DRAM_BYTES not in values:
        derived = _dram_bytes(metrics, values)
        if derived is not None:
            values[Quantity.DRAM_BYTES] = derived
    return values


def _dram_bytes(metrics: _Metrics, values: Mapping[Quantity, int | float]) -> int | None:
    """Reads and writes, or the rate ncu gives times the time it divided by."""
    parts = [values.get(Quantity.DRAM_READ_BYTES), values.get(Quantity.DRAM_WRITTEN_BYTES)]
    if parts[0] is not None and parts[1] is not None:
        return int(parts[0]) + int(parts[1])
    rate, unit = metrics.read(_DRAM_RATE) or (None, "")
    duration_ns = values.get(Quantity.DURATION)
    if rate is None or duration_ns is None or unit != "byte/s" or isinstance(rate, str):
        return None
    return round(rate * duration_ns / 1e9)


def _converted(found: tuple[int | float | str, str] | None, dimension: Dimension) -> int | float | None:
    """A value in the base unit of its dimension; None if its unit is not known."""
    value, unit = found or (None, "")
    if value is None or isinstance(value, str):
        return None
    if dimension in _UNITS:
        factor = _UNITS[dimension].get(unit)
        return None if factor is None else round(value * factor)
    if dimension is Dimension.FRACTION:
        return value / 100 if unit == "%" else None
    return round(value) if dimension is Dimension.EVENTS else float(value)
