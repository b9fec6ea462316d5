"""Events of a Chrome trace as JSON text.

Times stay exact: nanoseconds become microseconds with three decimals without passing through a float.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Times", "arrow", "event", "head", "label", "microseconds", "process_labels"]

Times = tuple[str, str]
"""Start and duration of an event, as JSON numbers of microseconds."""


def microseconds(times_ns: npt.NDArray[np.int64]) -> list[str]:
    """Nanoseconds as JSON numbers of microseconds, exactly."""
    whole, rest = np.divmod(times_ns, 1000)
    return [f"{us}.{ns:03d}" for us, ns in zip(whole.tolist(), rest.tolist(), strict=True)]


def head(category: str, name: str, process: int | str, row: int | str) -> str:
    """An event's text up to the value of its start."""
    return (
        f'{{"ph": "X", "cat": "{category}", "name": {json.dumps(name)}, '
        f'"pid": {json.dumps(process)}, "tid": {json.dumps(row)}, "ts": '
    )


def event(head_text: str, times: Times, arguments: Mapping[str, Any]) -> str:
    """A whole event, of what `head` made."""
    return f'{head_text}{times[0]}, "dur": {times[1]}, "args": {json.dumps(arguments)}}}'


def arrow(phase: str, correlation: int, place: tuple[int, int], start: str) -> str:
    """One end of an arrow from a call to its activity.

    Args:
        phase: `s` at the call, `f` at the activity.
        correlation: What ties the two.
        place: Process and row.
        start: Start of the event it is tied to.
    """
    binding = ', "bp": "e"' if phase == "f" else ""
    return (
        f'{{"ph": "{phase}", "id": {correlation}, "pid": {place[0]}, "tid": {place[1]}, "ts": {start}, '
        f'"cat": "ac2g", "name": "ac2g"{binding}}}'
    )


def process_labels(process: int, name: str, text: str, sort_index: int) -> Iterator[str]:
    """What viewers call a process, and where they show it."""
    yield label("process_name", (process, 0), "name", name)
    yield label("process_labels", (process, 0), "labels", text)
    yield label("process_sort_index", (process, 0), "sort_index", sort_index)


def label(kind: str, place: tuple[int, int | str], key: str, value: Any) -> str:
    """One metadata event."""
    return json.dumps(
        {"name": kind, "ph": "M", "ts": 0, "pid": place[0], "tid": place[1], "args": {key: value}}
    )
