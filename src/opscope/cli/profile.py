"""`opscope profile`: a workload over batch sizes and sequence lengths, three files per configuration."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter
from cyclopts.validators import Number
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from opscope.benchmarking.timer import latency_measure
from opscope.cli.console import print_document, print_json, refuse_existing, say_wrote, stderr_console
from opscope.cli.sweep import RecordingOptions, Task, kept_entry, run_task
from opscope.errors import OpscopeError
from opscope.model.files import write_text
from opscope.report.json_export import write_json
from opscope.report.markdown import render_markdown
from opscope.report.sweep_report import SweepEntry, sweep_document, sweep_report
from opscope.units import format_duration
from opscope.workloads.spec import WorkloadOptions, resolve

__all__ = ["ModelOptions", "profile"]

_EXIT_FAILED = 1
_EXIT_INTERRUPTED = 130

_PRESETS = {
    "quick": ((1, 8), (128,)),
    "full": ((1, 4, 8, 16), (128, 256, 512)),
}
_SUMMARY_JSON = "profiling_summary.json"
_SUMMARY_MARKDOWN = "profiling_summary.md"

_DEFAULT_RECORDING = RecordingOptions()
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
        write_text(markdown_path, render_markdown(sweep_report(self.entries)))


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
    resume: bool = False,
    force: bool = False,
    json: bool = False,
    top: Annotated[int, Parameter(validator=Number(gte=1))] = 10,
) -> int:
    """Profile a workload over batch sizes and sequence lengths.

    Each configuration leaves profiling_stats_*.json, kernel_analysis_report_*.md and a Chrome trace; the
    sweep leaves profiling_summary.json and profiling_summary.md.

    Args:
        workload: bert, transformer, FILE.py:FUNCTION or PACKAGE.MODULE:FACTORY.
        batch_sizes: Batch sizes, e.g. --batch-sizes 1 8.
        seq_lens: Sequence lengths, e.g. --seq-lens 128 256.
        preset: Sizes not given: quick is 1 8 × 128, full is 1 4 8 16 × 128 256 512.
        output_dir: Where the files go.
        skip_benchmark: Do not time the workload without the profiler.
        model: How the workload is built.
        recording: What is recorded.
        resume: Keep the configurations an earlier sweep completed.
        force: Overwrite existing files.
        json: Print the summary as one JSON document and nothing else.
        top: Operators to report in detail.
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
        refuse_existing([*sweep.files, *(path for task in tasks for path in task.files.all)], force=force)
    kept = [kept_entry(task) for task in tasks] if resume and not force else [None] * len(tasks)
    code = _run(tasks, kept, sweep, quiet=json)
    _print(sweep, json=json)
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
            sys.stderr.write(
                f"interrupted: {complete} of {len(tasks)} configurations are kept in {sweep.output_dir}; "
                "continue with --resume\n"
            )
            return _EXIT_INTERRUPTED
    return _EXIT_FAILED if sweep.failed else 0


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


def _print(sweep: _Sweep, *, json: bool) -> None:
    if json:
        print_json(sweep_document(sweep.entries))
    elif sweep.entries:
        print_document(sweep_report(sweep.entries))
    if sweep.entries:
        say_wrote(_written(sweep), on_stderr=json)


def _written(sweep: _Sweep) -> list[Path]:
    of_configurations = [sweep.output_dir / name for entry in sweep.entries for name in entry.files.values()]
    return [*of_configurations, *sweep.files]
