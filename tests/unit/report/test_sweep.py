from opscope.analysis.measured_step import MeasuredStep, StepClockKind, UnrecordedTime
from opscope.model.sidecar import StepKind
from opscope.report.summary_json import stats_document
from opscope.report.sweep import sweep_document, sweep_json, sweep_record

from .conftest import text_of


def entries(summary, config, latency):
    files = {"stats": "profiling_stats_bs8_seq128.json"}
    return [
        sweep_record("bs8_seq128", stats_document(summary, config, None, latency), files),
        sweep_record("bs16_seq128", None, error="out of memory"),
    ]


def test_reports(summary, cpu_summary, config, latency, expect):
    time = UnrecordedTime(4e6, 3.9e6, 4.2e6, 12, 0.96, 1, StepClockKind.DEVICE, StepKind.PERIOD)
    stepping = summary.having(measured_steps=(MeasuredStep(0, 9.5e6, 3.6e6, time),))
    version_1 = stats_document(summary, config, None, latency)
    del version_1["step"]

    sweeps = {
        "figures and failures": entries(stepping, config, latency),
        "a stats file of version 1": [sweep_record("bs8_seq128", version_1)],
        "without a device": [sweep_record("bs1_seq8", stats_document(cpu_summary, config, None, None))],
    }
    expect("sweep.txt", text_of({name: sweep_document(one) for name, one in sweeps.items()}))
    (record,) = sweep_json(sweeps["a stats file of version 1"])["configurations"]
    assert (record["status"], record["step"]) == ("complete", None)
