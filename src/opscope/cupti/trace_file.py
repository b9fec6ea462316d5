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
from opscope.cupti.recording import WRITE_LIMIT, ChunkKind, CuptiRecording, FileState, TextTable, UnifiedState
from opscope.errors import CaptureError
from opscope.hardware.driver import version_text
from opscope.ingest.wording import finding
from opscope.model.environment import Environment, GpuInfo
from opscope.model.files import replacing
from opscope.model.finding import RECORDER_KEY, Finding, findings_as_json
from opscope.model.origin import Gap, RecordedKernel
from opscope.model.sidecar import RecordedSchedule, RecordedSettings, Sidecar
from opscope.provenance.demangle import demangle_all
from opscope.toolchain.programs import signal_name
from opscope.visible_text import without_secrets

_FLUSH_PERIOD = "0.2 s"  # FLUSH_PERIOD_MS in native/recorder.c


def recording_findings(recording: CuptiRecording, events: ProcessEvents) -> Iterator[Finding]:
    """Findings on one process's recording, whatever is missing first."""
    outcome = recording.outcome
    if outcome.dropped_count:
        yield finding("recorder.dropped", None, {"dropped_count": outcome.dropped_count})
    if outcome.lost_count and outcome.write_errno == WRITE_LIMIT:
        yield finding("recorder.size_limit", None, {"lost_count": outcome.lost_count})
    elif outcome.lost_count:
        reason = os.strerror(outcome.write_errno)
        yield finding("recorder.lost", None, {"lost_count": outcome.lost_count, "reason": reason})
    if outcome.unreadable_count:
        yield finding("recorder.unreadable", None, {"buffer_count": outcome.unreadable_count})
    if outcome.state is not FileState.ENDED:
        lost = {"truncated_bytes": outcome.truncated_bytes}
        yield finding("recorder.not_ended", None, lost, period=_FLUSH_PERIOD)
    elif outcome.signal is not None:
        yield finding("recorder.signal", None, {"signal": outcome.signal}, name=signal_name(outcome.signal))
    if events.unfinished_count:
        yield finding("recorder.unfinished", None, {"activity_count": events.unfinished_count})
    if outcome.unified is not UnifiedState.RECORDED:
        reason = {
            UnifiedState.REFUSED: f"CUPTI refuses them here ({outcome.unified_refusal})",
            UnifiedState.UNWANTED: "they were switched off",
        }.get(outcome.unified, "CUPTI was not ready for them")
        kind = "used" if events.uses_managed_memory else None
        yield finding("recorder.unified_memory", None, {"reason": reason}, kind=kind)


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
        "totalGlobalMem": "memory_bytes", "computeMajor": "major", "maxThreadsPerBlock": "threads_per_block",
        "maxThreadsPerMultiprocessor": "threads_per_multiprocessor", "regsPerBlock": "registers_per_block",
        "warpSize": "warp_size", "sharedMemPerBlock": "shared_per_block", "numSms": "multiprocessors",
        "regsPerMultiprocessor": "registers_per_multiprocessor",
        "sharedMemPerBlockOptin": "shared_per_block_optin",
        "sharedMemPerMultiprocessor": "shared_per_multiprocessor",
    }  # fmt: skip
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
    settings = RecordedSettings(False, False, False, False, activities=("cuda",), engine="cupti")
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
