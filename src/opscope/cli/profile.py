"""`opscope profile`: profile a workload over batch sizes and sequence lengths.

The stats file is written last, so a configuration that has one is complete. Imports torch only through
capture and workloads, which do so when a workload is built.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from opscope.benchmarking.timer import measure_latency
from opscope.capture.calls import Configuration, run_configuration
from opscope.capture.cycle import ACTIVE_STEPS
from opscope.cli import console
from opscope.cli.app import EXIT_ERROR, EXIT_INTERRUPTED
from opscope.errors import OpscopeError
from opscope.model.benchmark import LatencyMeasure
from opscope.model.files import write_text
from opscope.model.sidecar import sidecar_path
from opscope.report.analysis import recording_document
from opscope.report.document import numbered
from opscope.report.json_encoding import write_json
from opscope.report.summary_json import stats_document
from opscope.report.sweep import Record, sweep_document, sweep_json, sweep_record
from opscope.results import load, summarize
from opscope.units import NS_PER_MS, format_duration
from opscope.workloads.target import resolve

_Sizes = Annotated[tuple[int, ...], Parameter(consume_multiple=True, validator=Number(gte=1))]
_Steps = Annotated[int, Parameter(validator=Number(gte=1))]


@dataclass(frozen=True)
class _Task:
    configuration: Configuration
    recording: Mapping[str, Any]  # arguments of a Profiler
    output_dir: Path
    measure: LatencyMeasure | None
    top: int | None

    @property
    def files(self) -> dict[str, Path]:
        """Where its results lie, by role; the names are a published contract."""
        name, label = self.configuration.spec.name.rpartition(":")[2], self.configuration.label
        stem = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "workload"
        return {
            "stats": self.output_dir / f"profiling_stats_{label}.json",
            "report": self.output_dir / f"kernel_analysis_report_{label}.md",
            "trace": self.output_dir / f"{stem}_trace_{label}.json",
        }

    @property
    def all_files(self) -> list[Path]:
        return [*self.files.values(), sidecar_path(self.files["trace"])]

    def run(self) -> dict[str, Any]:
        """Record, report and time it; what its stats file says."""
        files, of = self.files, self.configuration
        # Should this run fail, the results of an older one must not stand beside its trace.
        for stale in self.all_files:
            stale.unlink(missing_ok=True)
        run = run_configuration(
            of,
            self.output_dir,
            trace_name=files["trace"].name,
            measure=self.measure,
            overwrite=True,
            **self.recording,
        )
        sidecar = run.cycle.sidecar
        with load(str(run.cycle.trace_path)) as session:
            summary = summarize(session)
        config = {
            **of.settings, **asdict(of.spec.options), **self.recording,
            "parameters": run.parameter_count, "steps": sidecar.steps,
        }  # fmt: skip
        report = recording_document(
            summary,
            top=self.top,
            is_full=True,
            config=config,
            environment=sidecar.environment,
            latency=run.latency,
        )
        walls_ns = sidecar.wall_time_ns_per_step
        wall_ns = sum(walls_ns) / len(walls_ns) if walls_ns else None
        stats = stats_document(
            summary, config, sidecar.environment, run.latency, wall_time_ns_per_step=wall_ns
        )
        write_text(files["report"], console.markdown(numbered(report)))
        write_json(files["stats"], stats)
        return stats


def profile(
    workload: str,
    /,
    *,
    batch_sizes: _Sizes = (1, 8),
    seq_lens: _Sizes = (128,),
    output_dir: Path = Path("profiling_results"),
    skip_benchmark: bool = False,
    device: str = "auto",
    train: bool = False,
    use_real_bert: bool = False,
    param: console.WorkloadParameters = (),
    active: _Steps = ACTIVE_STEPS,
    record: console.Record = (),
    top: console.Top = 10,
    report: console.Showing = console.SHOWING,
) -> int:
    """Profile a workload over batch sizes and sequence lengths.

    Writes `profiling_stats_*.json`, `kernel_analysis_report_*.md` and a Chrome trace per configuration, and
    profiling_summary.json and profiling_summary.md for the sweep.

    Example: opscope profile bert --batch-sizes 1 8 --seq-lens 128

    Exit codes: 1 also if a configuration failed.

    Args:
        workload: bert, transformer, FILE.py:FUNCTION or PACKAGE.MODULE:FACTORY.
        batch_sizes: Batch sizes, e.g. --batch-sizes 1 8.
        seq_lens: Sequence lengths, e.g. --seq-lens 128 256.
        output_dir: Folder for the files.
        skip_benchmark: Do not measure the latency of single steps; the time per step is still measured.
        device: auto, cpu, cuda or cuda:N.
        train: Steps are training steps: forward, loss, backward, optimizer.
        use_real_bert: The bert workload is transformers' BertModel.
        active: Steps to record.
    """
    options = console.workload_options(param, device=device, train=train, use_real_bert=use_real_bert)
    spec = resolve(workload, options)
    measure = None if skip_benchmark else measure_latency
    recording = {"wait": 0, "warmup": 2, "active": active, **console.recorded(record)}
    rows = None if top == "all" else top
    tasks = [
        _Task(Configuration(spec, batch_size, seq_len), recording, output_dir, measure, rows)
        for seq_len in dict.fromkeys(seq_lens)
        for batch_size in dict.fromkeys(batch_sizes)
    ]
    summaries = output_dir / "profiling_summary.json", output_dir / "profiling_summary.md"
    written = [*summaries, *(path for task in tasks for path in task.all_files), *report.output]
    console.check_outputs(written, force=report.force)
    entries: list[Record] = []
    code = 0
    with console.load_noticed(), console.progress(quiet=report.json) as told:
        try:
            for task in tasks:
                label = task.configuration.label
                told(label, len(entries), len(tasks))
                entries.append(_attempt(task))
                write_json(summaries[0], sweep_json(entries))
                write_text(summaries[1], console.markdown(sweep_document(entries)))
                if not report.json:
                    console.say(f"{label}: {_outcome(entries[-1])}")
            code = EXIT_ERROR if any(one["error"] is not None for one in entries) else 0
        except KeyboardInterrupt:
            complete = sum(one["error"] is None for one in entries)
            console.say(f"interrupted: {complete} of {len(tasks)} configurations are kept in {output_dir}")
            code = EXIT_INTERRUPTED
    if entries or report.json:
        _show(entries, output_dir, report, rows)
    if entries:
        of_each = [output_dir / name for one in entries for name in one["files"].values()]
        console.say_wrote([*of_each, *summaries], on_stderr=report.json)
    return code


def _show(entries: Sequence[Record], output_dir: Path, report: console.Showing, top: int | None) -> None:
    traces = [str(output_dir / one["files"]["trace"]) for one in entries if one["files"]]

    # Of a single configuration a page is that of its recording.
    is_one = len(entries) == len(traces) == 1
    pages = [path for path in report.output if is_one and console.is_page(path)]
    replace(report, output=tuple(path for path in report.output if path not in pages)).show(
        lambda: sweep_json(entries), lambda: sweep_document(entries)
    )
    if pages:
        with load(traces[0]) as session:
            summary = summarize(session)
            written = [console.write_recording_page(path, session, summary, top=top) for path in pages]
        console.say_wrote(written, on_stderr=report.json)


def _attempt(task: _Task) -> Record:
    label = task.configuration.label
    try:
        stats = task.run()
        return sweep_record(label, stats, {role: path.name for role, path in task.files.items()})
    except Exception as error:  # noqa: BLE001 - a user's workload may raise anything; the others go on
        kind = "" if isinstance(error, OpscopeError) else f"{type(error).__name__}: "
        return sweep_record(label, None, error=f"{kind}{error}")


def _outcome(entry: Record) -> str:
    if entry["error"] is not None:
        return f"failed: {entry['error']}"
    totals = entry["summary"]
    kind, name = ("cuda", "device") if totals["kernel_launches"] > 0 else ("cpu", "CPU")
    return f"{format_duration(totals[f'total_{kind}_time_ms'] * NS_PER_MS)} of {name} time"
