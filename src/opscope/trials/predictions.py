"""What advice expects of changes, from a recording that a process of the trial made of the program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from opscope.errors import OpscopeError
from opscope.model.benchmark import Interval
from opscope.model.finding import Finding
from opscope.trials.rounds import NO_RECORDING


class SaidGain(msgspec.Struct, frozen=True):
    gain_ns: float  # Per step
    interval_ns: Interval | None = None  # Between what that lies
    message: str = ""  # The finding, in a sentence
    step_ns: float | None = None  # The step that it is a gain of, without the recorder; None if unknown

    def of(self, step_ns: float) -> SaidGain:
        """The gain of the same program in another process, where a step takes so long."""
        if not self.step_ns:
            return self
        scale = step_ns / self.step_ns
        interval = self.interval_ns and (scale * self.interval_ns[0], scale * self.interval_ns[1])
        return SaidGain(scale * self.gain_ns, interval, self.message, step_ns)


def predicted(folder: Path, *, note: Callable[[str], object]) -> Mapping[str, SaidGain]:
    """What advice says of a folder's recording, by its code without `advice.`; `note` is told if it fails."""
    from opscope.advice import assess  # noqa: PLC0415 - no trial needs them to start
    from opscope.hardware.limits import LIMITS_FOLDER  # noqa: PLC0415
    from opscope.ingest.reader import load  # noqa: PLC0415
    from opscope.provenance.cache import cache_folder  # noqa: PLC0415
    from opscope.provenance.demangle import demangle  # noqa: PLC0415

    failed, trace = folder / NO_RECORDING, folder / "trace.json"
    if failed.exists() or not trace.exists():
        said = failed.read_text(encoding="utf-8").strip() if failed.exists() else "the program ended before"
        note(f"no predictions: the recording failed ({said})")
        return {}
    try:
        with load([str(trace)], demangle=demangle) as session:
            summary = assess(session, measured_dir=cache_folder() / LIMITS_FOLDER)
            timed = summary.measured_step.unrecorded_ns
            return gains_said(summary.advice or (), None if timed is None else timed.median)
    except OpscopeError as error:
        note(f"no predictions: {error}")
        return {}


def gains_said(advice: Iterable[Finding], step_ns: float | None) -> dict[str, SaidGain]:
    """Time per step that findings say is gained; of several of one code the first: they are sorted by it."""
    return {
        one.code.removeprefix("advice."): SaidGain(
            one.estimated_gain_ns_per_step, one.gain_interval_ns_per_step, one.message, step_ns
        )
        for one in reversed(tuple(advice))
        if one.estimated_gain_ns_per_step is not None
    }
