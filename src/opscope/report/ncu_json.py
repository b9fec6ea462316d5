"""The document `opscope ncu --json` prints: every counter of every profiled launch, exact, names in full.

Its keys are a contract (`schema_version` 1); keys may be added, none changes its meaning. What was not
collected is null and named, with the metrics that would tell it.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from opscope._version import __version__
from opscope.analysis.counters import CountedKernel, CounterAnalysis
from opscope.report.analysis_json import finding_record
from opscope.report.json_export import from_json_text
from opscope.toolchain.ncu_report import QUANTITIES, GlobalAccess, KernelCounters

__all__ = ["NCU_SCHEMA_VERSION", "ncu_json"]

NCU_SCHEMA_VERSION = 1


def ncu_json(analysis: CounterAnalysis) -> dict[str, Any]:
    """The analysis of a report as JSON values; kernels in the order of the report."""
    report = analysis.report
    return {
        "schema_version": NCU_SCHEMA_VERSION,
        "opscope_version": __version__,
        "report": str(report.source),
        "ncu_version": report.ncu_version,
        "cuda_version": report.cuda_version,
        "command": report.command,
        "reader_version": report.reader_version,
        "recordings": list(analysis.recordings),
        "other_results": list(report.other_results),
        "kernels": [_kernel(kernel) for kernel in analysis.kernels],
        "findings": [finding_record(finding) for finding in analysis.findings],
    }


def _kernel(kernel: CountedKernel) -> dict[str, Any]:
    counters = kernel.counters
    return {
        "launch": counters.index,
        "name": kernel.name,
        "title": kernel.title,
        "family": kernel.decoded.family,
        "mangled_name": counters.mangled_name,
        "process": asdict(counters.process),
        "device": asdict(counters.device),
        "grid": counters.grid and list(counters.grid),
        "block": counters.block and list(counters.block),
        "registers_per_thread": counters.registers_per_thread,
        "shared_memory_bytes": counters.shared_memory_bytes,
        **{str(quantity): counters.values.get(quantity) for quantity in QUANTITIES},
        "global_loads": _global(counters.loads),
        "global_stores": _global(counters.stores),
        "bank_conflict_fraction": counters.shared.conflict_fraction,
        "occupancy": _occupancy(counters),
        "stall_fractions": counters.stall_fractions or None,
        "limited_by": kernel.limit,
        "recorded": _recorded(kernel),
        "min_bytes": kernel.min_bytes,
        "traffic_ratio": kernel.traffic_ratio,
        "no_traffic_ratio_because": kernel.no_ratio_reason,
        "sections": None if counters.sections is None else list(counters.sections),
        "replay_passes": counters.replay_passes,
        "not_collected": [
            {"quantity": quantity, "metrics": list(metric.names), "section": metric.section}
            for quantity, metric in counters.not_collected.items()
        ],
    }


def _global(access: GlobalAccess) -> dict[str, Any]:
    return {
        "sectors_per_request": access.sectors_per_request,
        "ideal_sectors_per_request": access.ideal_sectors_per_request,
    }


def _occupancy(counters: KernelCounters) -> dict[str, Any]:
    occupancy = counters.occupancy
    return {
        "theoretical": occupancy.theoretical,
        "achieved": occupancy.achieved,
        "limited_by": list(occupancy.limiters),
        "blocks_per_sm_by": dict(occupancy.block_limits) or None,
        "waves": occupancy.waves,
    }


def _recorded(kernel: CountedKernel) -> dict[str, Any] | None:
    """What the recording says of the launch; None without a recording."""
    if kernel.match is None:
        return None
    call = kernel.call
    return {
        "match": kernel.match,
        "match_meaning": kernel.match.meaning,
        "operators": list(kernel.operators),
        "launches": kernel.launches,
        "launches_per_step": kernel.launches_per_step,
        "median_duration_ns": kernel.recorded_ns,
        "call": call
        and {
            "operator": call.operator,
            "overload": call.overload,
            "attribution": call.attribution,
            "shapes": _parsed(call.shapes),
            "types": _parsed(call.types),
            "concrete": _parsed(call.concrete),
            "calls": call.calls,
            "activities_per_call": call.activities_per_call,
            "flop_count": call.cost.flop_count,
            "read_bytes": call.cost.read_bytes,
            "written_bytes": call.cost.written_bytes,
            "min_bytes": call.cost.min_bytes,
            "evidence": call.cost.evidence,
            "reason": call.cost.reason,
        },
    }


def _parsed(text: str | None) -> Any:
    return None if text is None else from_json_text(text)
