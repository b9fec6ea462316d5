"""The documents `opscope analyze --json` and `explain --json` print, and the stats file of a configuration.

All are made of one Summary: `SUMMARY_KEYS` says how its values read, in integer nanoseconds and with full
names; the stats file (`profiling_stats_bs{N}_seq{M}.json`, a published contract) has field names of its own
and times in milliseconds, and without a device ranks operators by CPU time. Their keys are contracts
(`schema_version`); keys may be added, none changes its meaning within one version. Every key is present in
every document; what is not known is null, and every fact of provenance has a grade beside it. From version 1
to 2 findings' `estimated_gain_ms_per_step` became `estimated_gain_ns_per_step`, and `step` came.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from opscope.analysis.collectives import CollectiveTotal, RankDifference, Straggler
from opscope.analysis.counters import Improvement, OperatorImprovement
from opscope.analysis.explanation import ExplainedKernel, Explanation, cuda_files
from opscope.analysis.launch_quality import ExplainedLaunch
from opscope.analysis.measured_step import MeasuredStep, UnrecordedTime
from opscope.analysis.program.places import LineTotal, ProgramTotals
from opscope.analysis.provenance import KernelFacts, NativeFunctionUse
from opscope.analysis.roofline import CallEfficiency, CostCoverage, Roofline
from opscope.analysis.step_model import StepExecution
from opscope.analysis.summary import DeviceTime, Summary
from opscope.analysis.timeline.values import StepStatistics, Timeline, TimePartition, WaitingCall
from opscope.analysis.totals import CategoryTotal, KernelTotal, OperatorTotal, RangeTotal
from opscope.hardware.limits import DeviceLimits, Limit
from opscope.hardware.occupancy import Waves
from opscope.launches.facts import LaunchGeometry
from opscope.launches.launch_explanation import Statement
from opscope.model.benchmark import Latency
from opscope.model.origin import SourceLocation
from opscope.model.sidecar import Environment
from opscope.report.explanation import SourceReader
from opscope.report.json_encoding import Keys, encode, from_json_text, parsed, versions
from opscope.report.operators import rank_fraction, ranked_findings, ranked_operators
from opscope.report.provenance import explained_launches
from opscope.report.ranks import rank_steps
from opscope.units import NS_PER_S, ns_to_ms

ANALYSIS_SCHEMA_VERSION = 4
EXPLANATION_SCHEMA_VERSION = 1
STATS_SCHEMA_VERSION = 2

_NO_LOCATION = dict.fromkeys(("file", "line", "end_line", "url", "grade", "file_grade", "line_grade"))
_NO_ROOFLINE = Roofline(0, 0, held_ns=0)

SUMMARY_KEYS: dict[type, Keys] = {
    CallEfficiency: Keys(
        "call_id operator overload shapes types calls device_ns=roofline.device_ns gap_ns kernels "
        "read_bytes=cost.read_bytes written_bytes=cost.written_bytes cost_evidence=cost.evidence "
        "flop_source=cost.flop_source unknown_because=cost.reason *roofline",
        shapes=parsed("shapes"),
        types=parsed("types"),
    ),
    CollectiveTotal: Keys(
        "process_group description=group_description parallelism parallelism_evidence name sequence calls "
        "bytes=size_bytes ranks last_rank wait_ns transfer_ns exposed_ns algorithm_bytes_per_s "
        "bus_bytes_per_s link link_fraction last_rank_was_doing=meanwhile",
        parallelism=lambda total: total.parallelism and total.parallelism.kind,
        parallelism_evidence=lambda total: total.parallelism and total.parallelism.evidence,
    ),
    CostCoverage: Keys(
        uncosted=lambda coverage: [
            {"name": name, "device_ns": ns, "reason": reason} for name, ns, reason in coverage.uncosted
        ]
    ),
    DeviceLimits: Keys(
        "device=name memory_bytes_per_s=memory l2_bytes_per_s=l2 peaks_flop_per_s=peaks launch_ns"
    ),
    DeviceTime: Keys("... activities=activity_count"),
    ExplainedLaunch: Keys(
        "kernel shapes grid=geometry.grid block=geometry.block family=explanation.family "
        "launch_explained=explanation.is_predicted waves=explanation.waves statements=explanation.statements",
        shapes=parsed("shapes"),
    ),
    Improvement: Keys("known needs_counters"),
    KernelTotal: Keys(
        "name kind calls total_ns min_ns max_ns fraction size_bytes decoded source",
        decoded=lambda kernel: _decoded(kernel.facts),
        source=lambda kernel: _kernel_source(kernel.facts),
    ),
    LaunchGeometry: Keys("... -example_operator_id"),
    Limit: Keys("value=per_s ..."),
    LineTotal: Keys("file line kind ..."),
    NativeFunctionUse: Keys(
        "name overload kind schema dispatch_key cuda_function structured_delegate tags yaml_line "
        "entry_grade=overload_grade *place stub stub_implementation=stub_location details calls "
        "self_device_ns",
        place=lambda function: function.location or _NO_LOCATION,
    ),
    OperatorImprovement: Keys(
        "kernel topics ncu_command=command", topics=lambda found: {one.topic: one for one in found.topics}
    ),
    MeasuredStep: Keys("recorded_ns unrecorded_ns host_stretch busy_fraction recorder_idle_ns"),
    ProgramTotals: Keys("module_ns line_ns modules lines"),
    RankDifference: Keys(
        "name extra_ns_per_step extra_device_ns_per_step=device_ns extra_host_ns_per_step=host_ns "
        "extra_calls_per_step=calls",
        extra_ns_per_step=lambda one: max(one.device_ns, one.host_ns),
    ),
    RangeTotal: Keys(
        "name calls device_ns tokens engine phase requests host_ns device_fraction kernels layers "
        "device_ns_per_token device_ns_per_call device_ns_per_layer"
    ),
    Roofline: Keys(
        "flop_count min_bytes arithmetic_intensity achieved_flop_per_s achieved_bytes_per_s attainable_ns "
        "roofline_fraction=fraction bound bound_ns costed_ns held_ns cache_resident_ns excess_ns data_type "
        "tensor_cores"
    ),
    SourceLocation: Keys("file line end_line url grade file_grade line_grade"),
    Statement: Keys("about=heading text grade"),
    StepExecution: Keys("... -critical_path -missing"),
    StepStatistics: Keys("... -left_out"),
    Straggler: Keys("rank lag_ns_per_step late_steps steps operators=differences"),
    Summary: Keys(
        "device_time_ns attributed_ns set_aside_ns attributed_fraction busy_fraction cpu_time_ns window_ns "
        "kernel_launches activities=activity_count operators=operator_calls operator_names steps devices",
        steps=lambda summary: len(summary.steps),
    ),
    WaitingCall: Keys("... -call_ids"),
    Waves: Keys("blocks slots count tail_fraction"),
    Timeline: Keys("waits launch_latency=latencies queue_depth=queues steps host skews"),
    TimePartition: Keys(
        "trace_id rank device window ... idle_by_cause copy_ns communication_ns longest_gaps"
    ),
}

_STATS_GEOMETRY = "grid block registers_per_thread shared_memory_bytes occupancy=occupancy_estimate"
_STATS_LONGEST = Keys(_STATS_GEOMETRY)

_STATS_KEYS: dict[type, Keys] = {
    **SUMMARY_KEYS,
    CategoryTotal: Keys("cuda_time_ms=device_ns cpu_time_ms=cpu_ns fraction calls"),
    DeviceTime: Keys("device name span_ms=span_ns busy_ms=busy_ns idle_ms=idle_ns"),
    KernelTotal: Keys(
        "name kind decoded source calls cuda_time_ms=total_ns cuda_time_fraction=fraction min_ms=min_ns "
        "max_ms=max_ns size_bytes",
        decoded=lambda kernel: _decoded(kernel.facts),
        source=lambda kernel: _kernel_source(kernel.facts),
    ),
    LaunchGeometry: Keys(f"{_STATS_GEOMETRY} calls cuda_time_ms=total_ns"),
    MeasuredStep: Keys(
        "recorded_ms=recorded_ns unrecorded_ms host_stretch busy_fraction recorder_idle_ms=recorder_idle_ns",
        unrecorded_ms=attrgetter("unrecorded_ns"),
    ),
    UnrecordedTime: Keys(
        "median low high ...",
        median=lambda time: ns_to_ms(time.median),
        low=lambda time: ns_to_ms(time.low),
        high=lambda time: ns_to_ms(time.high),
    ),
}


def analysis_json(summary: Summary, *, top: int | None = 10) -> dict[str, Any]:
    operators = summary.operators if top is None else ranked_operators(summary)[:top]
    efficiency, step = summary.efficiency, summary.typical_step
    keys = Keys(
        "trace traces ranks torch_version torch_version_grade torch_version_reason step=measured_step "
        "recording summary unattributed=unattributed_ns ranked_by top_operators categories engine ranges "
        "graphs kernels counters steps limits=efficiency.limits cost_coverage=efficiency.coverage calls "
        "time_partition timeline critical_path simulation=typical_step host_lines best_set program accuracy "
        "findings",
        trace=lambda _: summary.traces[0] if summary.traces else None,
        recording=lambda _: {
            "usable": summary.is_usable,
            "defects": [
                {"code": one.code.removeprefix("recording."), **one.evidence} for one in summary.defects
            ],
        },
        summary=lambda _: summary,
        ranked_by=lambda _: "self_device_ns" if summary.has_device else "self_cpu_ns",
        top_operators=lambda _: _operators(summary, operators),
        kernels=lambda _: [
            _kernel(kernel, efficiency.kernels.get((None, kernel.name))) for kernel in summary.kernels
        ],
        calls=lambda _: efficiency.calls[:top],
        time_partition=lambda _: summary.timeline.partitions if summary.is_usable else (),
        timeline=lambda _: summary.timeline if summary.is_usable else None,
        critical_path=lambda _: [] if step is None else step.critical_path[:top],
        program=lambda _: replace(summary.program, lines=summary.program.lines[:top]),
        findings=ranked_findings,
    )
    document = {**versions(ANALYSIS_SCHEMA_VERSION), **keys.record(summary, SUMMARY_KEYS)}
    if len(summary.traces) > 1:
        totals = summary.collectives.each if top is None else summary.collectives.totals
        document |= encode({"collectives": totals, "straggler": summary.straggler}, SUMMARY_KEYS)
        document["rank_steps"] = rank_steps(summary, each=top is None)
    return document


def _operators(summary: Summary, operators: Iterable[OperatorTotal]) -> list[dict[str, Any]]:
    keys = Keys(
        "name overload category calls self_device_ns total_device_ns self_device_fraction "
        "total_device_fraction self_cpu_ns total_cpu_ns rank_fraction kernel_launches input_shapes "
        "native_function source *roofline improvement called_operators kernels",
        rank_fraction=lambda operator: rank_fraction(summary, operator),
        input_shapes=_shapes,
        native_function=_function,
        roofline=lambda operator: summary.efficiency.operators.get(operator.name, _NO_ROOFLINE),
        improvement=lambda operator: summary.improvements.get(operator.name),
        called_operators=lambda operator: [
            {"name": name, "calls": calls, "total_device_ns": total_ns}
            for name, calls, total_ns in operator.called_operators
        ],
        kernels=lambda operator: [
            {
                **_kernel(kernel, summary.efficiency.kernels.get((operator.name, kernel.name))),
                "parallelism": explained_launches(summary, operator.name, kernel.name),
            }
            for kernel in operator.kernels
        ],
    )
    return [keys.record(operator, SUMMARY_KEYS) for operator in operators]


def _shapes(operator: OperatorTotal) -> list[dict[str, Any]]:
    return [{"shapes": from_json_text(shapes), "calls": calls} for shapes, calls in operator.input_shapes]


def _function(operator: OperatorTotal) -> dict[str, Any] | None:
    """The native function most of an operator's device time reached, with the other ones in `others`."""
    if not operator.native_functions:
        return None
    first, *others = encode(operator.native_functions, SUMMARY_KEYS)
    return {**first, "others": others}


def _kernel(
    kernel: KernelTotal, roofline: Roofline | None = None, keys: Mapping[type, Keys] = SUMMARY_KEYS
) -> dict[str, Any]:
    """One kernel, with what its name states, where its code lies and how far it is from the limit."""
    longest: dict[str, Any] = {}  # in the stats file, the configuration it spent most time in
    if keys is _STATS_KEYS:
        longest = _STATS_LONGEST.record(kernel.configurations[0], keys)
    limited = encode(roofline or _NO_ROOFLINE, keys)
    return {**encode(kernel, keys), **limited, **longest, "launches": encode(kernel.geometries, keys)}


def _decoded(facts: KernelFacts | None) -> dict[str, Any] | None:
    """What a kernel's name states, each field with its grade; null for a name nothing is known of."""
    if facts is None:
        return None
    fields = {name: value for name, value in facts.fields.items() if name != "template_arguments"}
    return {
        "function": facts.function,
        "category": facts.category,
        **{"library": None, "family": None, "architecture": None, "tensor_core": None, **fields},
        "template_arguments": [
            {"parameter": parameter, "argument": argument} for parameter, argument in facts.template_arguments
        ],
        "grades": dict(facts.grades),
    }


_SOURCE_KEYS = Keys(
    "unit units unit_grade binary *place template generated triton",
    unit=lambda facts: facts.units[0] if len(facts.units) == 1 else None,
    place=lambda facts: facts.location or _NO_LOCATION,
    triton=lambda facts: facts.triton or None,
)


def _kernel_source(facts: KernelFacts | None) -> dict[str, Any] | None:
    """A kernel's translation unit and where its code lies; null if neither is known."""
    if facts is None or not (facts.units or facts.location or facts.triton):
        return None
    return _SOURCE_KEYS.record(facts, SUMMARY_KEYS)


def explanation_json(explanation: Explanation, read_source: SourceReader | None = None) -> dict[str, Any]:
    """The explanation as JSON values; with `sources` if a reader of source lines is given."""
    summary = explanation.summary
    keys = Keys(
        "name overload subject torch_version torch_version_grade torch_version_reason is_recorded "
        "native_functions=functions derivatives operators kernels",
        is_recorded=lambda _: None if summary is None else explanation.is_recorded,
        operators=lambda _: [] if summary is None else _operators(summary, explanation.operators),
        kernels=lambda _: [_explained_kernel(use, explanation) for use in explanation.kernels],
    )
    document = {**versions(EXPLANATION_SCHEMA_VERSION), **keys.record(explanation, SUMMARY_KEYS)}
    if read_source is not None:
        document["sources"] = [
            {**encode(location, SUMMARY_KEYS), "lines": read_source(location)}
            for location in explanation.locations
        ]
    return document


def _explained_kernel(use: ExplainedKernel, explanation: Explanation) -> dict[str, Any]:
    facts, summary = use.facts, explanation.summary
    record = {"name": facts.name, "decoded": _decoded(facts), "source": _kernel_source(facts)}
    return {
        **(record if use.total is None else _kernel(use.total)),
        "launched_by": [
            {"operator": operator, "calls": part.calls, "total_ns": part.total_ns}
            for operator, part in use.operators
        ],
        "parallelism": [] if summary is None else explained_launches(summary, explanation.owner, facts.name),
    }


def stats_document(
    summary: Summary,
    config: Mapping[str, Any],
    environment: Environment | None,
    benchmark: Latency | None,
    *,
    wall_time_ns_per_step: float | None = None,
) -> dict[str, Any]:
    """The stats file of one configuration. Times cover all recorded steps."""
    operators, kernels = ranked_operators(summary), summary.efficiency.kernels
    keys = Keys(
        "config environment step=measured_step summary top_aten_operators operator_categories "
        "native_function_mapping cuda_kernels unattributed limits=efficiency.limits "
        "cost_coverage=efficiency.coverage time_partition=timeline.partitions accuracy benchmark findings",
        config=lambda _: config,
        environment=lambda _: environment,
        summary=lambda _: _stats_totals(summary, wall_time_ns_per_step),
        top_aten_operators=lambda _: _stats_operators(summary, operators),
        operator_categories=lambda _: {
            category.category: category for category in summary.categories if not category.without_operator
        },
        native_function_mapping=lambda _: {operator.name: _function(operator) for operator in operators},
        cuda_kernels=lambda _: [
            _kernel(kernel, kernels.get((None, kernel.name)), _STATS_KEYS) for kernel in summary.kernels
        ],
        unattributed=lambda _: {reason: ns_to_ms(ns) for reason, ns in summary.unattributed_ns.items()},
        benchmark=lambda _: benchmark and _latency_record(benchmark, config.get("batch_size")),
        findings=ranked_findings,
    )
    return {**versions(STATS_SCHEMA_VERSION), **keys.record(summary, _STATS_KEYS)}


def _latency_record(benchmark: Latency, batch_size: int | None) -> dict[str, Any]:
    """A latency with all its samples; throughput is null without a batch size."""
    return {
        "latency_ms": {
            "median": ns_to_ms(benchmark.median_ns),
            "p5": ns_to_ms(benchmark.p5_ns),
            "p95": ns_to_ms(benchmark.p95_ns),
            "samples": [ns_to_ms(sample_ns) for sample_ns in benchmark.samples_ns],
        },
        "clock": benchmark.clock,
        "warmup_count": benchmark.warmup_count,
        "throughput_sequences_per_s": (
            batch_size * NS_PER_S / benchmark.median_ns if batch_size and benchmark.median_ns else None
        ),
    }


def _stats_totals(summary: Summary, wall_ns_per_step: float | None) -> dict[str, Any]:
    counted = summary.counted_steps
    if wall_ns_per_step is None and counted:
        wall_ns_per_step = sum(step.duration_ns for step in counted) / len(counted)

    def mean_ms(attribute: str) -> float | None:
        whole_ns = sum(getattr(step, attribute) for step in counted)
        return ns_to_ms(whole_ns) / len(counted) if counted else None

    keys = Keys(
        "total_cuda_time_ms=device_time_ns total_cpu_time_ms=cpu_time_ns cuda_time_ms_per_step "
        "cpu_time_ms_per_step wall_time_ms_per_step gpu_busy_fraction=busy_fraction kernel_launches "
        "device_activities=activity_count operator_calls steps attributed_cuda_time_ms=attributed_ns "
        "attributed_fraction source_mapped_fraction devices",
        cuda_time_ms_per_step=lambda _: mean_ms("device_ns"),
        cpu_time_ms_per_step=lambda _: mean_ms("cpu_ns"),
        wall_time_ms_per_step=lambda _: None if wall_ns_per_step is None else ns_to_ms(wall_ns_per_step),
        steps=lambda _: len(summary.steps),
    )
    return keys.record(summary, _STATS_KEYS)


def _stats_operators(summary: Summary, operators: Sequence[OperatorTotal]) -> list[dict[str, Any]]:
    cpu_ns, efficiency = summary.cpu_time_ns, summary.efficiency
    # The file of its device code: an operator that launched nothing has none.
    files = {one.name: one.source.file for one in operators if one.source and one.self_device_ns}
    if not summary.has_device:
        files = cuda_files(summary, operators)
    keys = Keys(
        "name overload cuda_time_total_ms=total_device_ns self_cuda_time_ms=self_device_ns "
        "cpu_time_total_ms=total_cpu_ns self_cpu_time_ms=self_cpu_ns calls kernel_launches "
        "cuda_time_fraction=self_device_fraction cpu_time_fraction category input_shapes native_function "
        "potential_cuda_file source kernels *roofline",
        cpu_time_fraction=lambda operator: operator.self_cpu_ns / cpu_ns if cpu_ns else None,
        input_shapes=_shapes,
        native_function=_function,
        potential_cuda_file=lambda operator: files.get(operator.name),
        source=lambda operator: (
            None
            if operator.source is None
            else {**encode(operator.source, _STATS_KEYS), "evidence": operator.source.grade}
        ),
        kernels=lambda operator: [
            _kernel(kernel, efficiency.kernels.get((operator.name, kernel.name)), _STATS_KEYS)
            for kernel in operator.kernels
        ],
        roofline=lambda operator: efficiency.operators.get(operator.name, _NO_ROOFLINE),
    )
    return [keys.record(operator, _STATS_KEYS) for operator in operators]
