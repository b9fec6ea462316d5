"""What advice expects of changes, from one recording of the program.

The program is recorded by `opscope run` in a process like that of any other run: in an empty folder, with the
same seed, ended with its parent. A workload is a script that calls its step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from opscope.model.benchmark import Interval
from opscope.trials.processes import ProgramRuns
from opscope.trials.rounds import TrialRequest

_WORKLOAD = """
from opscope.workloads.target import resolve
from opscope.workloads.workload import WorkloadOptions
workload = resolve({target!r}, WorkloadOptions(**{options!r})).build(*{sizes!r})
def step():
    workload.step()
while True:
    step()
"""


class SaidGain(msgspec.Struct, frozen=True):
    """What advice says a finding costs."""

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


def predicted(
    request: TrialRequest, runs: ProgramRuns, limit_s: float, *, note: Callable[[str], object]
) -> Mapping[str, SaidGain]:
    """What advice on a recording of the program says, by its code without `advice.`; nothing if that fails.

    The recording may take so many seconds; `note` is told why there are no predictions.
    """
    folder = runs.scratch / "recording"
    folder.mkdir()
    target, steps = request.target, request.steps
    if request.kind == "workload":
        target, steps = str(folder / "program.py"), "step"
        Path(target).write_text(
            _WORKLOAD.format(target=request.target, options=request.options, sizes=request.sizes),
            encoding="utf-8",
        )
    command = ["run", "--quiet", "--stop", "--steps", steps, "--output-dir", str(folder / "out")]
    command += [*(["-m"] if request.kind == "module" else []), "--", target, *request.arguments]
    said = runs.record(command, request, limit_s)
    analysis = folder / "out" / "analysis.json"
    if not analysis.exists():
        note(f"no predictions: the recording failed ({said})")
        return {}
    return gains_said(msgspec.json.decode(analysis.read_bytes()))


def gains_said(analysis: Mapping[str, Any]) -> dict[str, SaidGain]:
    """Time per step that the findings of an analysis say is gained, by their codes without `advice.`.

    Of several findings of one code, the first counts: they are sorted by their gain.
    """
    unrecorded_ns = (analysis.get("step") or {}).get("unrecorded_ns") or {}
    return {
        one["code"].removeprefix("advice."): SaidGain(
            one["estimated_gain_ns_per_step"],
            one.get("gain_interval_ns_per_step"),
            one.get("message", ""),
            unrecorded_ns.get("median"),
        )
        for one in reversed(analysis["findings"])
        if one["estimated_gain_ns_per_step"] is not None
    }
