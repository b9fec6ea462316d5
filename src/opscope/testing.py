"""Public fakes for tests of code that uses opscope: no device, no clock, no recording needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from opscope.errors import MeasurementError
from opscope.model.benchmark import DeviceState
from opscope.model.measurement import Clock

__all__ = ["FakeMonitor", "FakeTimer", "TraceBuilder"]


class FakeMonitor:
    """A `DeviceMonitor` that reports scripted states.

    Args:
        states: What `read` returns, in order; the last one again and again, None if there are none.
    """

    def __init__(self, states: Iterable[DeviceState | None] = ()) -> None:
        self.reads = 0
        self._states = list(states)

    def read(self) -> DeviceState | None:
        """The next scripted state."""
        if not self._states:
            return None
        state = self._states[min(self.reads, len(self._states) - 1)]
        self.reads += 1
        return state


class FakeTimer:
    """A `Timer` that calls the function and reports scripted durations.

    Args:
        samples_ns: What `measure` returns, in order; warm-up calls take from it too. Each is drawn after its
            call, so a generator may depend on what the function did.
        clock: The clock it claims to be.
        resolution_ns: The resolution it claims.
    """

    def __init__(
        self, samples_ns: Iterable[int], clock: Clock = Clock.WALL, *, resolution_ns: float = 1.0
    ) -> None:
        self.clock = clock
        self.resolution_ns = resolution_ns
        self.calls = 0
        self._samples_ns = iter(samples_ns)

    def prepare(self, calls: Sequence[Callable[[], object]]) -> Sequence[Callable[[], object]]:
        """The calls themselves."""
        return calls

    def measure(self, fn: Callable[[], object]) -> int:
        """The next scripted duration, in nanoseconds, after one call of `fn`.

        Raises:
            MeasurementError: The script has run out.
        """
        fn()
        self.calls += 1
        try:
            return next(self._samples_ns)
        except StopIteration:
            raise MeasurementError(f"the scripted samples ran out at call {self.calls}") from None


class TraceBuilder:
    """Writes small Kineto traces, one call per event.

        TraceBuilder().operator("aten::mm", 0, 10).launch(2).kernel("gemm", 20, 5).write(path)

    Times are microseconds (three decimals), as in the format. `launch` and `kernel` refer to the last
    operator and launch unless told otherwise; ids count up by themselves.

    Args:
        properties: Further top-level keys of the file.
    """

    def __init__(self, **properties: Any) -> None:
        self.properties: dict[str, Any] = {"schemaVersion": 1, **properties}
        self.events: list[dict[str, Any]] = []
        self._external_id = 0
        self._correlation = 100

    def operator(
        self,
        name: str,
        start: float,
        duration: float,
        *,
        thread: int = 1,
        external_id: int | None = None,
        **args: Any,
    ) -> TraceBuilder:
        """A dispatcher call."""
        self._external_id = self._external_id + 1 if external_id is None else external_id
        return self.event("cpu_op", name, start, duration, thread, {"External id": self._external_id, **args})

    def launch(
        self,
        start: float,
        duration: float = 1,
        *,
        name: str = "cudaLaunchKernel",
        thread: int = 1,
        correlation: int | None = None,
        external_id: int | None = None,
    ) -> TraceBuilder:
        """A runtime call; carries an external id only if given one."""
        self._correlation = self._correlation + 1 if correlation is None else correlation
        args = {"correlation": self._correlation}
        if external_id is not None:
            args["External id"] = external_id
        return self.event("cuda_runtime", name, start, duration, thread, args)

    def kernel(
        self,
        name: str,
        start: float,
        duration: float,
        *,
        device: int = 0,
        stream: int = 7,
        correlation: int | None = None,
        category: str = "kernel",
        **args: Any,
    ) -> TraceBuilder:
        """A device activity; belongs to the last launch unless given a correlation id."""
        arguments = {
            "device": device,
            "stream": stream,
            "correlation": self._correlation if correlation is None else correlation,
            "grid": [4, 1, 1],
            "block": [128, 1, 1],
            **args,
        }
        return self.event(category, name, start, duration, stream, arguments, process=device)

    def step(self, number: int, start: float, duration: float, *, thread: int = 1) -> TraceBuilder:
        """A profiler step."""
        return self.event("user_annotation", f"ProfilerStep#{number}", start, duration, thread, {})

    def event(  # noqa: PLR0917 - the fields of an event
        self,
        category: str,
        name: str,
        start: float,
        duration: float,
        thread: int | str,
        args: dict[str, Any],
        *,
        process: int | str = 1,
    ) -> TraceBuilder:
        """Any complete event."""
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": process,
                "tid": thread,
                "ts": start,
                "dur": duration,
                "args": args,
            }
        )
        return self

    def text(self) -> str:
        """The file's text, laid out as Kineto lays it out."""
        head = json.dumps(self.properties, indent=2)[:-2]
        events = ",\n".join("  " + json.dumps(event) for event in self.events)
        return f'{head},\n  "traceEvents": [\n{events}\n  ]\n}}\n'

    def write(self, path: str | Path) -> Path:
        """Write the file and return its path."""
        target = Path(path)
        target.write_text(self.text(), encoding="utf-8")
        return target
