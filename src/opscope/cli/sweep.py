"""One configuration of a sweep from run to files, and what of an earlier sweep can be kept.

The stats file is written last, so a configuration that has one is complete. Imports torch only through
capture and workloads, which do so when a workload is built.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from opscope.capture.sweep import ConfigurationRun, configuration_of, run_configuration
from opscope.errors import InputError
from opscope.model.files import write_text
from opscope.model.measurement import LatencyMeasure
from opscope.model.sidecar import sidecar_path
from opscope.provenance.origins import recorded_origins
from opscope.report.compose import configuration_report
from opscope.report.json_export import write_json
from opscope.report.markdown import render_markdown
from opscope.report.stats_json import stats_document
from opscope.report.sweep_report import SweepEntry
from opscope.results import load, summarize
from opscope.workloads.spec import WorkloadSpec

__all__ = ["ConfigurationFiles", "RecordingOptions", "Task", "kept_entry", "run_task"]


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
    active: int = 3
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
    write_text(task.files.report, render_markdown(report))
    write_json(task.files.stats, stats)
    return stats


def _read_stats(path: Path) -> Mapping[str, Any] | None:
    try:
        stats = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return stats if isinstance(stats, dict) else None


def _file_stem(workload: str) -> str:
    name = workload.rpartition(":")[2]
    return re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "workload"
