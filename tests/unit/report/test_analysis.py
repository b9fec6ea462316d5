"""Every report on a Summary and its JSON: hand-made ones in full, of others the lines that are different.

`--update-golden` writes what is expected, in `expected/`: read the difference before you commit it.
"""

import difflib
import re

from msgspec.structs import replace

from opscope._version import __version__
from opscope.analysis.counters import Improvement, OperatorImprovement, Topic
from opscope.analysis.launch_quality import TensorCoreUse
from opscope.analysis.measured_step import MeasuredStep, StepClockKind, UnrecordedTime
from opscope.analysis.program.places import ProgramTotals
from opscope.analysis.roofline import Bound, CallEfficiency, CostCoverage, Efficiency, Roofline
from opscope.analysis.summary import Summary
from opscope.analysis.timeline import values
from opscope.hardware.devices import DataType
from opscope.hardware.limits import DeviceLimits, Limit, LimitEvidence
from opscope.model.finding import Finding, Severity
from opscope.model.session import Session
from opscope.model.sidecar import StepKind, StepPlace
from opscope.operators.effects import CallCost, CostEvidence, FlopSource
from opscope.report.analysis import recording_document
from opscope.report.document import numbered
from opscope.report.json_encoding import to_json
from opscope.report.markdown import render_markdown
from opscope.report.summary_json import analysis_json, stats_document

ADDMM = Roofline(
    device_ns=6_000_000, costed_ns=6_000_000, flop_count=240_000_000_000, min_bytes=60_000_000,
    attainable_ns=4_000_000.0, bound=Bound.COMPUTE,
    bound_ns={Bound.COMPUTE: 5_000_000, Bound.LATENCY: 1_000_000}, data_type=DataType.FP32,
    tensor_cores=TensorCoreUse.ELIGIBLE,
)  # fmt: skip
CALL = CallEfficiency(
    0, "aten::addmm", "", "[[768],[1024,768],[768,768]]", calls=6, kernels=("gemm",), roofline=ADDMM,
    cost=CallCost(
        40_000_000_000, FlopSource.REGISTRY, 8_000_000, 2_000_000, DataType.FP32, CostEvidence.SHAPE_RULES
    ),
)  # fmt: skip
EFFICIENCY = Efficiency(
    DeviceLimits(
        "NVIDIA H200",
        memory=Limit(4.28e12, LimitEvidence.MEASURED, "torch copy_ of 2 GiB"),
        peaks={DataType.FP32: Limit(67e12, LimitEvidence.DATASHEET, "H200 datasheet")},
    ),
    CostCoverage(0.9, 0.6, (("aten::_unique2", 999_999, "its results depend on the data"),)),
    {"aten::addmm": ADDMM},
    {("aten::addmm", "gemm"): ADDMM},
    (CALL,),
)
GAP = values.IdleGap(5, 900_000, values.IdleCause.SYNCHRONIZATION, 3, "aten::item", "train.py:7 step")
WAIT = values.WaitingCall("cudaStreamSynchronize", "aten::item", "train.py:7 step", 2, 1_800_000, 1_500_000)
UNRECORDED = UnrecordedTime(
    5_500_000.0, 5_400_000.0, 5_700_000.0, 12, 0.96, 2, StepClockKind.DEVICE, StepKind.PERIOD
)
STEP = MeasuredStep(0, 9_500_000.0, 5_000_000.0, UNRECORDED)
PARTITION = values.TimePartition(
    0, None, 0, 12_000_000, 8_500_000, 1_000_000, 0, 2_500_000,
    {values.IdleCause.SYNCHRONIZATION: 1_500_000, values.IdleCause.HOST_LAUNCH: 1_000_000}, (GAP,),
)  # fmt: skip
TIMELINE = values.Timeline(
    (PARTITION,),
    (WAIT,),
    (values.LaunchLatency(0, 0, 9, 5_000, 9_000, 1),),
    (values.QueueDepth(0, 0, 2.5, 9, 0.25),),
    (values.StepStatistics(0, 2, 9_500_000, 9_500_000, 9_000_000, 10_000_000),),
    (values.HostTime(0, 2, 9_500_000, 4_750_000, 3_000_000, 4.5, 1_000_000, "counted"),),
)
TWO_DEVICES = replace(
    TIMELINE,
    partitions=(replace(PARTITION, rank=0), replace(PARTITION, trace_id=1, rank=1, device=1)),
    latencies=(*TIMELINE.latencies, values.LaunchLatency(1, 1, 9, 7_000, 8_000, 0)),
    queues=(*TIMELINE.queues, values.QueueDepth(1, 1, 1.5, 4, 0.5)),
    steps=(*TIMELINE.steps, values.StepStatistics(1, 5, 9_000_000, 9_000_000, 8_000_000, 99_000_000, (4,))),
    host=(*TIMELINE.host, values.HostTime(1, 5, 9_000_000, 4_000_000, 2_000_000, 7.0)),
)
ADVICE = (
    Finding(
        "advice.tf32_off", Severity.WARNING, "60 % of device time is in fp32 products.", "Allow TF32.",
        evidence={"device_ns": 6_000_000, "share_fraction": 0.6, "operators": ["aten::addmm"]},
        estimated_gain_ns_per_step=2_000_000.0, gain_basis="products at their present share of the peak",
        change="torch.backends.cuda.matmul.allow_tf32 = True",
    ),
    Finding("advice.note", Severity.INFO, "A note without a gain."),
)  # fmt: skip
TOPICS = (
    Improvement(Topic.OCCUPANCY, "12 % of the warps", needs_counters=True),
    Improvement(Topic.COALESCING, None, needs_counters=True),
    Improvement(Topic.FUSION, None, needs_counters=False),
)
UNCOSTED = (
    ("aten::mm", 3_000_000, "no argument shapes were recorded"),
    ("my::op", 2_000_000, "my::op is no operator of torch"),
    ("aten::add", 1_000_000, "no argument shapes were recorded"),
    ("aten::mul", 1_000_000, "no argument shapes were recorded"),
)


def full(summary):
    """The Summary with all that can be known of it."""
    improvement = OperatorImprovement("gemm", TOPICS, "ncu --kernel-name regex:gemm python s.py")
    return summary.having(
        step_model=None,
        efficiency=EFFICIENCY,
        timeline=TIMELINE,
        measured_steps=(STEP,),
        advice=ADVICE,
        improvements={"aten::addmm": improvement},
    )


def efficiency(**fields):
    return lambda summary: full(summary).having(efficiency=replace(EFFICIENCY, **fields))


def call(**fields):
    return efficiency(calls=(replace(CALL, **fields),))


def timeline(summary, timeline, **fields):
    return full(summary).having(timeline=timeline, **fields)


def stepping(summary, **fields):
    step = replace(STEP, unrecorded_ns=replace(UNRECORDED, **fields))
    return full(summary).having(measured_steps=(step,))


def findings(*messages, **fields):
    found = tuple(
        Finding("trace.fact", Severity.INFO, text, trace_id=one) for one, text in enumerate(messages)
    )
    return lambda summary: summary.having(findings=found, **fields)


def of_one_trace(summary):
    gaps = tuple(
        Finding("trace.gap", Severity.INFO, f"Device {one} has a gap.", trace_id=0) for one in (0, 1)
    )
    return summary.having(findings=gaps)


TWO_TRACES = {"traces": ("a.json", "b.json"), "ranks": (0, 1)}
OF_A_DATASHEET = replace(EFFICIENCY.limits, memory=Limit(4.8e12, LimitEvidence.DATASHEET, "datasheet"))
NOTHING = Summary(
    Session(),
    accuracy=None, torch_version=None, torch_version_grade=None, torch_version_reason=None, accounts={},
    efficiency=Efficiency(), limits_reason=None, improvements={}, timeline=values.Timeline(),
    program=ProgramTotals(),
    operators=(), kernels=(), categories=(), findings=(), quality=(), unattributed_ns={},
    traces=(), ranks=(), has_device=False, operator_calls=0, operator_names=0, window_ns=None, devices=(),
    steps=(), device_time_ns=0, attributed_ns=0, cpu_time_ns=0, kernel_launches=0, activity_count=0,
)  # fmt: skip

# What is different: of the plain Summary or of the one that knows everything.
OF_THE_PLAIN = {
    "everything is known": full,
    "figures do not add up": lambda summary: summary.having(unattributed_ns={"before_window": 1}),
    "all is attributed": lambda summary: summary.having(unattributed_ns={}),
    "no findings": lambda summary: summary.having(findings=()),
    "no advice was found": lambda summary: summary.having(advice=()),
    "several traces share a finding": findings(*["Absent: rank."] * 8),
    "findings of two traces differ in figures": findings(
        "0.9 % of time (2 activities) in sm90_gemm.",
        "12.5 % of time (1,087 activities) in sm90_gemm.",
        **TWO_TRACES,
    ),
    "findings of one trace": of_one_trace,
    "a finding of one rank": findings("9 bytes lost.", **TWO_TRACES),
    "a finding of one trace": findings("9 bytes lost.", traces=("a.json", "b.json"), ranks=(None, None)),
    "shapes that are no JSON": lambda summary: summary.having(
        operators=(replace(summary.operators[0], input_shapes=(("[[1,", 1),)), *summary.operators[1:])
    ),
}
OF_THE_FULL = {
    "limits of one kind": efficiency(limits=OF_A_DATASHEET),
    "no limits": efficiency(limits=None),
    "unknown costs by reason": efficiency(coverage=CostCoverage(0.1, 0.1, UNCOSTED)),
    "equal shapes": call(shapes="[[2,3],[2,3],[4]]"),
    "lists of shapes": call(shapes="[[[2],[3]],[[2],[3]],[[5]]]"),
    "many shapes": call(shapes="[[1],[2],[3],[4],[5],[5]]"),
    "no shapes": call(shapes=None),
    "a call of no recorded operator": call(attribution="before_window"),
    "no steps": lambda summary: timeline(summary, replace(TIMELINE, steps=()), steps=()),
    "few unrecorded steps": lambda summary: stepping(summary, samples=3, coverage=0.75),
    "steps after the recording only": lambda summary: stepping(summary, place=StepPlace.AFTER),
    "one unrecorded step": lambda summary: stepping(summary, samples=1, coverage=0.0),
    "a device busier than the step is long": lambda summary: stepping(summary, high=4_700_000.0),
    "several gains": lambda summary: full(summary).having(advice=(ADVICE[0], *ADVICE)),
    "two devices": lambda summary: timeline(summary, TWO_DEVICES, **TWO_TRACES),
    "lines and steps are not known": lambda summary: timeline(
        summary,
        replace(
            TIMELINE,
            partitions=(replace(PARTITION, longest_gaps=(replace(GAP, line=None, step=None),)),),
            waits=(replace(WAIT, line=None, copy="Memcpy DtoH (Device -> Pageable)"),),
        ),
    ),
}


def reports(summary, *, top=10):
    """All that is printed and written of a Summary."""
    return "\n".join(
        (
            render_markdown(recording_document(summary, top=top)),
            render_markdown(numbered(recording_document(summary, top=top, is_full=True))),
            to_json(analysis_json(summary, top=top)).replace(f'"{__version__}"', '"VERSION"'),
        )
    )


def difference(before, after):
    """The lines that are left out and those that are added."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "", "", "", "", 0)
    return "\n".join(line for line in lines if not re.match(r"---|\+\+\+|@@", line))


def test_reports_of_a_plain_summary(summary, expect):
    expect("plain.txt", reports(summary))


def test_reports_without_a_device(cpu_summary, expect):
    said = Finding("trace.no_device_activity", Severity.WARNING, "No device activity was recorded.")
    told = reports(cpu_summary.having(findings=(said,)))
    expect(
        "cpu.txt",
        f"{reports(cpu_summary)}\n# That is said already\n{difference(reports(cpu_summary), told)}\n",
    )


def test_reports_of_nothing(expect):
    expect("nothing.txt", reports(NOTHING))


def test_what_is_different(summary, expect):
    plain, known = reports(summary), reports(full(summary))
    told = [f"# {name}\n{difference(plain, reports(of(summary)))}\n" for name, of in OF_THE_PLAIN.items()]
    told += [f"# {name}\n{difference(known, reports(of(summary)))}\n" for name, of in OF_THE_FULL.items()]
    told.append(f"# one operator\n{difference(plain, reports(summary, top=1))}\n")
    expect("differences.txt", "\n".join(told))


def test_the_report_and_the_stats_file_of_a_configuration(summary, config, environment, latency, expect):
    def stats(*given, **fields):
        return to_json(stats_document(*given, **fields)).replace(f'"{__version__}"', '"VERSION"')

    report = render_markdown(
        numbered(
            recording_document(summary, is_full=True, config=config, environment=environment, latency=latency)
        )
    )
    file = stats(full(summary), config, environment, latency)
    unmeasured = stats(full(summary), config, environment, None, wall_time_ns_per_step=7e6)
    without_size = stats(full(summary), {**config, "batch_size": None}, environment, latency)
    told = (difference(file, unmeasured), difference(file, without_size))
    expect("configuration.txt", "\n".join((report, file, *told)) + "\n")


def test_the_stats_file_without_a_device(cpu_summary, expect):
    stats = stats_document(cpu_summary, {"device": "cpu"}, None, None)
    expect("cpu_stats.txt", to_json(stats).replace(f'"{__version__}"', '"VERSION"'))
