"""A recording → a trace file like Kineto's, which other tools and `opscope.load` open, and its sidecar.

Written whole or not at all. What Kineto has no place for is under the key `opscopeRecorder`: the recorder's
findings (what is missing, and why), and the mangled names of the kernels, which tell more than those shown.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opscope._version import __version__
from opscope.cupti.events import ProcessEvents, process_events
from opscope.cupti.recording import (
    WRITE_LIMIT,
    ChunkKind,
    CuptiRecording,
    FileState,
    TextTable,
    UnifiedState,
)
from opscope.errors import CaptureError
from opscope.hardware.driver import version_text
from opscope.model.environment import Environment, GpuInfo
from opscope.model.files import replacing
from opscope.model.finding import RECORDER_KEY, Finding, Severity, findings_as_json
from opscope.model.origin import Gap, RecordedKernel
from opscope.model.sidecar import RecordedSchedule, RecordedSettings, Sidecar
from opscope.provenance.demangle import demangle_all
from opscope.toolchain.programs import signal_name
from opscope.units import counted
from opscope.visible_text import without_secrets

_FLUSH_PERIOD = "0.2 s"  # FLUSH_PERIOD_MS in native/recorder.c


def recording_findings(recording: CuptiRecording, events: ProcessEvents) -> Iterator[Finding]:
    """Findings on one process's recording, whatever is missing first."""
    outcome = recording.outcome
    if outcome.dropped_count:
        yield Finding(
            "recorder.dropped",
            Severity.WARNING,
            f"CUPTI dropped {counted(outcome.dropped_count, 'record')}: counts and times are too small.",
            "Record a shorter run.",
            evidence={"dropped_count": outcome.dropped_count},
        )
    if outcome.lost_count and outcome.write_errno == WRITE_LIMIT:
        yield Finding(
            "recorder.size_limit",
            Severity.WARNING,
            f"The records reached --max-trace-size: {counted(outcome.lost_count, 'record')} that came later "
            "are left out, and counts and times are those of the beginning.",
            "Give more (--max-trace-size), or record a shorter run.",
            evidence={"lost_count": outcome.lost_count},
        )
    elif outcome.lost_count:
        reason = os.strerror(outcome.write_errno)
        yield Finding(
            "recorder.lost",
            Severity.WARNING,
            f"{counted(outcome.lost_count, 'record')} could not be written ({reason}): counts and times are "
            "too small.",
            "Have more room where the trace goes (--output-dir), or record a shorter run.",
            evidence={"lost_count": outcome.lost_count, "reason": reason},
        )
    if outcome.unreadable_count:
        yield Finding(
            "recorder.unreadable",
            Severity.WARNING,
            f"CUPTI could not read {counted(outcome.unreadable_count, 'buffer')} to the end: records are "
            "missing.",
            evidence={"buffer_count": outcome.unreadable_count},
        )
    if outcome.state is not FileState.ENDED:
        yield Finding(
            "recorder.not_ended",
            Severity.WARNING,
            f"The process ended without its exit handlers (killed, or by _exit): what it did in its last "
            f"{_FLUSH_PERIOD} may be missing.",
            "Let it end by exit, by returning from main, or by SIGTERM.",
            evidence={"truncated_bytes": outcome.truncated_bytes},
        )
    elif outcome.signal is not None:
        yield Finding(
            "recorder.signal",
            Severity.INFO,
            f"The process was ended by {signal_name(outcome.signal)}; it is recorded until then.",
            evidence={"signal": outcome.signal},
        )
    if events.unfinished_count:
        yield Finding(
            "recorder.unfinished",
            Severity.INFO,
            f"Left out, because it had not ended when the recording did: "
            f"{counted(events.unfinished_count, 'activity', 'activities')}.",
            evidence={"activity_count": events.unfinished_count},
        )
    if outcome.unified is UnifiedState.RECORDED:
        return
    if outcome.unified is UnifiedState.REFUSED:
        reason = f"CUPTI refuses them here ({outcome.unified_refusal})"
    elif outcome.unified is UnifiedState.UNWANTED:
        reason = "they were switched off"
    else:
        reason = "CUPTI was not ready for them"
    yield Finding(
        "recorder.unified_memory",
        Severity.WARNING if events.uses_managed_memory else Severity.INFO,
        f"Copies of unified memory were not recorded: {reason}."
        + (" The program allocates such memory." if events.uses_managed_memory else ""),
        evidence={"reason": reason},
    )


@dataclass(frozen=True)
class WrittenTrace:
    """A trace that was written."""

    path: Path
    recording: CuptiRecording
    counts: Mapping[str, int]  # events by what they are: `kernels`, `copies`, `sets`, `migrations`, `calls`
    findings: tuple[Finding, ...]  # of the recorder; the trace holds them too
    kernel_names: frozenset[str]  # as shown
    is_clean: bool  # the recording ended in order, with nothing still running


def write_trace(path: Path, recording: CuptiRecording, base_ns: int) -> WrittenTrace:
    """Write one process's trace; `base_ns` is zero of its time, on CUPTI's clock."""
    mangled = recording.names[TextTable.KERNEL]
    texts = dict(zip(mangled.values(), demangle_all(mangled.values()), strict=True))
    shown = {id_: texts[name] or name for id_, name in mangled.items()}
    events = process_events(recording, shown, base_ns)
    findings = tuple(recording_findings(recording, events))
    recorder = {
        "schema_version": 1,
        "opscope_version": __version__,
        "process": recording.process,
        "command": without_secrets(recording.command),
        "findings": findings_as_json(findings),
        "mangled_names": {text: name for name, text in texts.items() if text is not None},
    }
    versions = {"cupti_version": recording.cupti_version, "cuda_driver_version": recording.driver_version}
    properties = {  # which Kineto writes in front of the events, as far as they are known
        "schemaVersion": 1,
        "deviceProperties": [_device(record) for record in recording.of(ChunkKind.DEVICES)],
        **{key: value for key, value in versions.items() if value is not None},
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": base_ns + recording.clock_offset_ns,
        RECORDER_KEY: recorder,
    }
    head = json.dumps(properties, indent=1)
    with replacing(path, "the trace", error=CaptureError) as partial, partial.open("wb") as stream:
        stream.write(f'{head.rstrip()[:-1].rstrip()},\n"traceEvents": [\n'.encode())
        stream.write(b",\n".join(events.lines))
        stream.write(b"\n]}\n")
    is_clean = not any(one.code in {"recorder.not_ended", "recorder.unfinished"} for one in findings)
    return WrittenTrace(path, recording, events.counts, findings, frozenset(shown.values()), is_clean)


def _device(record: Any) -> dict[str, Any]:
    """One entry of deviceProperties; what the driver did not tell is left out.

    Source: libkineto/src/DeviceProperties.cpp.
    """
    numbers = {
        "totalGlobalMem": "memory_bytes",
        "computeMajor": "major",
        "maxThreadsPerBlock": "threads_per_block",
        "maxThreadsPerMultiprocessor": "threads_per_multiprocessor",
        "regsPerBlock": "registers_per_block",
        "warpSize": "warp_size",
        "sharedMemPerBlock": "shared_per_block",
        "numSms": "multiprocessors",
        "regsPerMultiprocessor": "registers_per_multiprocessor",
        "sharedMemPerBlockOptin": "shared_per_block_optin",
        "sharedMemPerMultiprocessor": "shared_per_multiprocessor",
    }
    known = {key: int(record[field]) for key, field in numbers.items() if record[field] > 0}
    name = bytes(record["name"]).decode("utf-8", "replace")
    # A minor version of 0 is a fact where the major one is known.
    minor = {"computeMinor": int(record["minor"])} if "computeMajor" in known else {}
    return {"id": int(record["device"]), **({"name": name} if name else {}), **known, **minor}


def recording_sidecar(
    written: WrittenTrace, kernels: Sequence[RecordedKernel], gaps: Sequence[Gap], *, created: str
) -> Sidecar:
    """The sidecar of a trace: one window, which is the whole run, without steps."""
    environment = Environment(
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}".strip(),
        opscope=__version__,
        cuda_driver=version_text(written.recording.driver_version),
        gpu=tuple(
            GpuInfo(
                name=bytes(device["name"]).decode("utf-8", "replace"),
                compute_capability=f"{device['major']}.{device['minor']}",
                sm_count=int(device["multiprocessors"]),
                memory_bytes=int(device["memory_bytes"]),
            )
            for device in written.recording.of(ChunkKind.DEVICES)
        ),
    )
    settings = RecordedSettings(
        record_shapes=False,
        with_stack=False,
        with_modules=False,
        profile_memory=False,
        activities=("cuda",),
        engine="cupti",
    )
    return Sidecar(
        trace=written.path.name,
        created=created,
        environment=environment,
        schedule=RecordedSchedule(wait=0, warmup=0, active=1, repeat=1, cycle=0),
        settings=settings,
        steps=0,
        partial=False,
        clean_window=written.is_clean,
        wall_time_ns_per_step=(),
        kernels=tuple(kernels),
        gaps=tuple(gaps),
    )
