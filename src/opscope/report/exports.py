"""Files for other viewers: the recorded trace with tracks of ours, and stacks for flame graphs.

The tracks, for Perfetto and its like: the critical path; for each device why it idles, by step; for each of
its streams the operator that every activity was attributed to, and how. The recording is copied byte for
byte; our events come first in its array, in a process named `opscope`.

Weights of stacks are whole numbers and none is lost: those of a file sum to what the profiles hold.
Source: https://www.speedscope.app/file-format-schema.json (`sampled` profiles); collapsed stacks as in
Brendan Gregg's FlameGraph, `stackcollapse.pl`: one line `outer;…;inner WEIGHT` per stack.
"""

from __future__ import annotations

import gzip
import mmap
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from opscope._version import __version__
from opscope.analysis.program.stacks import StackProfile
from opscope.analysis.step_model import step_model
from opscope.analysis.summary import Summary
from opscope.analysis.timeline.host import read_session
from opscope.analysis.timeline.idle import CAUSES
from opscope.analysis.timeline.step_view import step_times
from opscope.errors import InputError
from opscope.ingest.source import find_traces, is_export, local_text
from opscope.ingest.staging import locate_events
from opscope.model.files import replacing
from opscope.model.origin import parse_frame
from opscope.model.schema import Attribution
from opscope.model.session import Session
from opscope.units import UNKNOWN
from opscope.visible_text import visible

_CATEGORY = "opscope"
# Of processes: recorders use those of the operating system, devices and, for their own tracks, words.
_PROCESS = 1 << 30
_COPIED_BYTES = 8 << 20


def export_trace(session: Session, path: str | os.PathLike[str]) -> Path:
    """Write the trace of a Session with tracks of ours; returns the file. A name in `.gz` is compressed.

    An InputError where it is of several traces, not of PyTorch's profiler, gone, or without a step to follow.
    """
    summary = Summary(session)
    if len(summary.traces) != 1:
        raise InputError(
            f"{len(summary.traces)} traces were read, and one is exported at a time",
            hint="Name one of the files",
        )
    (source,) = summary.traces
    step = step_model(session, read_session(session)) if summary.is_usable else None
    if step is None:
        raise InputError("nothing was launched in it, so it has no critical path", source=source)
    on_device = ("kernel", "communication", "copy")  # whose names say what they are
    path_slices = [
        (
            (one.name if one.kind in on_device else f"{one.kind}: {one.name}") if one.name else one.kind,
            one.start_ns, one.ns, {"kind": one.kind},
        )
        for one in step.recorded_path
    ]  # fmt: skip
    tracks = (("critical path", path_slices), *_idle(session), *_attributed(session))
    (trace,) = find_traces(source)
    with local_text(trace, session.temporary_directory) as local:
        if is_export(trace, local):
            raise InputError(
                "an export of Nsight Systems has no events to add tracks to", source=source, hint="Nsight"
                " Systems shows it; traces of torch.profiler can be exported",
            )  # fmt: skip
        with (
            local.path.open("rb") as text,
            mmap.mmap(text.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            replacing(path) as partial,
            (
                cast(BinaryIO, gzip.open(partial, "wb", compresslevel=5))
                if Path(path).suffix == ".gz"
                else partial.open("wb")
            ) as out,
        ):
            array = locate_events(mapped, source)
            out.write(mapped[: array.start])
            for at, (name, slices) in enumerate(tracks):
                out.write(b",\n" if at else b"")
                out.write(b",\n".join(_track(at + 1, name, slices)))
            if array.end > array.start:
                out.write(b",")
            end = array.end if array.lost_bytes else len(mapped)
            for position in range(array.start, end, _COPIED_BYTES):
                out.write(mapped[position : min(end, position + _COPIED_BYTES)])
            if array.lost_bytes:
                out.write(b"]" if mapped[: array.start].strip() == b"[" else b"]}")
    return Path(path)


_Slice = tuple[str, int, int, dict[str, Any]]  # name, start and length in nanoseconds, and what is told of it
_Tracks = Iterator[tuple[str, Iterable[_Slice]]]


def _idle(session: Session) -> _Tracks:
    of_device: dict[int, list[_Slice]] = defaultdict(list)
    for time in step_times(read_session(session), most=1 << 30):
        for start_ns, end_ns, cause in zip(
            *(one.tolist() for one in (*time.gaps, time.gap_causes)), strict=True
        ):
            of, step = CAUSES[cause], {} if time.step is None else {"step": time.step}
            gap = (str(of).replace("_", " "), start_ns, end_ns - start_ns, {"why": of.meaning, **step})
            of_device[time.device].append(gap)
    for device, gaps in of_device.items():
        yield f"idle: device {device}", gaps


def _attributed(session: Session) -> _Tracks:
    for (device, stream), activities in groupby(session.query(_ATTRIBUTED_SQL), key=itemgetter(0, 1)):
        yield (
            f"operator: device {device}, stream {UNKNOWN if stream is None else stream}",
            [
                (
                    operator or "unattributed", start_ns, ns,
                    {"kernel": kernel, "attribution": how, "meaning": Attribution(how).meaning},
                )
                for _, _, start_ns, ns, operator, how, kernel in activities
            ],
        )  # fmt: skip


_ATTRIBUTED_SQL = """SELECT a.device, a.stream, a.start_ns, a.duration_ns, o.name, a.attribution, k.name
FROM device_activities a LEFT JOIN operators o USING (operator_id) LEFT JOIN kernel_names k USING (name_id)
ORDER BY a.device, a.stream, a.start_ns, a.activity_id"""


def _track(thread: int, name: str, slices: Iterable[_Slice]) -> Iterator[bytes]:
    """Events of one track: its names, then a slice for each piece that takes time."""
    marks = (
        ("process_name", {"name": _CATEGORY}), ("thread_name", {"name": name}),
        ("process_sort_index", {"sort_index": -1}), ("thread_sort_index", {"sort_index": thread}),
    )  # fmt: skip
    events: list[dict[str, Any]] = [{"ph": "M", "name": what, "args": args} for what, args in marks]
    events += [
        {
            # Microseconds exact to the nanosecond, which floats of that many are not.
            "ph": "X", "cat": _CATEGORY, "name": title, "ts": Decimal(start_ns).scaleb(-3),
            "dur": Decimal(ns).scaleb(-3), "args": told,
        }
        for title, start_ns, ns, told in slices
        if ns  # what takes no time is not drawn
    ]  # fmt: skip
    for event in events:
        yield _ENCODER.encode({**event, "pid": _PROCESS, "tid": thread})


_ENCODER = msgspec.json.Encoder(decimal_format="number")
_UNNAMED = "[unnamed]"


def speedscope_document(profiles: Sequence[StackProfile], *, name: str) -> dict[str, Any]:
    """A speedscope file: one sampled profile per trace, all of them of the same frames."""

    def described(name: str) -> dict[str, Any]:
        parsed = parse_frame(name)
        return (
            {"name": name or _UNNAMED}
            if parsed is None
            else {"name": name, "file": parsed.file, "line": parsed.line}
        )

    used = sorted({frame for profile in profiles for stack in profile.stacks for frame in stack})
    position = {frame: index for index, frame in enumerate(used)}
    names = profiles[0].names if profiles else ()
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": f"opscope@{__version__}",
        "name": name,
        "activeProfileIndex": 0,
        "shared": {"frames": [described(names[frame]) for frame in used]},
        "profiles": [
            {
                "type": "sampled",
                "name": profile.name,
                "unit": "nanoseconds",
                "startValue": 0,
                "endValue": profile.total,
                "samples": [[position[frame] for frame in stack] for stack in profile.stacks],
                "weights": list(profile.weights),
            }
            for profile in profiles
        ],
    }


def collapsed_text(profiles: Sequence[StackProfile]) -> str:
    """One line per stack, in order; where there are several profiles, each under its name."""
    weights = Counter[str]()
    for profile in profiles:
        root = [_word(profile.name)] if len(profiles) > 1 else []
        words = [_word(name) for name in profile.names]
        for stack, weight in zip(profile.stacks, profile.weights, strict=True):
            weights[";".join((*root, *(words[frame] for frame in stack)))] += weight
    return "".join(f"{line} {weight}\n" for line, weight in weights.items())


def _word(name: str) -> str:
    """A name without what separates frames and lines; the format has no escapes."""
    return visible(re.sub(r"\s+", " ", name.replace(";", ":")).strip(), most=len(name)) or _UNNAMED
