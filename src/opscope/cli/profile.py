"""`opscope profile`: profile a workload over batch sizes and sequence lengths.

The stats file is written last, so a configuration that has one is complete. Imports torch only through
capture and workloads, which do so when a workload is built.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Group, Parameter
from cyclopts.validators import Number
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from opscope.api import load
from opscope.benchmarking.timer import latency_measure
from opscope.capture.cycle import ACTIVE_STEPS
from opscope.capture.sweep import ConfigurationRun, configuration_of, run_configuration
from opscope.cli.app import EXIT_ERROR, EXIT_INTERRUPTED
from opscope.cli.console import (
    Parts,
    Top,
    check_outputs,
    load_noticed,
    markdown,
    print_document,
    print_json,
    say,
    say_wrote,
    stderr_console,
    write_page,
    write_recording_page,
)
from opscope.errors import InputError, OpscopeError
from opscope.model.files import write_text
from opscope.model.measurement import LatencyMeasure
from opscope.model.sidecar import sidecar_path
from opscope.provenance.origins import recorded_origins
from opscope.report.analysis import configuration_report, full_document
from opscope.report.document import Document, Section
from opscope.report.html.result_charts import workload_charts
from opscope.report.json_encoding import write_json
from opscope.report.summary_json import stats_document
from opscope.report.sweep import SweepEntry, sweep_document, sweep_report
from opscope.results import summarize
from opscope.units import format_duration
from opscope.workloads.spec import WorkloadOptions, WorkloadSpec, resolve


@dataclass(frozen=True)
class RecordingOptions:
    """What the profiler records of each configuration.

    Args:
        wait: Steps to let pass first.
        warmup: Steps to run with the profiler attached but not recording.
        active: Steps to record.
        with_stack: Record Python stacks.
        with_modules: Record the calls of nn.Modules.
        profile_memory: Record allocations.
    """

    wait: int = 0
    warmup: int = 2
    active: int = ACTIVE_STEPS
    with_stack: bool = False
    with_modules: bool = False
    profile_memory: bool = False


@dataclass(frozen=True)
class ConfigurationFiles:
    """Where a configuration's results lie; the names are a published contract."""

    stats: Path
    report: Path
    trace: Path

    @classmethod
    def of(cls, output_dir: Path, workload: str, label: str) -> ConfigurationFiles:
        """The files of one configuration."""
        return cls(
            output_dir / f"profiling_stats_{label}.json",
            output_dir / f"kernel_analysis_report_{label}.md",
            output_dir / f"{_file_stem(workload)}_trace_{label}.json",
        )

    @property
    def all(self) -> tuple[Path, ...]:
        """Every file, the trace's sidecar included."""
        return (self.stats, self.report, self.trace, sidecar_path(self.trace))

    @property
    def names(self) -> dict[str, str]:
        """File names by role."""
        return {"stats": self.stats.name, "report": self.report.name, "trace": self.trace.name}


@dataclass(frozen=True)
class Task:
    """One configuration to run: the spec, its sizes, what to record and where to write."""

    spec: WorkloadSpec
    batch_size: int
    seq_len: int
    recording: RecordingOptions
    output_dir: Path
    measure: LatencyMeasure | None
    top: int

    @property
    def label(self) -> str:
        """Part of its file names, e.g. `bs8_seq128`."""
        return configuration_of(self.spec, self.batch_size, self.seq_len).label

    @property
    def files(self) -> ConfigurationFiles:
        """Where its results go."""
        return ConfigurationFiles.of(self.output_dir, self.spec.name, self.label)

    @property
    def settings(self) -> dict[str, Any]:
        """All that was asked for, under the names of the stats file's `config`."""
        configuration = asdict(configuration_of(self.spec, self.batch_size, self.seq_len))
        options = {key: value for key, value in asdict(self.spec.options).items() if key not in configuration}
        return {**configuration, **options, **asdict(self.recording)}


def run_task(task: Task) -> SweepEntry:
    """Run one configuration and write its files, replacing older ones.

    Raises:
        OpscopeError: It could not be built, recorded, timed or read back.
    """
    files = task.files
    # Should this run fail, the results of an older one must not stand beside its trace.
    for stale in files.all:
        stale.unlink(missing_ok=True)
    run = run_configuration(
        task.spec,
        configuration_of(task.spec, task.batch_size, task.seq_len),
        task.output_dir,
        trace_name=files.trace.name,
        measure=task.measure,
        overwrite=True,
        find_origins=recorded_origins,
        **asdict(task.recording),
    )
    stats = _write_results(task, run)
    return SweepEntry(task.label, stats, files.names)


def kept_entry(task: Task) -> SweepEntry | None:
    """The entry of a configuration that an earlier sweep completed; None if it must run.

    Raises:
        InputError: Its files were made with other settings.
    """
    files = task.files
    if not all(path.exists() for path in files.all):
        return None
    stats = _read_stats(files.stats)
    if stats is None or (task.measure is not None and stats.get("benchmark") is None):
        return None
    config = stats.get("config") or {}
    differing = [key for key, value in task.settings.items() if key in config and config[key] != value]
    if differing:
        key = differing[0]
        raise InputError(
            f"it was made with {key} {config[key]}, not {task.settings[key]}",
            source=files.stats,
            hint="Resume with the same settings, use another --output-dir, or overwrite with --force",
        )
    return SweepEntry(task.label, stats, files.names)


def _write_results(task: Task, run: ConfigurationRun) -> dict[str, Any]:
    with load(str(run.trace_path)) as session:
        summary = summarize(session)
    config = {**task.settings, "parameters": run.parameter_count, "steps": run.steps}
    report = configuration_report(summary, config, run.environment, run.latency, top=task.top)
    walls_ns = run.wall_time_ns_per_step
    stats = stats_document(
        summary,
        config,
        run.environment,
        run.latency,
        wall_time_ns_per_step=sum(walls_ns) / len(walls_ns) if walls_ns else None,
    )
    write_text(task.files.report, markdown(report))
    write_json(task.files.stats, stats)
    return stats


def _read_stats(path: Path) -> Mapping[str, Any] | None:
    try:
        stats = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return stats if isinstance(stats, dict) else None


def _file_stem(workload: str) -> str:
    name = workload.rpartition(":")[2]
    return re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "workload"


_PRESETS = {
    "quick": ((1, 8), (128,)),
    "full": ((1, 4, 8, 16), (128, 256, 512)),
}
_SUMMARY_JSON = "profiling_summary.json"
_SUMMARY_MARKDOWN = "profiling_summary.md"

_DEFAULT_RECORDING = RecordingOptions()
_READING = Parts()
_Recording = Annotated[RecordingOptions, Parameter(name="*", group=Group("Recording"))]
_Sizes = Annotated[tuple[int, ...] | None, Parameter(consume_multiple=True, validator=Number(gte=1))]


@Parameter(name="*", group=Group("Model"))
@dataclass(frozen=True)
class ModelOptions:
    """How the workload is built.

    Args:
        dtype: float32, float16 or bfloat16.
        device: auto, cpu, cuda or cuda:N.
        attn_implementation: sdpa (the fused operator) or eager (matmul, softmax, matmul).
        train: Steps are training steps: forward, loss, backward, optimizer.
        layers: Number of layers, for small machines.
        hidden: Hidden size, for small machines.
        use_real_bert: The bert workload is transformers' BertModel.
        weights: Checkpoint of the real BERT: a hub name or a local folder.
    """

    dtype: str = "float32"
    device: str = "auto"
    attn_implementation: str = "sdpa"
    train: bool = False
    layers: int | None = None
    hidden: int | None = None
    use_real_bert: bool = False
    weights: str | None = None


@dataclass
class _Sweep:
    """The entries of a sweep so far; its summary files follow every change."""

    output_dir: Path
    entries: list[SweepEntry] = field(default_factory=list)

    @property
    def files(self) -> tuple[Path, Path]:
        return self.output_dir / _SUMMARY_JSON, self.output_dir / _SUMMARY_MARKDOWN

    @property
    def failed(self) -> bool:
        return any(entry.error is not None for entry in self.entries)

    def add(self, entry: SweepEntry) -> None:
        self.entries.append(entry)
        json_path, markdown_path = self.files
        write_json(json_path, sweep_document(self.entries))
        write_text(markdown_path, markdown(sweep_report(self.entries)))


def profile(
    workload: str,
    /,
    *,
    batch_sizes: _Sizes = None,
    seq_lens: _Sizes = None,
    preset: Literal["quick", "full"] = "quick",
    output_dir: Path = Path("profiling_results"),
    skip_benchmark: bool = False,
    model: ModelOptions = ModelOptions(),
    recording: _Recording = _DEFAULT_RECORDING,
    html: Path | None = None,
    resume: bool = False,
    force: bool = False,
    json: bool = False,
    top: Top = 10,
    reading: Parts = _READING,
) -> int:
    """Profile a workload over batch sizes and sequence lengths.

    Each configuration leaves `profiling_stats_*.json`, `kernel_analysis_report_*.md` and a Chrome trace; the
    sweep leaves profiling_summary.json and profiling_summary.md.

    Example: opscope profile bert --batch-sizes 1 8 --seq-lens 128

    Exit codes: 1 also if a configuration failed.

    Args:
        workload: bert, transformer, FILE.py:FUNCTION or PACKAGE.MODULE:FACTORY.
        batch_sizes: Batch sizes, e.g. --batch-sizes 1 8.
        seq_lens: Sequence lengths, e.g. --seq-lens 128 256.
        preset: Sizes not given: quick is 1 8 × 128, full is 1 4 8 16 × 128 256 512.
        output_dir: Where the files go.
        skip_benchmark: Do not measure the latency of single steps; their period is timed all the same.
        model: How the workload is built.
        recording: What is recorded.
        resume: Keep the configurations an earlier sweep completed.
        html: Also write the report with pictures to this HTML file, which needs no network.
        force: Overwrite existing files.
        json: Print the summary as one JSON document and nothing else.
        top: Operators to report in detail.
        reading: How much of the report is printed; --full adds that of each configuration.
    """
    preset_batches, preset_lengths = _PRESETS[preset]
    spec = resolve(workload, WorkloadOptions(**asdict(model)))
    measure = None if skip_benchmark else latency_measure()
    tasks = [
        Task(spec, batch_size, seq_len, recording, output_dir, measure, top)
        for seq_len in dict.fromkeys(seq_lens or preset_lengths)
        for batch_size in dict.fromkeys(batch_sizes or preset_batches)
    ]
    sweep = _Sweep(output_dir)
    if not resume:
        check_outputs([*sweep.files, *(path for task in tasks for path in task.files.all)], force=force)
    check_outputs([html], force=force)
    kept = [kept_entry(task) for task in tasks] if resume and not force else [None] * len(tasks)
    with load_noticed():
        code = _run(tasks, kept, sweep, quiet=json)
    _print(sweep, json=json, reading=reading)
    if html is not None and sweep.entries:
        say_wrote([_page(html, sweep, top=top)], on_stderr=json)
    return code


def _run(tasks: Sequence[Task], kept: Sequence[SweepEntry | None], sweep: _Sweep, *, quiet: bool) -> int:
    with _progress(len(tasks), quiet=quiet) as advance:
        try:
            for task, entry in zip(tasks, kept, strict=True):
                advance(task.label, None)
                finished = entry or _attempt(task)
                sweep.add(finished)
                advance(task.label, _outcome(finished, kept=entry is not None))
        except KeyboardInterrupt:
            complete = sum(entry.error is None for entry in sweep.entries)
            say(
                f"interrupted: {complete} of {len(tasks)} configurations are kept in {sweep.output_dir}; "
                "continue with --resume"
            )
            return EXIT_INTERRUPTED
    return EXIT_ERROR if sweep.failed else 0


def _attempt(task: Task) -> SweepEntry:
    try:
        return run_task(task)
    except OpscopeError as error:
        return SweepEntry(task.label, None, error=str(error))
    except Exception as error:  # noqa: BLE001 - a user's workload may raise anything; the others go on
        return SweepEntry(task.label, None, error=f"{type(error).__name__}: {error}")


def _outcome(entry: SweepEntry, *, kept: bool) -> str:
    if entry.stats is None:
        return f"failed: {entry.error}"
    totals = entry.stats["summary"]
    on_device = totals["kernel_launches"] > 0
    total_ms = totals["total_cuda_time_ms" if on_device else "total_cpu_time_ms"]
    measured = f"{format_duration(total_ms * 1e6)} of {'device' if on_device else 'CPU'} time"
    return f"kept, {measured}" if kept else measured


@contextmanager
def _progress(count: int, *, quiet: bool) -> Iterator[Callable[[str, str | None], None]]:
    """Reports a configuration's start (no outcome) and end: a bar on a terminal, else one line at its end."""
    console = stderr_console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal, transient=True) as bar:
        task_id = bar.add_task("", total=count)

        def advance(label: str, outcome: str | None) -> None:
            if outcome is None:
                bar.update(task_id, description=label)
                return
            bar.advance(task_id)
            if not quiet:
                console.print(f"{label}: {outcome}", markup=False, soft_wrap=True)

        yield advance


def _print(sweep: _Sweep, *, json: bool, reading: Parts) -> None:
    if json:
        print_json(sweep_document(sweep.entries))
    elif sweep.entries:
        print_document(_whole(sweep) if reading.full else sweep_report(sweep.entries), reading=reading)
    if sweep.entries:
        say_wrote(_written(sweep), on_stderr=json)


def _whole(sweep: _Sweep) -> Document:
    """The summary, and the report on each configuration."""
    document, reports = sweep_report(sweep.entries), []
    for entry in sweep.entries:
        if "trace" in entry.files:
            with load(str(sweep.output_dir / entry.files["trace"])) as session:
                report = full_document(summarize(session))
            reports.append(Section(entry.label, report.blocks, report.sections))
    return msgspec.structs.replace(document, sections=(*document.sections, *reports))


def _page(path: Path, sweep: _Sweep, *, top: int) -> Path:
    """Maps of the sweep; of a single configuration, its recording."""
    entries = sweep.entries
    if len(entries) == 1 and "trace" in entries[0].files:
        with load(str(sweep.output_dir / entries[0].files["trace"])) as session:
            return write_recording_page(path, session, summarize(session), top=top)
    charts = workload_charts(sweep_document(entries)["configurations"])
    return write_page(path, sweep_report(entries), charts)


def _written(sweep: _Sweep) -> list[Path]:
    of_configurations = [sweep.output_dir / name for entry in sweep.entries for name in entry.files.values()]
    return [*of_configurations, *sweep.files]
