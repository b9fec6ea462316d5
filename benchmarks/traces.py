"""Make a Kineto trace of a wanted size by repeating a real one, text for text.

Layout and bytes per event stay those of the recording (pretty text, two spaces), because they decide how fast
a parser is. Each copy is later by the recording's span, and its ids are larger, so that nothing of one copy
links to another: `ts`, `External id`, `correlation`, flow `id`, `Python id`, `Python parent id`, `Ev Idx`,
`Sequence number`, the number of `ProfilerStep#N`. Written copy by copy: memory stays that of one recording.

    python benchmarks/traces.py RECORDING.json.gz OUTPUT.json --size-mb 180
"""

from __future__ import annotations

import argparse
import gzip
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TextIO, cast

# Every number of an event that differs between copies; `ts` up to its decimal point, so the span is whole µs.
_SLOT = re.compile(
    r'"(ts|External id|correlation|id|Python id|Python parent id|Ev Idx|Sequence number)": ?(?=\d)(\d+)'
    r"|(ProfilerStep#)(\d+)"
)
# 0 says "none" for these; it must stay.
_ZERO_IS_NONE = {"External id", "correlation", "id", "Sequence number"}
_EXTENT = re.compile(r'"ts": ?(\d+(?:\.\d+)?)(?:, ?"dur": ?(\d+(?:\.\d+)?))?')
_WINDOW_END = re.compile(r'("name": "Record Window End".*?"ts": ?)(\d+)', re.DOTALL)
_SEPARATOR = ",\n"


@dataclass(frozen=True)
class Recording:
    """A trace cut into what is written once and what is repeated.

    Args:
        head: Everything up to the first event.
        pieces: Text of the repeated events between their slots; one more than there are slots.
        values: Number in each slot.
        increments: What one copy adds to each slot.
        span_us: What one copy adds to `ts`.
        tail: Events written once (process and thread names, profiler spans) and what follows them.
    """

    head: str
    pieces: list[str]
    values: list[int]
    increments: list[int]
    span_us: int
    tail: str

    def copy(self, number: int) -> str:
        """The repeated events, shifted `number` times."""
        parts = [""] * (2 * len(self.values) + 1)
        parts[::2] = self.pieces
        parts[1::2] = [
            str(value + number * increment)
            for value, increment in zip(self.values, self.increments, strict=True)
        ]
        return "".join(parts)

    def tail_after(self, copies: int) -> str:
        """The tail, the end of the recording's window moved behind the last copy."""
        shift = (copies - 1) * self.span_us
        return _WINDOW_END.sub(lambda match: f"{match[1]}{int(match[2]) + shift}", self.tail)


def open_text(path: Path, mode: Literal["r", "w"]) -> TextIO:
    """A text file, compressed if its name ends in `.gz` (level 6, as gzip programs do)."""
    if path.suffix == ".gz":
        return cast(TextIO, gzip.open(path, f"{mode}t", 6, encoding="utf-8"))
    return path.open(mode, encoding="utf-8")


def read_recording(path: Path) -> Recording:
    """Cut a Kineto trace (plain or gzip) whose metadata events come behind all others, as Kineto writes them.

    Raises:
        ValueError: It is laid out in another way.
    """
    with open_text(path, "r") as file:
        text = file.read()
    start = text.find("{", text.find('"traceEvents": ['))
    metadata = text.find('"ph": "M"')
    end = text.rfind(_SEPARATOR, start, metadata)
    if min(start, metadata, end) < 0:
        raise ValueError(f"{path}: not laid out as Kineto writes traces")
    return _recording(text[:start], text[start:end], text[end:])


def _recording(head: str, body: str, tail: str) -> Recording:
    pieces, keys, values = [], [], []
    position = 0
    for match in _SLOT.finditer(body):
        group = 2 if match[2] is not None else 4
        pieces.append(body[position : match.start(group)])
        keys.append(match[1] or match[3])
        values.append(int(match[group]))
        position = match.end(group)
    pieces.append(body[position:])
    extents = [(float(ts), float(dur or 0)) for ts, dur in _EXTENT.findall(body)]
    span_us = int(max(ts + dur for ts, dur in extents) - min(ts for ts, _ in extents)) + 1
    offsets = _offsets(keys, values, span_us)
    increments = [
        0 if value == 0 and key in _ZERO_IS_NONE else offsets[key]
        for key, value in zip(keys, values, strict=True)
    ]
    return Recording(head, pieces, values, increments, span_us, tail)


def _offsets(keys: list[str], values: list[int], span_us: int) -> dict[str, int]:
    highest: dict[str, int] = {}
    for key, value in zip(keys, values, strict=True):
        highest[key] = max(value, highest.get(key, 0))
    steps = {value for key, value in zip(keys, values, strict=True) if key == "ProfilerStep#"}
    offsets = {key: value + 1 for key, value in highest.items()}
    # Flows of kernels carry their correlation as id; Python frames name their parent by its id.
    for pair in (("correlation", "id"), ("Python id", "Python parent id")):
        offsets.update(dict.fromkeys(pair, max(offsets.get(key, 1) for key in pair)))
    return {**offsets, "ts": span_us, "ProfilerStep#": max(steps, default=0) - min(steps, default=0) + 1}


def write_trace(recording: Recording, output: TextIO, size_bytes: int) -> int:
    """Write copies until the trace has the wanted size (to half a copy) and return their number."""
    output.write(recording.head)
    written, copies = len(recording.head), 0
    while copies == 0 or written + (written // copies) // 2 < size_bytes:
        text = recording.copy(copies)
        if copies:
            output.write(f"{_SEPARATOR}  ")
        output.write(text)
        written += len(text)
        copies += 1
    output.write(recording.tail_after(copies))
    return copies


def main() -> int:
    parser = argparse.ArgumentParser(description="Repeat a real Kineto trace up to a wanted size.")
    parser.add_argument("recording", type=Path, help="trace as torch.profiler exports it, .json or .json.gz")
    parser.add_argument("output", type=Path, help=".json, or .json.gz to compress")
    parser.add_argument("--size-mb", type=float, required=True, help="wanted size of the JSON in 10^6 bytes")
    options = parser.parse_args()
    recording = read_recording(options.recording)
    partial = options.output.with_name(f"partial-{options.output.name}")
    with open_text(partial, "w") as file:
        copies = write_trace(recording, file, int(options.size_mb * 1e6))
    partial.replace(options.output)
    print(f"Wrote {options.output} ({options.output.stat().st_size / 1e6:.0f} MB, {copies} copies)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
