"""torch in a process of its own: imported, calculating on every device, recording."""

from __future__ import annotations

import re

import msgspec

from opscope.toolchain.doctor.facts import TorchFacts
from opscope.toolchain.doctor.probes.child import ChildAnswer, run_child
from opscope.toolchain.doctor.probes.surroundings import Surroundings, last_lines

__all__ = ["TORCH_TIMEOUT_S", "probe_torch"]

# Starting CUDA on a machine with many GPUs and no persistence takes tens of seconds.
TORCH_TIMEOUT_S = 120.0
_TROUBLE = re.compile(r"cupti|kineto|roctracer|warn|error|fail", re.IGNORECASE)


def probe_torch(surroundings: Surroundings, *, timeout_s: float = TORCH_TIMEOUT_S) -> TorchFacts:
    """What torch is and does here."""
    answer = run_child(surroundings, "doctor_torch", timeout_s=timeout_s)
    facts = dict(answer.facts)
    stage = facts.pop("stage", None)
    facts["stopped"] = _stopped(answer, stage)
    capture = facts.get("capture")
    if isinstance(capture, dict):
        facts["capture"] = {**capture, "messages": _trouble(answer.err)}
    elif stage == "recording":
        facts["capture"] = {"error": facts["stopped"], "messages": _trouble(answer.err)}
    return msgspec.convert(facts, TorchFacts)


def _stopped(answer: ChildAnswer, stage: str | None) -> str | None:
    """How the process ended early; it says `end` when it is done, or why torch cannot be imported."""
    if stage == "end" or "import_error" in answer.facts:
        return None
    how = answer.stopped or f"ended early: {last_lines(answer.err, 1)}"
    return f"{how} at {stage}" if stage else how


def _trouble(err: str) -> str:
    """Lines of standard error that speak of the profiler or of trouble."""
    return last_lines("\n".join(line for line in err.splitlines() if _TROUBLE.search(line)))
