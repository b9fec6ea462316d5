"""Which of ncu's metrics hold the quantities opscope reads, and what collects them.

One table, for reading a report, for the commands that make one, and for saying what a report lacks. The names
are those of NVIDIA's counter library, from Turing to Blackwell; where chips name a quantity differently, all
names are listed.

Source: metric names as `NVPW_MetricsEvaluator` of CUPTI 13.5 accepts them for each chip; those ncu makes
itself (`launch__`, `memory_`), and the sections, as of ncu 2025.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from opscope.text_enum import TextEnum

__all__ = [
    "OCCUPANCY_LIMITS",
    "QUANTITIES",
    "SECTIONS",
    "STALL_PREFIX",
    "STALL_SUFFIX",
    "WANTED",
    "Dimension",
    "Metric",
    "Quantity",
    "metrics_to_collect",
]


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


@dataclass(frozen=True)
class Metric:
    """Where a quantity is found.

    Attributes:
        names: Names of the metric, the usual one first; of all, a report holds one.
        dimension: What it counts.
        section: The section that collects it.
    """

    names: tuple[str, ...]
    dimension: Dimension
    section: str


_TABLES = "MemoryWorkloadAnalysis_Tables"
_LIGHT = "SpeedOfLight"
_SOURCE = "SourceCounters"
_LD, _ST = "mem_global_op_ld", "mem_global_op_st"
_SHARED_LD, _SHARED_ST = "mem_shared_op_ld", "mem_shared_op_st"
_OF_PEAK = "avg.pct_of_peak_sustained_elapsed"
_OF_ACTIVE = "avg.pct_of_peak_sustained_active"

QUANTITIES: Mapping[Quantity, Metric] = {
    Quantity.DURATION: Metric(("gpu__time_duration.sum",), Dimension.TIME_NS, _LIGHT),
    Quantity.DRAM_BYTES: Metric(("dram__bytes.sum",), Dimension.BYTES, "MemoryWorkloadAnalysis"),
    Quantity.DRAM_READ_BYTES: Metric(
        ("dram__bytes_read.sum", "dram__bytes_op_read.sum"), Dimension.BYTES, _TABLES
    ),
    Quantity.DRAM_WRITTEN_BYTES: Metric(
        ("dram__bytes_write.sum", "dram__bytes_op_write.sum"), Dimension.BYTES, _TABLES
    ),
    Quantity.L2_BYTES: Metric(("lts__t_sectors.sum",), Dimension.SECTORS, _TABLES),
    Quantity.LOAD_SECTORS: Metric((f"l1tex__t_sectors_pipe_lsu_{_LD}.sum",), Dimension.EVENTS, _TABLES),
    Quantity.LOAD_REQUESTS: Metric((f"l1tex__t_requests_pipe_lsu_{_LD}.sum",), Dimension.EVENTS, _TABLES),
    Quantity.LOAD_BYTES_PER_SECTOR: Metric(
        (f"smsp__sass_average_data_bytes_per_sector_{_LD}.ratio",), Dimension.RATIO, _TABLES
    ),
    Quantity.STORE_SECTORS: Metric((f"l1tex__t_sectors_pipe_lsu_{_ST}.sum",), Dimension.EVENTS, _TABLES),
    Quantity.STORE_REQUESTS: Metric((f"l1tex__t_requests_pipe_lsu_{_ST}.sum",), Dimension.EVENTS, _TABLES),
    Quantity.STORE_BYTES_PER_SECTOR: Metric(
        (f"smsp__sass_average_data_bytes_per_sector_{_ST}.ratio",), Dimension.RATIO, _TABLES
    ),
    Quantity.SHARED_LOAD_WAVEFRONTS: Metric(
        (f"l1tex__data_pipe_lsu_wavefronts_{_SHARED_LD}.sum",), Dimension.EVENTS, _TABLES
    ),
    Quantity.SHARED_LOAD_CONFLICTS: Metric(
        (f"l1tex__data_bank_conflicts_pipe_lsu_{_SHARED_LD}.sum",), Dimension.EVENTS, _TABLES
    ),
    Quantity.SHARED_STORE_WAVEFRONTS: Metric(
        (f"l1tex__data_pipe_lsu_wavefronts_{_SHARED_ST}.sum",), Dimension.EVENTS, _TABLES
    ),
    Quantity.SHARED_STORE_CONFLICTS: Metric(
        (f"l1tex__data_bank_conflicts_pipe_lsu_{_SHARED_ST}.sum",), Dimension.EVENTS, _TABLES
    ),
    Quantity.GLOBAL_SECTORS: Metric(("memory_l2_theoretical_sectors_global",), Dimension.EVENTS, _SOURCE),
    Quantity.GLOBAL_SECTORS_IDEAL: Metric(
        ("memory_l2_theoretical_sectors_global_ideal",), Dimension.EVENTS, _SOURCE
    ),
    Quantity.SHARED_WAVEFRONTS: Metric(("memory_l1_wavefronts_shared",), Dimension.EVENTS, _SOURCE),
    Quantity.SHARED_WAVEFRONTS_IDEAL: Metric(
        ("memory_l1_wavefronts_shared_ideal",), Dimension.EVENTS, _SOURCE
    ),
    Quantity.THREADS_PER_INSTRUCTION: Metric(
        (
            "smsp__thread_inst_executed_per_inst_executed.ratio",
            "smsp__average_thread_inst_executed_per_inst_executed.ratio",
        ),
        Dimension.RATIO,
        "WarpStateStats",
    ),
    Quantity.SM_FRACTION: Metric((f"sm__throughput.{_OF_PEAK}",), Dimension.FRACTION, _LIGHT),
    Quantity.MEMORY_FRACTION: Metric(
        (f"gpu__compute_memory_throughput.{_OF_PEAK}",), Dimension.FRACTION, _LIGHT
    ),
    Quantity.DRAM_FRACTION: Metric(
        (f"gpu__dram_throughput.{_OF_PEAK}", f"dram__throughput.{_OF_PEAK}"), Dimension.FRACTION, _LIGHT
    ),
    Quantity.L2_FRACTION: Metric((f"lts__throughput.{_OF_PEAK}",), Dimension.FRACTION, _LIGHT),
    Quantity.L1_FRACTION: Metric((f"l1tex__throughput.{_OF_ACTIVE}",), Dimension.FRACTION, _LIGHT),
    Quantity.TENSOR_FRACTION: Metric(
        (f"sm__pipe_tensor_cycles_active.{_OF_ACTIVE}",), Dimension.FRACTION, "ComputeWorkloadAnalysis"
    ),
    Quantity.ACTIVE_CYCLES: Metric(("sm__cycles_active.avg",), Dimension.RATIO, _LIGHT),
    Quantity.OCCUPANCY: Metric((f"sm__warps_active.{_OF_ACTIVE}",), Dimension.FRACTION, "Occupancy"),
    Quantity.THEORETICAL_OCCUPANCY: Metric(
        ("sm__maximum_warps_per_active_cycle_pct",), Dimension.FRACTION, "Occupancy"
    ),
    Quantity.WAVES: Metric(("launch__waves_per_multiprocessor",), Dimension.RATIO, "LaunchStats"),
    Quantity.WARP_LATENCY: Metric(
        ("smsp__average_warp_latency_per_inst_issued.ratio",), Dimension.RATIO, "WarpStateStats"
    ),
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

# Blocks of one multiprocessor that a resource allows; the names are those of `hardware.occupancy`.
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
    """Metric names for `ncu --metrics`, besides what `SECTIONS` collect.

    Args:
        compute_capability: Of the device, as `"9.0"`; the names of most chips if unknown.
        quantities: All wanted ones by default.
    """
    names = []
    for quantity in quantities:
        metric = QUANTITIES[quantity]
        if metric.section in SECTIONS or (quantity in _SPLIT and compute_capability in _NO_DRAM_NAMES):
            continue
        names.append(
            metric.names[-1 if compute_capability in _OTHER_DRAM_NAMES and quantity in _SPLIT else 0]
        )
    return tuple(names)
