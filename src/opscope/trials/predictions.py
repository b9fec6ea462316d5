"""What advice expects of changes, from one recording of the program, and what they brought.

The program is recorded by `opscope run` in a process like that of any other run: in an empty folder, with the
same seed, ended with its parent. A workload is a script that calls its step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from opscope.errors import InputError
from opscope.model.benchmark import Interval
from opscope.model.trial import Correctness, TrialResult, TrialVerdict
from opscope.trials.processes import ProgramRuns
from opscope.trials.rounds import TrialRequest

_WORKLOAD = """
from opscope.workloads.spec import WorkloadOptions, resolve
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


def append_history(path: Path, result: TrialResult, facts: Mapping[str, Any]) -> int:
    """Append what was said and what was measured of each change to a user's file of JSON lines; how many.

    `facts` are what else each line holds, such as when, and on which device.
    """
    lines = []
    for one in result.variants:
        # Those that advice said something of and that were timed with numbers that are right.
        if one.predicted_gain_ns is None or one.ratio is None or one.ratio_interval is None:
            continue
        if one.verdict is TrialVerdict.FAILED or one.correctness is Correctness.CHANGED:
            continue
        step_ns = result.baseline.step_ns
        pair = {
            "program": result.program,
            "change": one.name,
            "finding": one.finding,
            "step_ns": step_ns,
            "predicted_gain_ns": one.predicted_gain_ns,
            "predicted_interval_ns": one.predicted_interval_ns,
            "measured_gain_ns": (1 - one.ratio) * step_ns,
            "measured_interval_ns": [(1 - end) * step_ns for end in reversed(one.ratio_interval)],
            "verdict": one.verdict,
            "correctness": one.correctness,
        }
        lines.append(json.dumps({**facts, **pair}, ensure_ascii=False) + "\n")
    if not lines:
        return 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as stream:
            stream.write("".join(lines))
    except OSError as error:
        raise InputError(f"the history cannot be written ({error.strerror})", source=path) from error
    return len(lines)
