"""A recording → a trace file like Kineto's: other tools open it, and `opscope.load` does.

Written whole or not at all. What Kineto has no place for is under the key `opscopeRecorder`: the recorder's
findings, and the mangled names of the kernels, which tell more than the shown ones.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from opscope._version import __version__
from opscope.errors import CaptureError
from opscope.model.finding import RECORDER_KEY, Finding, findings_as_json
from opscope.toolchain.injection.events import ProcessEvents, process_events
from opscope.toolchain.injection.findings import recording_findings
from opscope.toolchain.injection.record_format import ChunkKind, TextTable
from opscope.toolchain.injection.recording import Recording

__all__ = ["Demangle", "WrittenTrace", "write_trace"]

Demangle = Callable[[Sequence[str]], Sequence[str | None]]
"""The text to show for each mangled name; None where it is shown itself."""


@dataclass(frozen=True)
class WrittenTrace:
    """A trace that was written.

    Args:
        path: The file.
        recording: What it was made of.
        counts: Events by what they are: `kernels`, `copies`, `sets`, `migrations`, `calls`.
        findings: Of the recorder; the trace holds them too.
        kernel_names: As shown.
        is_clean: The recording ended in order, with nothing still running.
    """

    path: Path
    recording: Recording
    counts: Mapping[str, int]
    findings: tuple[Finding, ...]
    kernel_names: frozenset[str]
    is_clean: bool


def write_trace(path: Path, recording: Recording, base_ns: int, demangle: Demangle) -> WrittenTrace:
    """Write one process's trace.

    Args:
        path: The file, replaced if it exists.
        recording: Its records.
        base_ns: Zero of the trace's time, on CUPTI's clock.
        demangle: Makes the names to show.

    Raises:
        CaptureError: The file cannot be written.
    """
    mangled = recording.names[TextTable.KERNEL]
    texts = dict(zip(mangled.values(), demangle(list(mangled.values())), strict=True))
    shown = {id_: texts[name] or name for id_, name in mangled.items()}
    events = process_events(recording, shown, base_ns)
    findings = recording_findings(recording, events)
    recorder = {
        "schema_version": 1,
        "opscope_version": __version__,
        "process": recording.process,
        "command": list(recording.command),
        "findings": findings_as_json(findings),
        "mangled_names": {text: name for name, text in texts.items() if text is not None},
    }
    _write(path, _properties(recording, base_ns), recorder, events)
    is_clean = not any(one.code in {"recorder.not_ended", "recorder.unfinished"} for one in findings)
    return WrittenTrace(path, recording, events.counts, findings, frozenset(shown.values()), is_clean)


def _properties(recording: Recording, base_ns: int) -> dict[str, Any]:
    """What Kineto writes in front of the events, as far as it is known."""
    devices = [_device(record) for record in recording.of(ChunkKind.DEVICES)]
    versions = {"cupti_version": recording.cupti_version, "cuda_driver_version": recording.driver_version}
    return {
        "schemaVersion": 1,
        "deviceProperties": devices,
        **{key: value for key, value in versions.items() if value is not None},
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": base_ns + recording.clock_offset_ns,
    }


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


def _write(
    path: Path, properties: Mapping[str, Any], recorder: Mapping[str, Any], events: ProcessEvents
) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("w", encoding="utf-8", newline="\n") as stream:
            _write_document(stream, properties, recorder, events)
        partial.replace(path)
    except OSError as error:
        raise CaptureError(f"the trace cannot be written ({error.strerror or error})", source=path) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _write_document(
    stream: TextIO, properties: Mapping[str, Any], recorder: Mapping[str, Any], events: ProcessEvents
) -> None:
    head = json.dumps({**properties, RECORDER_KEY: recorder}, indent=1)
    stream.write(f'{head.rstrip()[:-1].rstrip()},\n"traceEvents": [\n')
    stream.write(",\n".join(events.lines))
    stream.write("\n]}\n")
