from __future__ import annotations

from opscope.analysis.measured_step import MeasuredStep, StepClockKind, UnrecordedTime
from opscope.analysis.summary import Summary
from opscope.model.measurement import Latency
from opscope.model.sidecar import StepKind
from opscope.report.markdown import render_markdown
from opscope.report.summary_json import stats_document
from opscope.report.sweep import SweepEntry, sweep_document, sweep_report


def entries(summary: Summary, config: dict[str, object], latency: Latency | None) -> list[SweepEntry]:
    files = {"stats": "profiling_stats_bs8_seq128.json"}
    return [
        SweepEntry("bs8_seq128", stats_document(summary, config, None, latency), files),
        SweepEntry("bs16_seq128", None, error="out of memory"),
    ]


def test_the_document_keeps_every_configuration(
    summary: Summary, config: dict[str, object], latency: Latency
) -> None:
    document = sweep_document(entries(summary, config, latency))
    done, failed = document["configurations"]
    assert (done["status"], failed["status"], failed["error"]) == ("complete", "failed", "out of memory")
    assert done["summary"]["total_cuda_time_ms"] == 10.0
    assert done["latency_ms"] == {"median": 5.0, "p5": 4.1, "p95": 5.9}
    assert done["throughput_sequences_per_s"] == 1_600.0
    assert done["top_operator"] == {
        "name": "aten::addmm",
        "self_cuda_time_ms": 6.0,
        "self_cpu_time_ms": 0.8,
        "fraction": 0.6,
    }
    assert done["files"]["stats"] == "profiling_stats_bs8_seq128.json"
    assert failed["summary"]["total_cuda_time_ms"] is None
    assert failed["top_operator"] is None


def test_the_report_shows_the_figures_and_the_failures(
    summary: Summary, config: dict[str, object], latency: Latency
) -> None:
    time = UnrecordedTime(4e6, 3.9e6, 4.2e6, 12, 0.96, 1, StepClockKind.DEVICE, StepKind.PERIOD)
    stepping = summary.having(measured_steps=(MeasuredStep(0, 9.5e6, 3.6e6, time),))
    markdown = render_markdown(sweep_report(entries(stepping, config, latency)))
    assert "# Profiling summary: bert, float32, cuda" in markdown
    assert "| bs8\\_seq128" not in markdown
    figures = "4.00 ms (3.90–4.20) | 90.0 % | 9.50 ms | 2.38× | 5.00 ms | 4.5 | 5.00 (4.10–5.90) | 1,600.0"
    assert f"| bs8_seq128 | {figures} |" in markdown
    assert "**failed**" in markdown
    assert "- `bs16_seq128`: out of memory" in markdown


def test_a_stats_file_of_version_1_is_kept(
    summary: Summary, config: dict[str, object], latency: Latency
) -> None:
    (entry, _) = entries(summary, config, latency)
    old = {key: value for key, value in (entry.stats or {}).items() if key != "step"}
    (record,) = sweep_document([SweepEntry("bs8_seq128", old)])["configurations"]
    assert (record["status"], record["step"]) == ("complete", None)
    markdown = render_markdown(sweep_report([SweepEntry("bs8_seq128", old)]))
    assert "| bs8_seq128 | – | – | 9.50 ms | – |" in markdown


def test_without_a_device_cpu_time_stands_in(cpu_summary: Summary, config: dict[str, object]) -> None:
    document = sweep_report([SweepEntry("bs1_seq8", stats_document(cpu_summary, config, None, None))])
    markdown = render_markdown(document)
    assert "CPU per step" in markdown
    assert "`aten::mm`" in markdown


def test_a_larger_batch_is_compared_where_nothing_else_differs(summary: Summary, latency: Latency) -> None:
    def told(*sizes: tuple[int, int]) -> str:
        runs = []
        for batch, length in sizes:
            config: dict[str, object] = {"batch_size": batch, "seq_len": length, "steps": batch}
            stats = stats_document(summary, config, None, latency, wall_time_ns_per_step=1e6 * batch * length)
            runs.append(SweepEntry(f"bs{batch}_seq{length}", stats))
        return render_markdown(sweep_report(runs))

    assert "as long for" not in told((1, 32), (4, 64))
    text = told((1, 32), (4, 64), (1, 64), (2, 32))
    assert "From batch size 1 to 4 a step takes 4.00× as long for 4.00× the sequences." in text
